"""Tile programs: host programs, sizes, blocks, out-of-bounds, shadows, parallel loops."""

from __future__ import annotations

import numpy as np
import pytest
from busy import takes
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import program, run, run_block

from tilewright import errors
from tilewright.interpreter import interpret
from tilewright.ir import dtypes

MATMUL = """
def matmul(A: float16[M, K], B: float16[K, N], C: float32[M, N], *, M: int32, K: int32, N: int32) -> C:
    with kernel(blocks={bx: (N + 63) // 64, by: (M + 63) // 64}, threads={tx: 128, ty: 1, tz: 1}):
        A_shared = shared(float16[64, 32])
        B_shared = shared(float16[32, 64])
        C_local = fragment(float32[64, 64])
        fill(destination=C_local, value=float32(0.0))
        for k in pipelined((K + 31) // 32, num_stages=3):
            copy(source=A[by * 64 : +64, k * 32 : +32], destination=A_shared)
            copy(source=B[k * 32 : +32, bx * 64 : +64], destination=B_shared)
            gemm(a=A_shared, b=B_shared, c=C_local)
        copy(source=C_local, destination=C[by * 64 : +64, bx * 64 : +64])
"""


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 100), st.integers(0, 3))
def test_matmul_of_any_size(m: int, n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    (c,) = interpret(program(MATMUL), [a, b], seed=seed)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert c.dtype == np.float32 and c.shape == (m, n)
    assert (np.abs(c - exact) <= (-(-k // 32) + 1) * 2.0**-24 * magnitude).all()


def test_a_matmul_of_256_takes_less_than_a_second() -> None:
    function = program(MATMUL)
    a = np.ones((256, 256), np.float16)
    interpret(function, [a[:64], a])
    found: list[np.ndarray] = []
    assert takes(1.0, lambda: found.extend(interpret(function, [a, a]))) and (found[0] == 256).all()


def test_integer_matmul_is_exact_through_packed_weights() -> None:
    rng = np.random.default_rng(0)
    a, w = rng.integers(-128, 128, (33, 70)).astype(np.int8), rng.integers(-8, 8, (70, 34))
    text = """
    def f(A: int8[33, 70], W: int4[70, 34], C: int32[33, 34]) -> C:
        with kernel(blocks={bx: 3}, threads={tx: 32, ty: 1, tz: 1}):
            tile = shared(int4[70, 16])
            acc = fragment(int32[33, 16])
            a = shared(int8[33, 70])
            copy(source=A, destination=a)
            copy(source=W[0 : +70, bx * 16 : +16], destination=tile)
            gemm(a=a, b=tile, c=acc, clear=True)
            copy(source=acc, destination=C[0 : +33, bx * 16 : +16])
    """
    (c,) = run(text, a, dtypes.pack(w, dtypes.dtype("int4")))
    np.testing.assert_array_equal(c, a.astype(np.int64) @ w)


def test_packed_output_with_odd_rows() -> None:
    values = np.random.default_rng(1).integers(0, 4, (3, 7)).astype(np.uint8)
    text = """
    def f(A: uint8[3, 7], C: uint2[3, 7]) -> C:
        with kernel(blocks={bx: 3}, threads={tx: 32, ty: 1, tz: 1}):
            for j in parallel(7):
                C[bx, j] = uint2(A[bx, j])
    """
    (packed,) = run(text, values)
    assert packed.shape == (3, 2)
    np.testing.assert_array_equal(dtypes.unpack(packed, dtypes.dtype("uint2"), 7), values)


def test_arrays_are_written_in_place_without_outputs() -> None:
    x = np.arange(10, dtype=np.float32)
    outputs = run_block("for i in parallel(10):\n    X[i] = X[i] * 2.0", x, params="(X: float32[10])")
    assert outputs == ()
    np.testing.assert_array_equal(x, 2 * np.arange(10))


def test_outputs_are_poisoned() -> None:
    floats, integers, nibbles = run_block("pass", params="(F: bfloat16[3], I: int32[2], U: uint4[5]) -> (F, I, U)")
    assert np.isnan(floats.astype(np.float32)).all()
    assert (integers.view(np.uint32) == 0xAAAAAAAA).all() and (nibbles == 0xAA).all() and nibbles.shape == (3,)


# Out of bounds ----------------------------------------------------------------------------------


def test_reads_of_tensors_out_of_bounds_give_zero_or_the_safe_value() -> None:
    x = np.arange(1, 6, dtype=np.float32)
    body = "tile = shared(float32[8])\ncopy(source=X[-2 : +8], destination=tile)\ncopy(source=tile, destination=Y)"
    (y,) = run_block(body, x, params="(X: float32[5], Y: float32[8]) -> Y")
    np.testing.assert_array_equal(y, [0, 0, 1, 2, 3, 4, 5, 0])
    text = """
    def f(X: float32[5], Y: float32[2, 8]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}, safe_values={X: -1.5}):
            for i in parallel(8):
                Y[0, i] = X[i - 2]
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            copy(source=X[-2 : +8], destination=Y[1, :])
    """
    (y,) = run(text, x)
    np.testing.assert_array_equal(y, [[-1.5, -1.5, 1, 2, 3, 4, 5, -1.5], [0, 0, 1, 2, 3, 4, 5, 0]])


def test_writes_of_tensors_out_of_bounds_are_dropped() -> None:
    y = np.zeros(5, np.int32)
    run_block("for i in parallel(8):\n    Y[i - 2] = i", y, params="(Y: int32[5])")
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6])
    run_block("fill(destination=Y[3 : +8], value=int32(9))", y, params="(Y: int32[5])")
    np.testing.assert_array_equal(y, [2, 3, 4, 9, 9])
    run_block("fill(destination=Y[7 : +8], value=int32(1))", y, params="(Y: int32[5])")
    np.testing.assert_array_equal(y, [2, 3, 4, 9, 9])


@pytest.mark.parametrize(
    ("body", "element", "verb", "line"),
    [
        ("fill(destination=t, value=int32(0))\nfor i in parallel(9):\n    Y[i] = t[i]", "[8]", "reads", 7),
        ("for i in parallel(9):\n    t[i - 1] = 0", "[-1]", "writes", 6),
        ("fill(destination=t, value=int32(0))\ncopy(source=t[n + 1 : +8], destination=Y)", "[11]", "reads", 6),
        ("fill(destination=t[n - 4 : +4], value=int32(0))", "[-1]", "writes", 5),
        ("t[n + 5] = 0", "[8]", "writes", 5),
    ],
)
def test_tiles_out_of_bounds(body: str, element: str, verb: str, line: int) -> None:
    with pytest.raises(errors.OutOfBounds) as caught:
        run_block("t = shared(int32[8])\n" + body, 3, params="(n: int32, Y: int32[8]) -> Y")
    assert caught.value.message == f"this {verb} t{element}, outside its shape (8)"
    assert caught.value.span is not None and caught.value.span.line == line


# Never-written elements -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "element"),
    [
        ("copy(source=t, destination=Y)", "t[0, 0]"),
        ("fill(destination=t[0 : +2, :], value=int32(0))\ncopy(source=t, destination=Y)", "t[2, 0]"),
        (
            "fill(destination=t[:, 0 : +3], value=int32(0))\nfor i, j in parallel(4, 4):\n    Y[i, j] = t[i, j]",
            "t[0, 3]",
        ),
        ("for i in parallel(4):\n    t[i, i] = 1\nY[0, 0] = t[2, 2] + t[3, 1]", "t[3, 1]"),
        ("gemm(a=t, b=t, c=Y)", "t[0, 0]"),
        ("x = scalar(int32[1])\nY[0, 0] = x[0]", "x"),
        ("u = shared(int4[4])\nu[1] = int4(1)\nY[0, 0] = int32(u[1])\nY[0, 1] = int32(u[0])", "u[0]"),
        ("for k in range(2):\n    u = shared(int32[1])\n    if k == 0:\n        u[0] = 1\n    Y[0, k] = u[0]", "u[0]"),
    ],
)
def test_reading_what_was_never_written(body: str, element: str) -> None:
    with pytest.raises(errors.UninitializedRead) as caught:
        run_block("t = shared(int32[4, 4])\n" + body, params="(Y: int32[4, 4]) -> Y")
    assert caught.value.message == f"{element} is read but was never written"
    assert caught.value.span is not None


def test_guards_keep_reads_from_happening() -> None:
    body = """
    t = shared(int32[4])
    fill(destination=t[0 : +2], value=int32(7))
    for i in parallel(8):
        Y[i] = t[i] if i < 2 else -1
        if i < 2 and t[i] == 7:
            Y[i] = t[i] + 1
        if i >= 2 or t[i] == 7:
            Y[i] = Y[i] + 1
    """
    (y,) = run_block(body, params="(Y: int32[8]) -> Y")
    np.testing.assert_array_equal(y, [9, 9, 0, 0, 0, 0, 0, 0])


def test_a_cleared_accumulator_needs_no_first_value() -> None:
    body = """
    a = shared(int8[4, 4])
    c = fragment(int32[4, 4])
    copy(source=A, destination=a)
    for k in range(3):
        gemm(a=a, b=a, c=c, clear=k == 0)
    copy(source=c, destination=C)
    """
    a = np.random.default_rng(0).integers(-9, 9, (4, 4)).astype(np.int8)
    (c,) = run_block(body, a, params="(A: int8[4, 4], C: int32[4, 4]) -> C")
    np.testing.assert_array_equal(c, 3 * (a.astype(np.int32) @ a.astype(np.int32)))


# Parallel loops ---------------------------------------------------------------------------------


def test_parallel_with_a_serial_loop_and_a_scalar_inside() -> None:
    x = np.random.default_rng(0).standard_normal((9, 13)).astype(np.float32)
    body = """
    for i in parallel(9):
        best = scalar(float32[1], initial=-inf)
        for j in range(13):
            if X[i, j] > best[0]:
                best[0] = X[i, j]
        Y[i] = best[0]
    """
    (y,) = run_block(body, x, params="(X: float32[9, 13], Y: float32[9]) -> Y")
    np.testing.assert_array_equal(y, x.max(axis=1))


def test_breaks_continues_and_whiles_in_lanes() -> None:
    body = """
    for i in parallel(20):
        n = scalar(int32[1], initial=0)
        for j in range(100):
            if j % 3 == 1:
                continue
            if j > i:
                break
            n[0] = n[0] + j
        steps = scalar(int32[1], initial=0)
        value = scalar(int32[1], initial=i + 1)
        while value[0] != 1:
            value[0] = value[0] // 2 if value[0] % 2 == 0 else 3 * value[0] + 1
            steps[0] = steps[0] + 1
        Y[0, i] = n[0]
        Y[1, i] = steps[0]
    """
    (y,) = run_block(body, params="(Y: int32[2, 20]) -> Y")
    for i in range(20):
        assert y[0, i] == sum(j for j in range(i + 1) if j % 3 != 1)
        steps, value = 0, i + 1
        while value != 1:
            value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
        assert y[1, i] == steps


def test_loops_whose_bounds_differ_between_lanes() -> None:
    body = """
    for i in parallel(8):
        total = scalar(int32[1], initial=0)
        for j in range(i, 2 * i, 2):
            total[0] = total[0] + j
        for j in range(i):
            total[0] = total[0] + 100
        Y[i] = total[0]
    """
    (y,) = run_block(body, params="(Y: int32[8]) -> Y")
    np.testing.assert_array_equal(y, [sum(range(i, 2 * i, 2)) + 100 * i for i in range(8)])


def test_iterations_that_disagree_on_an_element() -> None:
    with pytest.raises(errors.ConflictingWrites) as caught:
        run_block("for i in parallel(8):\n    Y[i // 2] = i", params="(Y: int32[8]) -> Y")
    assert caught.value.message == "iterations that run at once write different values to Y[0]"
    with pytest.raises(errors.ConflictingWrites) as caught:
        run_block(
            "s = scalar(int32[1], initial=0)\nfor i in parallel(8):\n    s[0] = s[0] + i\nY[0] = s[0]",
            params="(Y: int32[8]) -> Y",
        )
    assert caught.value.message == "iterations that run at once write different values to s"


def test_iterations_that_agree_may_write_one_element() -> None:
    body = "s = scalar(int32[1], initial=0)\nfor i in parallel(8):\n    Y[i // 2] = 5\n    if i > 6:\n        s[0] = i\nY[4] = s[0]"
    (y,) = run_block(body, params="(Y: int32[5]) -> Y")
    np.testing.assert_array_equal(y, [5, 5, 5, 5, 7])


# Host programs ----------------------------------------------------------------------------------


def test_several_kernels_a_workspace_and_host_branches() -> None:
    text = """
    def f(X: float32[n], twice: bool, Y: float32[n], *, n: int32) -> Y:
        workspace = tensor(float32[n])
        m: int32 = n // 2
        with kernel(blocks={bx: n}, threads={tx: 1, ty: 1, tz: 1}):
            workspace[bx] = X[bx] + 1.0
        if twice:
            for r in range(2):
                with kernel(blocks={bx: m}, threads={tx: 1, ty: 1, tz: 1}):
                    workspace[bx] = workspace[bx] * 2.0
        with kernel(blocks={bx: n}, threads={tx: 1, ty: 1, tz: 1}):
            Y[bx] = workspace[bx]
    """
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run(text, x, True)[0], [4, 8, 3, 4, 5])
    np.testing.assert_array_equal(run(text, x, False)[0], x + 1)


def test_three_dimensional_grids_and_an_order_of_blocks() -> None:
    text = """
    def f(C: int32[4, 3, 2], T: int32[1]) -> C:
        with kernel(blocks={bx: 2, by: 3, bz: 4}, threads={tx: 1, ty: 1, tz: 1}):
            n: int32 = call("atomic_add", T[0 : +1], 1, "relaxed")
            C[bz, by, bx] = n
    """
    text = text.replace("call(", "atomic_add(").replace('"atomic_add", ', "")
    first = run(text, np.zeros(1, np.int32))[0]
    np.testing.assert_array_equal(first.reshape(-1), np.arange(24))
    other = run(text, np.zeros(1, np.int32), seed=7)[0]
    assert sorted(other.reshape(-1).tolist()) == list(range(24)) and (other != first).any()


def test_views_see_the_same_bytes() -> None:
    body = """
    t = shared(float32[4])
    b = view(t, uint8[16])
    n = view(t, int4[2, 16])
    w = view(X, uint32[2, 2])
    copy(source=X, destination=t)
    for i in parallel(16):
        B[i] = b[i]
    for i, j in parallel(2, 16):
        N[i, j] = int32(n[i, j])
    for i, j in parallel(2, 2):
        W[i, j] = w[i, j]
    """
    x = np.array([1.5, -2.0, 3e10, 0.1], np.float32)
    b, n, w = run_block(body, x, params="(X: float32[4], B: uint8[16], N: int32[2, 16], W: uint32[2, 2]) -> (B, N, W)")
    np.testing.assert_array_equal(b, x.view(np.uint8))
    np.testing.assert_array_equal(n.reshape(-1), dtypes.unpack(x.view(np.uint8), dtypes.dtype("int4"), 32))
    np.testing.assert_array_equal(w.reshape(-1), x.view(np.uint32))


def test_a_view_of_what_was_never_written() -> None:
    body = "t = shared(float32[4])\nb = view(t, uint8[16])\nt[1] = 1.0\nB[0] = b[4]\nB[1] = b[8]"
    with pytest.raises(errors.UninitializedRead, match=r"b\[8\] is read"):
        run_block(body, params="(B: uint8[2]) -> B")


def test_strided_tensors() -> None:
    text = """
    def f(X: tensor(float32[M, 3], strides=(ld, 1)), Y: float32[M, 3], *, M: int32, ld: int32) -> Y:
        with kernel(blocks={bx: M}, threads={tx: 32, ty: 1, tz: 1}):
            copy(source=X[bx, :], destination=Y[bx, :])
    """
    storage = np.arange(40, dtype=np.float32).reshape(5, 8)
    np.testing.assert_array_equal(run(text, storage[:, :3])[0], storage[:, :3])
    with pytest.raises(errors.WrongArgumentStrides):
        run(text, storage[:, ::2][:, :3])


# Messages of the program ------------------------------------------------------------------------


def test_print_and_breakpoint_show_arrays() -> None:
    lines: list[str] = []
    opened: list[dict[str, object]] = []
    body = """
    t = shared(int32[3])
    for i in parallel(3):
        t[i] = i
    print("tile", t, t[1])
    for i in parallel(4):
        if i % 2 == 1:
            print("i", i)
    breakpoint(t)
    """
    run_block(body, params="(Y: int32[1]) -> Y", report=lines.append, debug=opened.append)
    assert lines == ["[block 0] tile 1 t[0:3] = 0 1 2", "[block 0] i 1", "[block 0] i 3"]
    np.testing.assert_array_equal(opened[0]["t"], [0, 1, 2])


def test_assertions_and_assumptions() -> None:
    with pytest.raises(errors.AssertionFailed) as caught:
        run_block(
            "for i in parallel(4):\n    if i < 3:\n        assert i != 2, 'never two'", params="(n: int32[1]) -> n"
        )
    assert caught.value.message == "device assertion failed: never two"
    with pytest.raises(errors.WrongAssumption):
        run("def f(X: int32[n], *, n: int32):\n    assume(n % 4 == 0)", np.zeros(6, np.int32))
    run("def f(X: int32[n], *, n: int32):\n    assume(n % 4 == 0)", np.zeros(8, np.int32))


def test_return_ends_the_block() -> None:
    text = """
    def f(Y: int32[4]):
        with kernel(blocks={bx: 4}, threads={tx: 32, ty: 1, tz: 1}):
            if bx % 2 == 0:
                return
            Y[bx] = 1
    """
    y = np.zeros(4, np.int32)
    run(text, y)
    np.testing.assert_array_equal(y, [0, 1, 0, 1])


# Arguments --------------------------------------------------------------------------------------

ARGUMENTS = "def f(A: float32[M, 4], B: float16[M], n: int32, C: float32[M, 4], *, M: int32) -> C:\n    assume(n > 0)"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((3, 4, "f4"),), errors.WrongArgumentCount, "f takes 3 arguments, but 1 were given"),
        (((3, 4, "f4"), (4, "f2"), 1), errors.WrongArgumentShape, "argument 'B' has shape (4,): dimension 0 is 4, expected 3 (M = 3 from dimension 0 of 'A')"),
        (((3, 5, "f4"), (3, "f2"), 1), errors.WrongArgumentShape, "argument 'A' has shape (3, 5): dimension 1 is 5, expected 4"),
        (((3, "f4"), (3, "f2"), 1), errors.WrongArgumentRank, "argument 'A' has shape (3,), expected 2 dimensions (M, 4)"),
        (((3, 4, "f8"), (3, "f2"), 1), errors.WrongArgumentDType,
         "argument 'A' has dtype float64, expected float32"),
        ((1.0, (3, "f2"), 1), errors.WrongArgumentKind, "argument 'A' is a float, expected an array"),
        (((3, 4, "f4"), (3, "f2"), (2, "i4")), errors.WrongArgumentKind,
         "argument 'n' is an ndarray, expected an int32"),
        (((3, 4, "f4"), (3, "f2"), 1 << 40), errors.WrongArgumentKind,
         f"argument 'n' is {1 << 40}, out of range for int32"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    made = [np.zeros(a[:-1], a[-1]) if isinstance(a, tuple) else a for a in arguments]
    with pytest.raises(error) as caught:
        run(ARGUMENTS, *made)
    assert caught.value.message == message  # type: ignore[attr-defined]


def test_sizes_may_be_passed_and_must_be_known() -> None:
    text = "def f(X: int32[M * M], Y: int32[M], *, M: int32) -> Y:\n    with kernel(blocks={bx: M}, threads={tx: 1, ty: 1, tz: 1}):\n        Y[bx] = X[2 * bx]"
    np.testing.assert_array_equal(run(text, np.arange(9, dtype=np.int32), 3)[0], [0, 2, 4])
    with pytest.raises(errors.WrongArgumentShape, match="size 'M' cannot be told from the arguments"):
        run(text, np.arange(9, dtype=np.int32))
    multiple = text.replace("M * M", "M * 2")
    np.testing.assert_array_equal(run(multiple, np.arange(6, dtype=np.int32))[0], [0, 2, 4])


def test_a_read_only_array_that_is_written() -> None:
    x = np.zeros(4, np.int32)
    x.flags.writeable = False
    with pytest.raises(errors.ReadOnlyArgument):
        run_block("X[0] = 1", x, params="(X: int32[4])")
    run_block("Y[0] = X[0]", x, params="(X: int32[4], Y: int32[1]) -> Y")


def test_empty_tensors() -> None:
    (c,) = interpret(program(MATMUL), [np.zeros((0, 5), np.float16), np.zeros((5, 3), np.float16)])
    assert c.shape == (0, 3)
    (c,) = interpret(program(MATMUL), [np.zeros((2, 0), np.float16), np.zeros((0, 3), np.float16)])
    np.testing.assert_array_equal(c, np.zeros((2, 3)))
