"""Statements that mention a thread index run for all threads at once, under masks."""

from __future__ import annotations

import numpy as np
import pytest
from programs import program, run, run_block

from tilewright import errors
from tilewright.interpreter import interpret
from tilewright.interpreter.varying import find_varying
from tilewright.ir import FLOAT32, INT32, kernels, nodes, walk
from tilewright.ir.nodes import Allocate, Buffer, Function, Kernel, Statement, Store, Var, const, load, seq


def test_each_thread_does_its_element() -> None:
    x = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    text = """
    def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
        with kernel(blocks={bx: (n + 15) // 16}, threads={tx: 16, ty: 1, tz: 1}):
            i: int32 = bx * 16 + tx
            if i < n:
                Y[i] = X[n - 1 - i] + X[i]
    """
    (y,) = run(text, x)
    np.testing.assert_array_equal(y, x[::-1] + x)


def test_three_thread_indices() -> None:
    text = """
    def f(Y: int32[2, 3, 4]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 4, ty: 3, tz: 2}):
            Y[tz, ty, tx] = tx + 10 * ty + 100 * tz
    """
    (y,) = run(text)
    z, w, v = np.indices((2, 3, 4))
    np.testing.assert_array_equal(y, v + 10 * w + 100 * z)


def test_local_arrays_and_scalars_belong_to_threads() -> None:
    body = """
    mine = local(int32[4])
    total = scalar(int32[1], initial=0)
    same = scalar(int32[1], initial=3)
    for k in range(4):
        mine[k] = tx * k
        same[0] = same[0] + 1
    for k in range(4):
        total[0] = total[0] + mine[k]
    Y[tx] = total[0] + same[0]
    """
    (y,) = run_block(body, params="(Y: int32[32]) -> Y")
    np.testing.assert_array_equal(y, np.arange(32) * 6 + 7)


def test_a_tree_reduction_through_shared_memory() -> None:
    x = np.random.default_rng(0).integers(0, 1000, 64).astype(np.int32)
    body = """
    tile = shared(int32[64])
    tile[tx] = X[tx]
    sync_threads()
    step = scalar(int32[1], initial=32)
    while step[0] > 0:
        if tx < step[0]:
            tile[tx] = tile[tx] + tile[tx + step[0]]
        sync_threads()
        step[0] = step[0] // 2
    if tx == 0:
        Y[0] = tile[0]
    """
    (y,) = run_block(body, x, params="(X: int32[64], Y: int32[1]) -> Y", threads=64)
    assert y[0] == x.sum()


def test_divergent_loops_breaks_and_returns() -> None:
    body = """
    count = scalar(int32[1], initial=0)
    for k in range(10):
        if k > tx:
            break
        if k % 2 == tx % 2:
            continue
        count[0] = count[0] + 1
    n = scalar(int32[1], initial=tx)
    while n[0] > 20:
        n[0] = n[0] - 7
    for k in range(tx, tx + 2):
        n[0] = n[0] + k
    if tx >= 30:
        return
    Y[tx] = count[0] + 1000 * n[0]
    """
    y = np.full(32, -1, np.int32)
    run_block(body, y, params="(Y: int32[32])")
    for t in range(30):
        count = sum(1 for k in range(10) if k <= t and k % 2 != t % 2)
        n = t
        while n > 20:
            n -= 7
        assert y[t] == count + 1000 * (n + t + t + 1), t
    assert (y[30:] == -1).all()


def test_when_every_thread_returned_the_block_is_done() -> None:
    text = """
    def f(Y: int32[4]):
        with kernel(blocks={bx: 4}, threads={tx: 8, ty: 1, tz: 1}):
            if bx * 8 + tx >= 16:
                return
            Y[bx] = 1
    """
    y = np.zeros(4, np.int32)
    run(text, y)
    np.testing.assert_array_equal(y, [1, 1, 0, 0])


def test_atomics_of_threads_take_turns() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, 200).astype(np.int32)
    text = """
    def f(X: int32[n], H: int32[8], P: int32[n], *, n: int32) -> P:
        with kernel(blocks={bx: (n + 31) // 32}, threads={tx: 32, ty: 1, tz: 1}):
            if bx * 32 + tx < n:
                place: int32 = atomic_add(H[X[bx * 32 + tx]], 1, "relaxed")
                P[bx * 32 + tx] = place
    """.replace("atomic_add(H[X[bx * 32 + tx]]", "atomic_add(H[X[bx * 32 + tx] : +1]")
    h = np.zeros(8, np.int32)
    (p,) = run(text, x, h)
    np.testing.assert_array_equal(h, np.bincount(x, minlength=8))
    expected = [int((x[:i] == x[i]).sum()) for i in range(200)]
    np.testing.assert_array_equal(p, expected)


def test_atomics_out_of_bounds_are_dropped() -> None:
    h = np.zeros(3, np.int32)
    run_block('atomic_add(H[tx - 1 : +1], tx, "relaxed")', h, params="(H: int32[3])", threads=8)
    np.testing.assert_array_equal(h, [1, 2, 3])


def test_a_float_atomic_add_rounds_in_the_order_of_threads() -> None:
    x = np.random.default_rng(3).standard_normal(32).astype(np.float32)
    s = np.zeros(1, np.float32)
    run_block('atomic_add(S[0 : +1], X[tx], "relaxed")', x, s, params="(X: float32[32], S: float32[1])")
    expected = np.float32(0)
    for value in x:
        expected = np.float32(expected + value)
    assert s[0] == expected


def test_tile_operators_under_a_thread_condition_run_once() -> None:
    body = """
    tile = shared(int32[8])
    if tx < 4:
        fill(destination=tile, value=int32(3))
        for i in parallel(8):
            tile[i] = tile[i] + i
    copy(source=tile, destination=Y)
    """
    (y,) = run_block(body, params="(Y: int32[8]) -> Y")
    np.testing.assert_array_equal(y, 3 + np.arange(8))


def test_tile_operators_on_local_arrays_run_in_each_thread() -> None:
    body = """
    mine = local(float32[4])
    copy(source=X[tx, :], destination=mine)
    most = local(float32[1])
    reduce(source=mine, destination=most, kind="max")
    Y[tx] = most[0]
    """
    x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    (y,) = run_block(body, x, params="(X: float32[32, 4], Y: float32[32]) -> Y")
    np.testing.assert_array_equal(y, x.max(axis=1))


def test_vectorized_loops_of_threads() -> None:
    body = """
    mine = local(float32[4])
    for v in vectorize(4):
        mine[v] = X[tx * 4 + v]
    for v in vectorize(4):
        Y[tx * 4 + v] = mine[v] * 2.0
    """
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    (y,) = run_block(body, x, params="(X: float32[128], Y: float32[128]) -> Y")
    np.testing.assert_array_equal(y, 2 * x)


def test_a_barrier_that_not_all_threads_reach() -> None:
    with pytest.raises(errors.DivergentThreads) as caught:
        run_block("if tx < 4:\n    sync_threads()", params="(Y: int32[8]) -> Y")
    assert caught.value.message == "only some of the block's threads reach sync_threads"
    assert caught.value.span is not None and caught.value.span.line == 5
    run_block("if tx < 99:\n    sync_threads()", params="(Y: int32[8]) -> Y")
    run_block("if tx > 3:\n    return\nsync_threads()", params="(Y: int32[8]) -> Y")


def test_threads_that_disagree_on_an_element() -> None:
    with pytest.raises(errors.ConflictingWrites):
        run_block("Y[tx // 2] = tx", params="(Y: int32[32]) -> Y")
    (y,) = run_block("Y[tx // 2] = tx // 2", params="(Y: int32[16]) -> Y")
    np.testing.assert_array_equal(y, np.arange(16))


def test_threads_read_only_what_is_written() -> None:
    body = "t = shared(int32[32])\nif tx != 5:\n    t[tx] = tx\n"
    run_block(body + "if tx != 5:\n    Y[tx] = t[tx]", params="(Y: int32[32]) -> Y")
    with pytest.raises(errors.UninitializedRead, match=r"t\[5\] is read but was never written"):
        run_block(body + "Y[tx] = t[31 - tx]", params="(Y: int32[32]) -> Y")
    with pytest.raises(errors.UninitializedRead, match=r"mine\[1\] is read but was never written"):
        run_block(
            "mine = local(int32[2])\nmine[tx % 2] = 1\nif tx == 7:\n    mine[0] = 2\nif tx == 8:\n    Y[0] = mine[1]",
            params="(Y: int32[32]) -> Y",
        )


def test_votes_over_tiles() -> None:
    body = """
    t = shared(int32[8])
    copy(source=X, destination=t)
    Y[0] = int32(any_of(t[0 : +8], dtype=bool))
    Y[1] = int32(all_of(t[0 : +8], dtype=bool))
    """
    for values in ([0] * 8, [1] * 8, [0] * 7 + [3]):
        (y,) = run_block(body, np.array(values, np.int32), params="(X: int32[8], Y: int32[2]) -> Y")
        np.testing.assert_array_equal(y, [any(values), all(values)])


def _texts(statements: set[Statement]) -> set[str]:
    return {f"{type(s).__name__}:{s.span.line}" for s in statements if s.span is not None}


def test_what_varies_spreads_through_values_conditions_and_loops() -> None:
    text = """
    def f(Y: int32[32], n: int32):
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            a = scalar(int32[1], initial=0)
            b = scalar(int32[1], initial=0)
            c = scalar(int32[1], initial=0)
            a[0] = bx
            for k in range(n):
                if k == tx:
                    b[0] = 1
                c[0] = c[0] + b[0]
            d: int32 = a[0]
            Y[tx] = c[0] + d
    """
    kernel = kernels(program(text))[0]
    varying = find_varying(kernel)
    assert {name.name for name in varying.names} == {"tx", "ty", "tz", "b", "c"}
    assert _texts(varying.lanes) == {"If:8", "Store:9", "Store:10", "Store:12"}
    loops = [s for s in walk(kernel) if isinstance(s, nodes.For)]
    assert loops[0] in varying.dependent and loops[0] not in varying.lanes


def test_nothing_varies_without_a_thread_index() -> None:
    text = """
    def f(Y: int32[32]):
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            a = local(int32[4])
            a[bx] = 3
            Y[bx] = a[bx]
    """
    kernel = kernels(program(text))[0]
    varying = find_varying(kernel)
    assert not varying.lanes and varying.names == set(kernel.thread_vars)


def test_votes_and_prints_of_local_arrays_are_one_a_thread() -> None:
    lines: list[str] = []
    body = """
    mine = local(int32[2])
    mine[0] = tx
    mine[1] = 0
    Y[tx] = int32(any_of(mine, dtype=bool))
    if tx > 1:
        print(mine)
    """
    (y,) = run_block(body, params="(Y: int32[4]) -> Y", threads=4, report=lines.append)
    np.testing.assert_array_equal(y, [0, 1, 1, 1])
    assert lines == ["[block 0, thread 2] mine[0:2] = 2 0", "[block 0, thread 3] mine[0:2] = 3 0"]


def test_a_local_view_of_a_tensor_promises_bounds() -> None:
    tensor, out = (Buffer(name, (4,), FLOAT32) for name in ("X", "Y"))
    view = Buffer("v", (4,), FLOAT32, scope="local", source=tensor)
    index = Var(INT32, "n")
    threads = (Var(INT32, "tx"), Var(INT32, "ty"), Var(INT32, "tz"))
    body = seq(
        Allocate(view), Store(view, (threads[0],), load(view, threads[0])), Store(out, (const(0),), load(view, index))
    )
    kernel = Kernel((Var(INT32, "bx"),), (1,), threads, (4, 1, 1), body)
    function = Function("f", (tensor, index, out), seq(kernel), outputs=(out,))
    assert interpret(function, [np.arange(4, dtype=np.float32), 2])[0][0] == 2
    with pytest.raises(errors.OutOfBounds, match=r"this reads v\[6\]"):
        interpret(function, [np.arange(4, dtype=np.float32), 6])


def test_an_extent_on_which_threads_disagree() -> None:
    with pytest.raises(errors.DivergentThreads, match="an extent, or the place of a tile, differs between threads"):
        run_block("for i in parallel(tx + 1):\n    Y[i] = i", params="(Y: int32[32]) -> Y")


def test_values_exchanged_within_a_warp() -> None:
    body = "Y[tx] = shuffle_xor(X[tx], 5)"
    x = np.arange(64, dtype=np.int32) * 3
    (y,) = run_block(body, x, params="(X: int32[64], Y: int32[64]) -> Y", threads=64)
    np.testing.assert_array_equal(y, x[np.arange(64) ^ 5])
    with pytest.raises(errors.DivergentThreads, match="shuffle_xor reads a thread that does not take part"):
        run_block("if tx < 7:\n    " + body, x, params="(X: int32[64], Y: int32[64]) -> Y", threads=64)
    (y,) = run_block("if tx < 32:\n    " + body, x, params="(X: int32[64], Y: int32[32]) -> Y", threads=64)
    np.testing.assert_array_equal(y, x[np.arange(32) ^ 5])
