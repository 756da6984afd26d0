"""RMS norm: each row divided by its root mean square, times a weight."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.rows import rows_at_once
from tilewright.kernels.values import Tile
from tilewright.language.trace import Undeclared
from tilewright.runtime.tensors import Array


def rms_norm(X: Array, weight: Array, eps: float = 1e-6, dtype: str = "float32") -> Array:
    """``X / sqrt(mean(X**2) + eps) * weight`` along the last dimension, in float32 inside.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    Parameters
    ----------
    X : ``[M, N]`` of `dtype`; any M and N.
    weight : ``[N]`` of `dtype`.

    Returns
    -------
    ``[M, N]`` of `dtype`.
    """
    rows = rows_at_once(X.shape[-1], X)
    if rows:
        return rms_norm_of_short_rows(X, weight, eps, dtype, rows)
    return rms_norm_of_long_rows(X, weight, eps, dtype)


@tilewright.jit
def rms_norm_of_short_rows(
    X: Tile, weight: Tile, eps: float = 1e-6, dtype: str = "float32", block_M: int = 1, threads: int = 128
) -> Tile:
    """`rms_norm` of rows that a block holds whole."""
    M, N = T.dynamic("M"), T.const("N")
    X: T.Tensor((M, N), dtype)
    weight: T.Tensor((N,), dtype)
    Y = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block_M), threads=threads) as block:
        tile = T.alloc_fragment((block_M, N), "float32")
        squares = T.alloc_fragment((block_M, N), "float32")
        scale = T.alloc_fragment((block_M,), "float32")
        T.copy(X[block * block_M, 0], tile)
        for i, j in T.Parallel(block_M, N):
            squares[i, j] = tile[i, j] * tile[i, j]
        T.reduce_sum(squares, scale, dim=1)
        for i in T.Parallel(block_M):
            scale[i] = T.rsqrt(scale[i] / N + eps)
        for i, j in T.Parallel(block_M, N):
            tile[i, j] = tile[i, j] * scale[i] * T.cast(weight[j], "float32")
        T.copy(tile, Y[block * block_M, 0])
    return Y


@tilewright.jit
def rms_norm_of_long_rows(
    X: Undeclared, weight: Undeclared, eps: float = 1e-6, dtype: str = "float32", block_M: int = 4, block_N: int = 1024
) -> Tile | None:
    """`rms_norm` of rows of any length, which are read twice."""
    M, N = T.dynamic("M, N")
    X: T.Tensor((M, N), dtype)
    weight: T.Tensor((N,), dtype)
    Y = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block_M), threads=128) as block:
        tile = T.alloc_fragment((block_M, block_N), "float32")
        square_sum = T.alloc_fragment((block_M,), "float32")
        total = T.alloc_fragment((block_M,), "float32")
        T.clear(total)
        for n in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[block * block_M, n * block_N], tile)
            for i, j in T.Parallel(block_M, block_N):
                tile[i, j] *= tile[i, j]
            T.reduce_sum(tile, square_sum, dim=1)
            for i in T.Parallel(block_M):
                total[i] += square_sum[i]
        for i in T.Parallel(block_M):
            total[i] = T.rsqrt(total[i] / T.cast(N, "float32") + eps)
        for n in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[block * block_M, n * block_N], tile)
            for i, j in T.Parallel(block_M, block_N):
                tile[i, j] = tile[i, j] * total[i] * T.cast(weight[n * block_N + j], "float32")
            T.copy(tile, Y[block * block_M, n * block_N])
    return Y
