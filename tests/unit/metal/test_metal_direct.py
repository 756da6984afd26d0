"""Products whose operands simdgroups read from device memory, without a tile in threadgroup memory between, and whose sums they
store as whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from front_end import complaints

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as of


def product(M: int, N: int, K: int, dtype: str, layout: str, tile: tuple[int, int, int], safe: float = 0.0) -> Any:
    """``C = A B`` in tiles, operands in any order of their dimensions, edges within tiles."""
    rows, columns, depth = tile
    a_shape, b_shape = (M, K) if layout[0] == "n" else (K, M), (K, N) if layout[1] == "n" else (N, K)

    @T.prim_func
    def direct(A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            c = T.alloc_fragment((rows, columns), "float32")
            if safe:
                T.annotate_safe_value({A: safe})
            T.clear(c)
            for k in T.serial(T.ceildiv(K, depth)):
                y, x, z = by * rows, bx * columns, k * depth
                a = A[y : y + rows, z : z + depth] if layout[0] == "n" else A[z : z + depth, y : y + rows]
                b = B[z : z + depth, x : x + columns] if layout[1] == "n" else B[x : x + columns, z : z + depth]
                T.gemm(a, b, c, transpose_A=layout[0] == "t", transpose_B=layout[1] == "t")
            T.copy(c, C[by * rows, bx * columns])

    return direct


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (50, 72, 40), (33, 31, 29), (1, 64, 8)])
def test_operands_lie_in_device_memory(sizes: tuple[int, int, int], dtype: str, layout: str) -> None:
    M, N, K = sizes
    kernel = tilewright.compile(product(M, N, K, dtype, layout, (32, 32, 16)), target="metal -arch=apple9")
    text = kernel.get_kernel_source()
    assert (
        "tw::simdgroup_product(" in text and "shared_memory" not in text and "sync_" not in text.split("kernel void")[1]
    )
    assert not complaints(text)
    rng = np.random.default_rng(M)
    a, b = (rng.integers(-4, 5, shape).astype(of(dtype).numpy) for shape in ((M, K), (K, N)))
    c = np.full((M, N), 77, np.float32)
    given = [np.ascontiguousarray(one.T if turned == "t" else one) for one, turned in zip((a, b), layout)]
    kernel.emulate(*given, c)
    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_lanes_read_two_neighbours_at_once_where_rows_allow_it() -> None:
    def reads(K: int) -> str:
        kernel = tilewright.compile(product(64, 64, K, "float16", "nt", (32, 32, 16)), target="metal -arch=apple9")
        return kernel.get_kernel_source().split("kernel void")[1]

    assert "tw::load_fragment<2>(A_a" in reads(64) and "tw::load_fragment" not in reads(63)


def test_what_is_read_beyond_a_tensor_is_the_authors_number() -> None:
    M, N, K = 20, 32, 20
    kernel = tilewright.compile(product(M, N, K, "float16", "nn", (32, 32, 32), safe=2.0), target="metal -arch=apple7")
    a, b, c = np.ones((M, K), np.float16), np.ones((K, N), np.float16), np.zeros((M, N), np.float32)
    kernel.emulate(a, b, c)
    expected, interpreted = np.full((M, N), 20.0), np.zeros_like(c)
    kernel.interpret(a, b, interpreted)
    assert np.array_equal(c, expected) and np.array_equal(interpreted, expected)  # b is zero there


def stored(M: int, N: int, out: str, tile: tuple[int, int], by: str, apart: int = 0) -> Any:
    """Sums of a product with one to `C`, by way of a tile or not, behind an epilogue."""
    rows, columns = tile

    @T.prim_func
    def stores(
        A: T.Tensor((M, 16), "float16"),
        B: T.Tensor((N, 16), "float16"),
        C: T.StridedTensor((M, N), (N + apart, 1), out),
    ):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=64) as (bx, by_):
            c = T.alloc_fragment((rows, columns), "float32")
            T.clear(c)
            T.gemm(
                A[by_ * rows : by_ * rows + rows, 0:16],
                B[bx * columns : bx * columns + columns, 0:16],
                c,
                transpose_B=True,
            )
            for i, j in T.Parallel(rows, columns):
                c[i, j] = c[i, j] * 2.0 + 1.0
            if by == "tile":
                staged = T.alloc_shared((rows, columns), out)
                T.copy(c, staged)
                T.copy(staged, C[by_ * rows, bx * columns])
            elif by == "loop":
                for i, j in T.Parallel(rows, columns):
                    C[by_ * rows + i, bx * columns + j] = T.max(c[i, j], -3.0)
            else:
                T.copy(c, C[by_ * rows, bx * columns])

    return stores


@pytest.mark.parametrize("by", ["copy", "loop", "tile"])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("sizes", "apart"), [((64, 64), 0), ((50, 72), 0), ((33, 31), 0), ((1, 64), 3), ((40, 48), 5), ((7, 7), 0)]
)
@pytest.mark.parametrize("tile", [(32, 32), (16, 24)])
def test_sums_are_stored_as_matrices(
    sizes: tuple[int, int], apart: int, out: str, by: str, tile: tuple[int, int]
) -> None:
    M, N = sizes
    kernel = tilewright.compile(stored(M, N, out, tile, by, apart), target="metal -arch=apple9")
    text = kernel.get_kernel_source()
    assert not complaints(text)
    inside = M >= 8 and N >= 8  # a tensor that is smaller than a matrix never has a whole one
    assert ("tw::simdgroup_store(" in text.split("kernel void")[1]) or (by != "tile" and not inside)
    rng = np.random.default_rng(N)
    a, b = rng.integers(-4, 5, (M, 16)).astype(np.float16), rng.integers(-4, 5, (N, 16)).astype(np.float16)
    c = np.full((M, N + apart), 77, of(out).numpy)
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64).T) + 1
    expected = (np.maximum(expected, -3) if by == "loop" else expected).astype(of(out).numpy)
    held, interpreted = c[:, :N], np.zeros((M, N + apart), of(out).numpy)[:, :N]
    kernel.emulate(a, b, held)
    kernel.interpret(a, b, interpreted)
    assert np.array_equal(held, expected) and np.array_equal(interpreted, expected)
    assert (c[:, N:].astype(np.float32) == 77).all()


def test_what_is_no_matrix_in_memory_goes_by_threads() -> None:
    """Rows at places that memory says, columns turned, elements that a condition leaves out."""

    @T.prim_func
    def scattered(A: T.Tensor((32, 16), "float16"), W: T.Tensor((32,), "int32"), C: T.Tensor((3, 32, 32), "float32")):
        with T.Kernel(1, threads=64):
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            T.gemm(A[0:32, 0:16], A[0:32, 0:16], c, transpose_B=True)
            for i, j in T.Parallel(32, 32):
                C[0, W[i], j] = c[i, j]
            for i, j in T.Parallel(32, 32):
                C[1, j, i] = c[i, j]
            for i, j in T.Parallel(32, 32):
                if i % 3 != 0:
                    C[2, i, j] = c[i, j]

    kernel = tilewright.compile(scattered, target="metal -arch=apple7")
    assert "simdgroup_store" not in kernel.get_kernel_source().split("kernel void")[1]
    rng = np.random.default_rng(0)
    a, w, c = (
        rng.integers(-4, 5, (32, 16)).astype(np.float16),
        rng.permutation(32).astype(np.int32),
        np.zeros((3, 32, 32), np.float32),
    )
    kernel.emulate(a, w, c)
    whole = a.astype(np.float64) @ a.astype(np.float64).T
    assert np.array_equal(c[0][w], whole) and np.array_equal(c[1], whole.T)
    assert np.array_equal(c[2], np.where(np.arange(32)[:, None] % 3, whole, 0))


@pytest.mark.parametrize("out", ["tfloat32", "float8_e4m3fn", "int32"])
def test_types_that_matrices_lack_go_by_threads(out: str) -> None:
    kernel = tilewright.compile(stored(50, 40, out, (32, 32), "copy"), target="metal -arch=apple7")
    text = kernel.get_kernel_source()
    assert not complaints(text) and "tw::simdgroup_store" not in text.split("kernel void")[1]
    a, b = np.ones((50, 16), np.float16), np.ones((40, 16), np.float16)
    c = np.zeros((50, 40), np.float32 if out == "tfloat32" else of(out).numpy)
    kernel.emulate(a, b, c)
    assert (c.astype(np.float64) == (32 if out == "float8_e4m3fn" else 33)).all()
