"""``C = A @ B`` for floats and integers, dense: one kernel for every M."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.values import Tile
from tilewright.language.trace import PrimFunc, Undeclared
from tilewright.machine import Arch, has_tiles

MANY_ROWS = 128
"""Rows of a block of `linear` where a matrix unit takes them as fast as memory brings the weight."""
FEW_ROWS = 16
"""Up to here a block of `linear` has few rows, so that short batches clear and fill nothing for rows that do not
exist."""


def by_tiles(arch: Arch | None, dtype: str) -> bool:
    """Whether a processor's matrix unit multiplies matrices of a type."""
    return arch is not None and not arch.has_threads and has_tiles(arch, tilewright.dtype(dtype))


def run_length(dtype: str, K: int, arch: Arch | None) -> int:
    """Elements of k that a tile holds.

    512 bytes of them, so that a few columns of B stay in a first-level cache. A matrix unit reads both operands from
    the second one, and moves its sums after every tile: as many as 2 KB, no more than there are.
    """
    size = tilewright.dtype(dtype).storage_bytes
    if by_tiles(arch, dtype):
        return min(2048, -(-K * size // 64) * 64) // size
    return 512 // max(1, size, 4 if tilewright.dtype(dtype).is_float else 1)


def columns(arch: Arch | None) -> int:
    """Columns of a block: as many as leave the second-level cache of a core room for the rest, where there is one."""
    return 256 if arch is not None and not arch.has_threads and arch.l2_bytes >= 1 << 20 else 128


@tilewright.jit
def matmul(
    A: Undeclared,
    B: Undeclared,
    dtype: str = "float32",
    accumulate: str = "float32",
    out: str = "float32",
    transpose_B: bool = False,
    block_M: int = 256,
    block_N: int | None = None,
    block_K: int | None = None,
    threads: int = 128,
    num_stages: int = 2,
    cluster: tuple[int, int] | None = None,
) -> Tile | None:
    """Product of two matrices that the caller holds row by row.

    Parameters
    ----------
    A : ``[M, K]`` of `dtype`; any M.
    B : ``[K, N]``, or ``[N, K]`` where `transpose_B`.
    accumulate : type of the sums: ``"int32"`` for int8, else a float.
    out : type of the result.
    threads, num_stages : of a block, and of its pipeline, on a GPU.
    cluster : blocks along N and M that share loads on a GPU; None leaves it to the compiler, which does not join
        blocks along M, since there may be only one.

    Returns
    -------
    ``[M, N]`` of `out`.
    """
    N, K = T.const("N, K")
    block_K = block_K or run_length(dtype, K, T.machine())
    block_N = block_N or columns(T.machine())
    M = T.dynamic("M")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), out)
    tiles = T.ceildiv(N, block_N), T.ceildiv(M, block_M)
    with T.Kernel(*tiles, threads=threads, cluster_dims=cluster) as (bn, bm):
        a = T.alloc_shared((block_M, block_K), dtype)
        b = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
        c = T.alloc_fragment((block_M, block_N), accumulate)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[bm * block_M, k * block_K], a)
            T.copy(B[(bn * block_N, k * block_K) if transpose_B else (k * block_K, bn * block_N)], b)
            T.gemm(a, b, c, transpose_B=transpose_B)
        T.copy(c, C[bm * block_M, bn * block_N])
    return C


@tilewright.jit
def linear(
    N: int,
    K: int,
    dtype: str = "float32",
    accumulate: str = "float32",
    out: str = "float32",
    block_M: int | None = None,
    block_N: int = 96,
    block_K: int | None = None,
) -> PrimFunc:
    """``C = A @ W^T`` for a weight that is packed once (``kernel.pack(W=...)``) and used many times.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``.
    dtype, accumulate, out : types of A and W, of the sums, of C.

    Returns
    -------
    kernel of ``A[M, K]`` and ``W`` (packed), giving ``C[M, N]``; any M.
    """
    block_K = block_K or run_length(dtype, K, T.machine())
    block_M = block_M or (MANY_ROWS if by_tiles(T.machine(), dtype) else 64)
    M = T.dynamic("M")

    @T.macro
    def product(A: Tile, W: Tile, C: Tile, rows: int) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, rows), threads=128) as (bn, bm):
            a = T.alloc_shared((rows, block_K), dtype)
            w = T.alloc_shared((block_N, block_K), dtype)
            c = T.alloc_fragment((rows, block_N), accumulate)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[bm * rows, k * block_K], a)
                T.copy(W[bn * block_N, k * block_K], w)
                T.gemm(a, w, c, transpose_B=True)
            T.copy(c, C[bm * rows, bn * block_N])

    @T.prim_func
    def linear(A: T.Tensor((M, K), dtype), W: T.Packed((N, K), dtype), C: T.Tensor((M, N), out)):
        if M <= FEW_ROWS:
            product(A, W, C, FEW_ROWS)
        else:
            product(A, W, C, block_M)

    return linear
