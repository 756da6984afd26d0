"""Sums of a parallel loop's iterations in elements that several of them share: all of them are in the result."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ("cpu", "cuda -arch=sm_90a", "cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7")
ROWS, COLUMNS = 8, 48


def over_columns(how, scope, dtype):
    """Sums in one element a row, which lies in a tile or a tensor."""

    @T.prim_func
    def program(A: T.Tensor((ROWS, COLUMNS), dtype), B: T.Tensor((ROWS,), dtype), C: T.Tensor((ROWS, COLUMNS), dtype)):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((ROWS, COLUMNS), dtype)
            T.copy(A, x)
            s = B if scope == "global" else T.alloc_buffer((ROWS,), dtype, scope=scope)
            if scope != "global":
                T.copy(B, s)
            for i, j in T.Parallel(ROWS, COLUMNS):
                if how == "sum":
                    s[i] += x[i, j]
                elif how == "greatest":
                    s[i] = T.max(s[i], x[i, j])
                elif how == "difference":
                    s[i] -= x[i, j]
                elif how == "all in one":
                    s[0] += A[i, j]
                elif how == "condition":
                    if x[i, j] > 0:
                        s[i] += x[i, j]
                elif how == "choice":
                    s[i] = T.if_then_else(x[i, j] > 0, s[i] + x[i, j], s[i])
                elif how == "product":
                    s[i] *= T.if_then_else(A[i, j] > 0, T.cast(-1, dtype), T.cast(1, dtype))
                elif how == "beside other work":
                    C[i, j] = x[i, j] * 2
                    s[i] += x[i, j] + 1
                    s[7 - i] += 1
                else:
                    doubled = x[i, j] * 2
                    for k in T.serial(3):
                        if i + k < 9:
                            s[i] += doubled
            if scope != "global":
                T.copy(s, B)

    return program


EXPECTED = {
    "sum": lambda a, b: b + a.sum(1),
    "greatest": lambda a, b: np.maximum(b, a.max(1)),
    "difference": lambda a, b: b - a.sum(1),
    "all in one": lambda a, b: b + a.sum() * (np.arange(ROWS) == 0),
    "condition": lambda a, b: b + np.where(a > 0, a, 0).sum(1),
    "choice": lambda a, b: b + np.where(a > 0, a, 0).sum(1),
    "product": lambda a, b: b * np.where(a > 0, -1, 1).prod(1),
    "beside other work": lambda a, b: b + a.sum(1) + 2 * COLUMNS,
    "several times": lambda a, b: b + (2 * a).sum(1) * np.minimum(9 - np.arange(ROWS), 3),
}


def check(program, target, given, expected):
    """The interpreter, and the processor or the emulator, have the expected numbers exactly."""
    kernel = tilewright.compile(program, target=target)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        arguments = [array.copy() for array in given]
        run(*arguments)
        for found, wanted in zip(arguments, expected, strict=True):
            if wanted is not None:
                np.testing.assert_array_equal(found, wanted)


def whole_numbers(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("scope", ["local.fragment", "shared", "global"])
@pytest.mark.parametrize("how", EXPECTED)
def test_all_iterations_are_in_the_sum(how, scope, dtype, target):
    """Each machine had numbers of its own, then it was refused: one iteration's addition may be lost in another's."""
    a, b = whole_numbers(ROWS, COLUMNS, dtype=dtype), whole_numbers(ROWS, dtype=dtype)
    expected = EXPECTED[how](a.astype(np.float64), b.astype(np.float64))
    check(over_columns(how, scope, dtype), target, (a, b, np.zeros_like(a)), (a, expected, None))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [8, 64])
def test_a_product_of_matrices_by_a_loop_over_three_indices(size, target):
    """What all iterations add is a tile, or too much for one: then each thread adds in order."""

    @T.prim_func
    def program(A: T.Tensor((size, size), "float32"), B: T.Tensor((size, size), "float32"),
                C: T.Tensor((size, size), "float32")):  # fmt: skip
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((size, size), "float32"), T.alloc_shared((size, size), "float32")
            c = T.alloc_fragment((size, size), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            for i, j, k in T.Parallel(size, size, size):
                c[i, j] += a[i, k] * b[k, j]
            T.copy(c, C)

    a = whole_numbers(size, size)
    check(program, target, (a, a.T.copy(), np.zeros_like(a)), (a, a.T, a @ a.T))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["diagonals", "rows by number", "a size known at launch", "a condition", "never"])
def test_places_that_the_variables_share_or_numbers_decide(how, target):
    n = T.dynamic("n")

    @T.prim_func
    def program(I: T.Tensor((8,), "int32"), B: T.Tensor((8, n), "float32"), C: T.Tensor((24,), "float32")):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(8, n if how in ("a size known at launch", "a condition") else 16):
                if how == "never":
                    if i > 9:
                        C[i + j] += B[i, j]
                elif how == "a condition":
                    if B[i, j] > 0:
                        C[i] += B[i, j]
                elif how == "diagonals":
                    C[i + j] += B[i, j]
                elif how == "rows by number":
                    row = I[i]
                    C[row] += B[i, j]
                else:
                    C[i] += B[i, j]

    numbers, b, c = np.array([1, 5, 1, 23, 5, 1, 0, 2], np.int32), whole_numbers(8, 16), whole_numbers(24)
    rows = np.arange(8)[:, None] + np.zeros(16, int)
    places = {"diagonals": rows + np.arange(16), "rows by number": numbers[rows]}.get(how, rows)
    expected = c.copy()
    np.add.at(expected, places, {"a condition": np.maximum(b, 0), "never": 0 * b}.get(how, b))
    check(program, target, (numbers, b, c), (numbers, b, expected))


SCATTERED = ("a sum", "wider", "a difference", "greatest", "a choice", "a remainder", "several", "neighbours", "a name")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scope", ["shared", "global"])
@pytest.mark.parametrize(
    ("how", "dtype"),
    [*((how, "float32") for how in SCATTERED), ("a sum", "float16"), ("wider", "float16"), ("greatest", "int32")],
)
def test_sums_at_places_that_numbers_decide(how, dtype, scope, target):
    """Threads overtook each other's sums, and the interpreter, which said so, took none."""

    @T.prim_func
    def program(I: T.Tensor((96,), "int32"), X: T.Tensor((96,), dtype), B: T.Tensor((8,), dtype), n: T.int32):
        with T.Kernel(1, threads=32):
            s = B if scope == "global" else T.alloc_shared((8,), dtype)
            if scope == "shared":
                T.copy(B, s)
            for i in T.Parallel(96):
                if how == "a sum":
                    s[I[i]] += X[i]
                elif how == "wider":
                    s[I[i]] += T.cast(X[i], "float32")
                elif how == "a difference":
                    s[I[i]] -= X[i]
                elif how == "greatest":
                    s[I[i]] = T.max(s[I[i]], X[i])
                elif how == "a choice":
                    s[I[i]] = T.if_then_else(X[i] > 0, s[I[i]] + X[i], s[I[i]])
                elif how == "a remainder":
                    s[i % n] += X[i]
                elif how == "a name":
                    place = T.alloc_var("int32")
                    place = I[i]
                    s[place] += X[i]
                else:
                    for k in T.serial(2):
                        s[i // 16 + k if how == "neighbours" else (I[i] + k) % 8] += X[i]
            if scope == "shared":
                T.copy(s, B)

    random = np.random.default_rng(3)
    numbers, x, b = (
        random.integers(0, 8, 96).astype(np.int32),
        whole_numbers(96, dtype=dtype),
        whole_numbers(8, dtype=dtype),
    )
    places = {"a remainder": np.arange(96) % 5, "neighbours": np.arange(96) // 16}.get(how, numbers)
    expected = b.astype(np.float64)
    combine = {"greatest": np.maximum, "a difference": np.subtract}.get(how, np.add)
    combine.at(expected, places, np.maximum(x, 0) if how == "a choice" else x)
    if how in ("several", "neighbours"):
        np.add.at(expected, (places + 1) % 8, x)
    kernel = tilewright.compile(program, target=target)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        found = b.copy()
        run(numbers, x, found, 5)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_a_product_that_lies_in_fragments(target):
    @T.prim_func
    def program(A: T.Tensor((32, 32), "float16"), S: T.Tensor((32,), "float32"), G: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=128):
            a, c = T.alloc_shared((32, 32), "float16"), T.alloc_fragment((32, 32), "float32")
            rows, columns = T.alloc_fragment((32,), "float32"), T.alloc_fragment((32,), "float32")
            greatest = T.alloc_fragment((1,), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            T.clear(rows)
            T.clear(columns)
            T.clear(greatest)
            for i, j in T.Parallel(32, 32):
                c[i, j] = c[i, j] * 2
            for i, j in T.Parallel(32, 32):
                rows[i] += c[i, j] * 0.5
                columns[j] += c[i, j]
                greatest[0] = T.max(greatest[0], c[i, j])
            for i in T.Parallel(32):
                S[i] = rows[i] + columns[i]
            G[0] = greatest[0]

    a = whole_numbers(32, 32, dtype=np.float16)
    product = 2 * (a.astype(np.float32) @ a.astype(np.float32))
    expected = product.sum(1) / 2 + product.sum(0), np.maximum(product.max().reshape(1), 0)
    check(program, target, (a, np.zeros(32, np.float32), np.zeros(1, np.float32)), (None, *expected))
