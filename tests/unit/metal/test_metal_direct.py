"""Products whose operands simdgroups read from device memory, without a tile in threadgroup memory between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as of
from tilewright.targets.metal.front_end import complaints


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


@pytest.mark.sampled(8)
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
