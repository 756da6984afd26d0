"""What words mean at their edges, in the interpreter and on the processor.

Each test's docstring is a statement on ``docs/language/edges.md``, which is made from this file; its name is the anchor there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import dtypes
from tilewright.language.trace import PrimFunc

INF, NAN = np.inf, np.nan


def results(program: PrimFunc, *arguments: np.ndarray) -> list[np.ndarray]:
    """The arguments after a run, which interpreter and processor agree on."""
    kernel = tilewright.compile(program, target="cpu")
    runs = []
    for run in (kernel.interpret, kernel):
        copies = [value.copy() for value in arguments]
        run(*copies)
        runs.append(copies)
    for interpreted, computed in zip(*runs, strict=True):
        np.testing.assert_array_equal(interpreted, computed)
    return runs[0]


def of_each(function: Callable[[Any], Any], values: list[float], dtype: str, result: str = "") -> list[float]:
    """The function of each value."""
    count, out = len(values), result or dtype

    @T.prim_func
    def program(A: T.Tensor((count,), dtype), C: T.Tensor((count,), out)):
        with T.Kernel(1):
            for i in T.Parallel(count):
                C[i] = function(A[i])

    given = np.array(values).astype(dtype)
    found: list[float] = results(program, given, np.zeros(count, out))[1].astype("float64").tolist()
    return found


def check(found: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(np.array(found, "float64"), np.array(expected, "float64"))


def reduced(word: str, rows: list[list[float]], **options: Any) -> list[float]:
    """Each row reduced, where the result's tile held 5."""
    shape = (len(rows), len(rows[0]))

    @T.prim_func
    def program(A: T.Tensor(shape, "float32"), C: T.Tensor(shape[:1], "float32")):
        with T.Kernel(1):
            tile = T.alloc_fragment(shape, "float32")
            result = T.alloc_fragment(shape[:1], "float32")
            T.copy(A, tile)
            T.fill(result, 5)
            getattr(T, word)(tile, result, dim=1, **options)
            T.copy(result, C)

    found: list[float] = results(program, np.array(rows, "float32"), np.zeros(shape[0], "float32"))[1].tolist()
    return found


# Beyond a tensor ------------------------------------------------------------------------------------------


def moved(start: int, safe: float | None = None) -> tuple[list[float], list[float]]:
    """1 to 5 copied from a place that the kernel computes, and 1 to 4 copied there into nines."""

    @T.prim_func
    def program(A: T.Tensor((5,), "float32"), S: T.Tensor((1,), "int32"), C: T.Tensor((4,), "float32"), D: T.Tensor((5,), "float32")):  # fmt: skip
        with T.Kernel(1):
            if safe is not None:
                T.annotate_safe_value({A: safe})
            tile = T.alloc_shared((4,), "float32")
            T.copy(A[S[0] : S[0] + 4], tile)
            T.copy(tile, C)
            T.copy(A[0:4], tile)
            T.copy(tile, D[S[0] : S[0] + 4])

    given = np.arange(1, 6, dtype="float32")
    nines = np.full(5, 9, "float32")
    _, _, read, written = results(program, given, np.array([start], "int32"), np.zeros(4, "float32"), nines)
    return read.tolist(), written.tolist()


def test_edge_reads_beyond() -> None:
    """Out-of-bounds reads of a tensor give 0, by `T.copy` and by elements."""
    assert moved(3)[0] == [4, 5, 0, 0] and moved(40)[0] == [0, 0, 0, 0]


@pytest.mark.parametrize("scope", ["alloc_shared", "alloc_fragment"])
def test_edge_larger_slices(scope: str) -> None:
    """Of a slice that is larger than a tile, `T.copy` moves as much as the tile has, from the slice's start on."""

    @T.prim_func
    def program(A: T.Tensor((2, 6, 7), "float32"), C: T.Tensor((2, 6, 7), "float32")):
        with T.Kernel(1):
            tile = getattr(T, scope)((3, 4), "float32")
            T.copy(A[1, 2:6, 1:7], tile)
            T.copy(tile, C[0, 1:6, 3:7])

    given, found = results(program, np.arange(84, dtype="float32").reshape(2, 6, 7), np.zeros((2, 6, 7), "float32"))
    expected = np.zeros_like(found)
    expected[0, 1:4, 3:7] = given[1, 2:5, 1:5]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("scope", ["alloc_shared", "alloc_fragment"])
def test_edge_slices_to_the_end(scope: str) -> None:
    """A slice that ends at its tensor's end may be smaller than a tile: the tile gets zeros behind it."""

    @T.prim_func
    def program(A: T.Tensor((3, 5), "float32"), C: T.Tensor((2, 5), "float32"), D: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            tile = getattr(T, scope)((8,), "float32")
            for i in T.serial(2):
                T.copy(A[i + 1, 2:], tile)
                T.copy(tile, C[i, :])
            T.copy(tile, D)

    given, rows, last = results(
        program, np.arange(15, dtype="float32").reshape(3, 5), *(np.full(n, 7, "float32") for n in ((2, 5), 8))
    )
    np.testing.assert_array_equal(rows, np.pad(given[1:, 2:], ((0, 0), (0, 2))))
    assert last.tolist() == [12, 13, 14, 0, 0, 0, 0, 0]


def test_slices_that_end_at_a_number_of_the_program_may_be_larger_than_a_tile_elsewhere() -> None:
    @T.prim_func
    def program(A: T.Tensor((5, 8), "float32"), n: T.Tensor((1,), "int32"), C: T.Tensor((4, 3), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4, 3), "float32")
            T.copy(A[0 : n[0], 2:8], tile)
            T.copy(tile, C)

    *_, found = results(program, np.ones((5, 8), "float32"), np.array([3], "int32"), np.full((4, 3), 7, "float32"))
    assert found.tolist() == [[1, 1, 1]] * 3 + [[0, 0, 0]]


def test_edge_negative_starts() -> None:
    """A region that begins before the tensor reads 0 there, where the kernel computes its start."""
    assert moved(-2)[0] == [0, 0, 1, 2]


def test_edge_negative_constants() -> None:
    """A negative index that is a known number counts from the end, as in NumPy; one beyond the tensor is an error, and so is
    a region that begins there and passes the end: only a start that the kernel computes lies before the tensor."""

    @T.prim_func
    def program(A: T.Tensor((5,), "float32"), C: T.Tensor((3,), "float32")):
        with T.Kernel(1):
            C[0] = A[-2]
            T.copy(A[-2], C[1:3])

    assert list(results(program, np.arange(1, 6, dtype="float32"), np.zeros(3, "float32"))[1]) == [4, 4, 5]
    with pytest.raises(tilewright.TilewrightError, match="pass the end of dimension 0 of 'A'"):

        @T.prim_func
        def passing(A: T.Tensor((5,), "float32"), C: T.Tensor((3,), "float32")):
            with T.Kernel(1):
                T.copy(A[-2], C)

    with pytest.raises(tilewright.TilewrightError, match="out of range"):

        @T.prim_func
        def beyond(A: T.Tensor((5,), "float32"), C: T.Tensor((1,), "float32")):
            with T.Kernel(1):
                C[0] = A[-6]


def test_edge_negative_indices() -> None:
    """An index that is negative whatever its loops, its thread and its block are counts from the end as well; where a
    larger grid could make it positive, it lies before the tensor."""

    @T.prim_func
    def program(A: T.Tensor((5,), "int32"), C: T.Tensor((4, 5), "int32")):
        with T.Kernel(1, threads=32) as bx:
            tile = T.alloc_shared((5,), "int32")
            T.copy(A, tile)
            for i in T.Parallel(5):
                C[0, i] = A[-1 - i]
                C[1, -1 - i] = tile[i - 5]
            for i in T.serial(5):
                C[2, -i - 1] = tile[-i - 1]
                C[3, i] = A[bx * 5 + i - 5]

    given = np.arange(1, 6, dtype="int32")
    wanted = [[5, 4, 3, 2, 1], [5, 4, 3, 2, 1], [1, 2, 3, 4, 5], [0] * 5]
    assert results(program, given, np.full((4, 5), 9, "int32"))[1].tolist() == wanted


def test_edge_writes_beyond() -> None:
    """Writes beyond a tensor, before it too, are dropped."""
    assert moved(3)[1] == [9, 9, 9, 1, 2] and moved(-2)[1] == [3, 4, 9, 9, 9]


def test_edge_safe_values() -> None:
    """`T.annotate_safe_value` sets the value of out-of-bounds reads in place of 0."""
    assert moved(3, safe=-1.0)[0] == [4, 5, -1, -1]


def test_edge_empty_tensors() -> None:
    """A tensor may have no elements: nothing is read, nothing is written, results are empty."""

    @tilewright.jit(target="cpu")
    def doubled(X):
        N = T.dynamic("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        with T.Kernel(T.ceildiv(N, 16)) as block:
            for i in T.Parallel(16):
                Y[block * 16 + i] = X[block * 16 + i] * 2
        return Y

    empty = np.zeros(0, "float32")
    assert doubled(empty).shape == (0,) and doubled.interpret(empty).shape == (0,)


def test_edge_empty_tiles() -> None:
    """A tile with an extent of 0 stands for one that a kernel leaves out: it is an error to use it."""
    with pytest.raises(tilewright.TilewrightError, match=r"extent of .* is 0"):

        @T.prim_func
        def program(A: T.Tensor((5,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((2, 0), "float32")
                A[0] = tile[0, 0]


def test_edge_unwritten_tiles() -> None:
    """A new tile is uninitialised: the interpreter reports reads of elements that were never written."""

    @T.prim_func
    def program(C: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4,), "float32")
            T.copy(tile, C)

    with pytest.raises(tilewright.TilewrightError, match="never written"):
        tilewright.compile(program, target="cpu").interpret(np.zeros(4, "float32"))


@pytest.mark.parametrize(("dtype", "shown"), [("float32", NAN), ("int8", -86 + 2), ("float8_e4m3fn", NAN)])
def test_edge_new_results(dtype: str, shown: float) -> None:
    """What `T.empty` makes has no numbers yet: interpreter and emulator fill it with NaN, and integers with bytes of 0xAA."""

    @tilewright.jit
    def twice(A: Any) -> Any:
        A: T.Tensor((4,), dtype)
        B = T.empty((4,), dtype)
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = T.cast(T.cast(B[i], "float32") + T.cast(A[i], "float32"), dtype)
        return B

    given = np.full(4, 2).astype(dtypes.dtype(dtype).numpy)
    kernel = twice.on("cuda -arch=sm_80").compile(given)
    for run in (kernel.interpret, kernel.emulate):
        check(run(given).astype("float64").tolist(), [shown] * 4)


# Loops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bounds", [(0, 8, 3), (8, 0, -3), (15, -1, -1), (2, 15, 7), (0, 8, -1), (8, 0, 1), (3, 3, 2), (1, 9, 0)]
)
def test_edge_steps(bounds: tuple[int, int, int]) -> None:
    """A loop's step that only the program knows may be negative, as in Python; of a step of 0 there are no iterations."""

    @T.prim_func
    def program(start: T.int32, stop: T.int32, step: T.int32, C: T.Tensor((16,), "int32")):
        with T.Kernel(1):
            number = T.alloc_var("int32", init=1)
            for i in range(start, stop, step):
                C[i] = number
                number += 1

    expected = [0] * 16
    for number, place in enumerate(range(*bounds) if bounds[2] else (), 1):
        expected[place] = number
    kernel = tilewright.compile(program, target="cpu")
    for run in (kernel.interpret, kernel, tilewright.compile(program, target="cuda -arch=sm_90a").emulate):
        found = np.zeros(16, np.int32)
        run(*bounds, found)
        check(found.tolist(), expected)


# Reductions -----------------------------------------------------------------------------------------------


def test_edge_dim_of_slices() -> None:
    """`dim` counts the buffer's own dimensions: in `g[c % 2, :, :]` the index is dimension 0, of extent 1.

    The destination may leave out dimensions of extent 1.
    """
    values = np.arange(64, dtype="float32").reshape(2, 4, 8)
    for dim, expected in ((1, values[0].sum(0)), (2, values[0].sum(1)), (-1, values[0].sum(1))):
        extent = len(expected)

        @T.prim_func
        def program(A: T.Tensor((2, 4, 8), "float32"), C: T.Tensor((extent,), "float32")):
            with T.Kernel(1):
                g = T.alloc_shared((2, 4, 8), "float32")
                sums = T.alloc_fragment((extent,), "float32")  # noqa: B023
                T.copy(A, g)
                for c in T.serial(3):
                    T.reduce_sum(g[c % 2, :, :], sums, dim=dim)  # noqa: B023
                T.copy(sums, C)

        np.testing.assert_array_equal(results(program, values, np.zeros(extent, "float32"))[1], expected)


def test_edge_nan_in_extremes() -> None:
    """The greatest, least and greatest absolute element leave NaN out; where all are NaN, so is the result."""
    for word in ("reduce_max", "reduce_min", "reduce_absmax"):
        check(reduced(word, [[NAN, 1.0], [NAN, NAN]]), [1, NAN])


def test_edge_nan_in_sums() -> None:
    """A sum with a NaN is NaN."""
    check(reduced("reduce_sum", [[NAN, 1.0], [1.0, 2.0]]), [NAN, 3])


def test_edge_reductions_into() -> None:
    """`clear=False` combines with what the destination holds."""
    check(reduced("reduce_max", [[1.0, 9.0], [1.0, 2.0]], clear=False), [9, 5])
    check(reduced("reduce_sum", [[1.0, 9.0], [1.0, 2.0]], clear=False), [15, 8])


def test_edge_positions() -> None:
    """`T.reduce_argmax` gives the first of equal elements, and the first NaN where there is one."""

    @T.prim_func
    def program(A: T.Tensor((2, 4), "float32"), C: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            tile, places = T.alloc_fragment((2, 4), "float32"), T.alloc_fragment((2,), "int32")
            T.copy(A, tile)
            T.reduce_argmax(tile, places, dim=1)
            T.copy(places, C)

    given = np.array([[1, 3, 3, 2], [1, 3, NAN, NAN]], "float32")
    assert results(program, given, np.zeros(2, "int32"))[1].tolist() == [1, 2]


def test_edge_running_sums() -> None:
    """`T.cumsum` includes the element itself; `reverse=True` begins at the last."""
    for reverse, expected in ((False, [1, 3, 6]), (True, [6, 5, 3])):

        @T.prim_func
        def program(A: T.Tensor((3,), "float32"), C: T.Tensor((3,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((3,), "float32")
                T.copy(A, tile)
                T.cumsum(tile, dim=0, reverse=reverse)  # noqa: B023
                T.copy(tile, C)

        assert results(program, np.arange(1, 4, dtype="float32"), np.zeros(3, "float32"))[1].tolist() == expected


# Scalars --------------------------------------------------------------------------------------------------


def test_edge_integer_overflow() -> None:
    """Integers wrap around in their own type: `int8` 127 + 1 is -128."""
    check(of_each(lambda x: x + 1, [127, -128], "int8"), [-128, -127])
    check(of_each(lambda x: x + 1, [2**31 - 1], "int32"), [-(2**31)])


def test_edge_signed_overflow() -> None:
    """A sum or product of `int32` or `int64` that overflows wraps around when it is stored. Comparisons and divisions may assume that it does not overflow, like indices: compute hashes in unsigned integers."""
    check(of_each(lambda x: T.if_then_else(x + 1 > x, 1, 0), [2**32 - 1, 5], "uint32"), [0, 1])
    check(of_each(lambda x: x * 6 // 3, [2**31 + 1, 5], "uint32"), [2, 10])


def test_edge_narrow_products() -> None:
    """The result of an operation on two `int8` is `int8`, whatever it is assigned to: convert them first."""
    check(of_each(lambda x: x * x, [127, -128], "int8", "int32"), [1, 0])
    check(of_each(lambda x: T.cast(x, "int32") * T.cast(x, "int32"), [127, -128], "int8", "int32"), [16129, 16384])


def test_edge_abs_of_least() -> None:
    """`T.abs` of the least integer is that integer."""
    check(of_each(T.abs, [-(2**31), -5], "int32"), [-(2**31), 5])


def test_edge_floats_to_integers() -> None:
    """`T.cast` from a float to an integer truncates and saturates; NaN becomes 0."""
    check(of_each(lambda x: T.cast(x, "int8"), [300, -300, 1.9, -1.9, INF, NAN], "float32", "int8"), [127, -128, 1, -1, 127, 0])  # fmt: skip
    check(of_each(lambda x: T.cast(x, "uint8"), [300, -300, -0.9, NAN], "float32", "uint8"), [255, 0, 0, 0])


def test_edge_integers_to_integers() -> None:
    """`T.cast` from an integer to a narrower one keeps the low bits."""
    check(of_each(lambda x: T.cast(x, "int8"), [300, -300, 128], "int32", "int8"), [44, -44, -128])


def test_edge_floats_to_halves() -> None:
    """A float32 beyond the range of float16 becomes an infinity."""
    check(of_each(lambda x: T.cast(x, "float16"), [70000, -70000, 65519], "float32", "float16"), [INF, -INF, 65504])


def test_edge_fused_halves() -> None:
    """`T.fma` rounds once, to its own type: a `bfloat16` 7 * 37 - 2**-60 is 258, where 259 would become 260."""
    check(of_each(lambda x: T.fma(7, 37, x), [0, 2.0**-60, -(2.0**-60), -(2.0**-10)], "bfloat16"), [260, 260, 258, 258])
    check(of_each(lambda x: T.fma(41, 53, x), [0, 2.0**-20, -(2.0**-20)], "float16"), [2172, 2174, 2172])


def test_edge_floats_to_bytes() -> None:
    """A number beyond the range of an 8-bit float becomes its largest one, unless `saturate=False`."""
    for saturate, largest in ((True, 448), (False, NAN)):
        found = of_each(
            lambda x: T.cast(T.cast(x, "float8_e4m3fn", saturate=saturate), "float32"),  # noqa: B023
            [1e9, 448, 1.0],
            "float32",
        )
        check(found, [largest, 448, 1])


def test_edge_nan_in_max() -> None:
    """`T.max` and `T.min` of a number and NaN are the number; `T.clamp` of NaN is the lower bound."""
    check(of_each(lambda x: T.max(x, 1.0), [NAN, 0.0, 2.0], "float32"), [1, 1, 2])
    check(of_each(lambda x: T.min(x, 1.0), [NAN, 0.0, 2.0], "float32"), [1, 0, 1])
    check(of_each(lambda x: T.clamp(x, 0.0, 1.0), [NAN, -1.0, 2.0], "float32"), [0, 0, 1])


def test_edge_floor_division() -> None:
    """`//` rounds down and `%` has the sign of the divisor, as in Python."""
    check(of_each(lambda x: T.floordiv(x, 4), [-7, 7], "int32"), [-2, 1])
    check(of_each(lambda x: T.floormod(x, 4), [-7, 7], "int32"), [1, 3])
    check(of_each(lambda x: T.floormod(x, -4), [-7, 7], "int32"), [-3, -1])


def test_edge_rounding() -> None:
    """`T.round` rounds ties to even."""
    check(of_each(T.round, [0.5, 1.5, 2.5, -1.5], "float32"), [0, 2, 2, -2])


def test_edge_division_by_zero() -> None:
    """A float divided by 0 is an infinity with the signs of both, or NaN of 0; the square root of a negative number is NaN."""
    check(of_each(lambda x: 1 / x, [0.0, -0.0], "float32"), [INF, -INF])
    check(of_each(lambda x: x / x, [0.0, 2.0], "float32"), [NAN, 1])
    check(of_each(T.sqrt, [-1.0, 4.0], "float32"), [NAN, 2])


def test_edge_choices() -> None:
    """`T.if_then_else` evaluates only the branch taken: 7 // 0 is not computed."""
    check(of_each(lambda x: T.if_then_else(x != 0, 7 // x, -1), [0, 2], "int32"), [-1, 3])


def test_edge_shifts() -> None:
    """`>>` of a signed integer keeps its sign."""
    check(of_each(lambda x: T.shift_right(x, 1), [-3, 3], "int32"), [-2, 1])


def test_edge_bits_of_zero() -> None:
    """`T.clz` of 0 is 32, `T.popcount` of -1 is its width."""
    check(of_each(T.clz, [0, 1], "int32"), [32, 31])
    check(of_each(T.popcount, [-1, 0], "int32"), [32, 0])


def test_sizes_that_share_a_name_join_tuples_on_either_side() -> None:
    @tilewright.jit(target="cpu")
    def kernel(A: object) -> object:
        sizes = T.const("M, N")
        A: T.Tensor((2,) + sizes, "float32")  # noqa: RUF005
        O = T.empty(sizes + (2,), "float32")  # noqa: RUF005
        with T.Kernel(1):
            for i, j, k in T.Parallel(*sizes, 2):
                O[i, j, k] = A[k, i, j]
        return O

    given = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(kernel(given), given.transpose(1, 2, 0))
