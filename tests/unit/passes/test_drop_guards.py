"""Conditions that only repeat the bounds of tensors go, others stay; and accesses under either kind move vectors."""

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T

ROWS, COLUMNS = 45, 200


def masked(how, rows=ROWS, columns=COLUMNS):
    """Elements of a matrix under a condition; rows of `L` say where to, or that there is nowhere."""

    @T.prim_func
    def program(
        A: T.Tensor((rows, columns), "float16"), L: T.Tensor((rows,), "int32"), C: T.Tensor((rows, columns), "float16")
    ):
        with T.Kernel(T.ceildiv(columns, 128), T.ceildiv(rows, 32), threads=128) as (bx, by):
            for i, j in T.Parallel(32, 128):
                y, x = by * 32 + i, bx * 128 + j
                if how == "bounds":
                    if y < rows and x < columns:
                        C[y, x] = A[y, x] * 2
                elif how == "nested":
                    if y < rows and x < columns:
                        if y >= x:
                            C[y, x] = A[y, x] * 2
                        else:
                            C[y, x] = 1
                elif how == "a list":
                    if y < rows:
                        row = L[y]
                        if row >= 0:
                            C[row, x] = A[y, x] * 2
                elif how == "fewer rows":
                    if y < L[0] and x < columns:
                        C[y, x] = A[y, x] * 2
                elif how == "another row":
                    if y + 1 < rows:
                        C[y, x] = A[y + 1, x] * 2
                else:
                    last = columns - 1
                    if x < last:
                        C[y, x] = A[y, x] * 2

    return program


def expected(how, a, rows):
    result = np.zeros_like(a)
    i, j = np.indices(a.shape)
    if how == "bounds":
        return a * 2
    if how == "nested":
        return np.where(i >= j, a * 2, 1)
    if how == "a list":
        result[rows[rows >= 0]] = a[rows >= 0] * 2
    elif how == "fewer rows":
        result[: rows[0]] = a[: rows[0]] * 2
    elif how == "another row":
        result[:-1] = a[1:] * 2
    else:
        result[:, :-1] = a[:, :-1] * 2
    return result


@pytest.mark.parametrize("how", ["bounds", "nested", "a list", "fewer rows", "another row", "no column"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_masked_elements(how, dynamic):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((ROWS, COLUMNS)).astype(np.float16)
    rows = rng.permutation(ROWS).astype(np.int32)
    rows[0], rows[5:9] = 20, -1
    rows[rows == 20] = np.where(np.arange(ROWS) == 0, 20, -1)[rows == 20]
    sizes = (T.dynamic("rows"), T.dynamic("columns")) if dynamic else (ROWS, COLUMNS)
    program = masked(how, *sizes)
    for target in ("cpu", "cuda -arch=sm_90a"):
        kernel = tilewright.compile(program, target=target)
        for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
            c = np.zeros_like(a)
            run(a, rows, c)
            assert np.array_equal(c, expected(how, a, rows))
    text = kernel.get_kernel_source()
    assert how == "no column" or set(re.findall(r"\w+_fragment<\d+>", text)) == {
        "load_fragment<8>",
        "store_fragment<8>",
    }


def test_vectors_of_a_thread():
    """A loop of neighbours with a condition on each, as written by those who think in threads."""

    @T.prim_func
    def program(A: T.Tensor((1000,), "float32"), C: T.Tensor((1000,), "float32")):
        with T.Kernel(2, threads=128) as block:
            thread = T.get_thread_binding()
            for v in T.vectorized(4):
                if block * 512 + thread * 4 + v < 1000:
                    C[block * 512 + thread * 4 + v] = A[block * 512 + thread * 4 + v]

    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    a, c = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    kernel.emulate(a, c)
    assert np.array_equal(a, c)
    assert "load_fragment<4>" in kernel.get_kernel_source()


def test_what_a_tile_lacks_is_not_read():
    """Without the condition the tile would be read beyond its end."""

    @T.prim_func
    def program(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "float32")
            T.copy(A, tile)
            for i in T.Parallel(16):
                if i < 8:
                    C[i] = tile[i]

    shown = tilewright.compile(program, target="cuda -arch=sm_80").show_program("drop_guards")
    assert "if i < 8:" in shown


def test_division_by_what_is_loaded_keeps_its_condition():
    @T.prim_func
    def program(A: T.Tensor((100,), "int32"), B: T.Tensor((100,), "int32"), C: T.Tensor((100,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                if i < 100:
                    C[i] = A[i] // B[i]

    kernel = tilewright.compile(program, target="cpu")
    a, b, c = np.arange(100, dtype=np.int32), np.arange(1, 101, dtype=np.int32), np.zeros(100, np.int32)
    kernel(a, b, c)
    assert np.array_equal(c, a // b)
    assert "if i < 100:" in kernel.show_program("drop_guards")
