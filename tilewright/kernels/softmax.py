"""Row softmax: rows that fit in registers are read once, longer ones twice."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.rows import rows_at_once
from tilewright.kernels.values import Tile
from tilewright.language.trace import Undeclared
from tilewright.runtime.tensors import Array

LOG2_E = 1.4426950408889634


def softmax(X: Array, dtype: str = "float32") -> Array:
    """Softmax along the last dimension of ``X[M, N]``, in float32 inside.

    Parameters
    ----------
    X : ``[M, N]`` of `dtype`; any M and N.

    Returns
    -------
    ``[M, N]`` of `dtype`.
    """
    rows = rows_at_once(X.shape[-1], X)
    return softmax_of_short_rows(X, dtype, rows) if rows else softmax_of_long_rows(X, dtype)


@tilewright.jit
def softmax_of_short_rows(X: Tile, dtype: str = "float32", block_M: int = 1, threads: int = 128) -> Tile:
    """`softmax` of rows that a block holds whole."""
    M, N = T.dynamic("M"), T.const("N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block_M), threads=threads) as block:
        tile = T.alloc_fragment((block_M, N), "float32")
        row_max = T.alloc_fragment((block_M,), "float32")
        row_sum = T.alloc_fragment((block_M,), "float32")
        T.copy(X[block * block_M, 0], tile)
        T.reduce_max(tile, row_max, dim=1)
        for i, j in T.Parallel(block_M, N):
            tile[i, j] = T.exp2((tile[i, j] - row_max[i]) * LOG2_E)
        T.reduce_sum(tile, row_sum, dim=1)
        for i in T.Parallel(block_M):
            row_sum[i] = 1.0 / row_sum[i]
        for i, j in T.Parallel(block_M, N):
            tile[i, j] = tile[i, j] * row_sum[i]
        T.copy(tile, Y[block * block_M, 0])
    return Y


@tilewright.jit
def softmax_of_long_rows(X: Undeclared, dtype: str = "float32", block_M: int = 4, block_N: int = 1024) -> Tile | None:
    """`softmax` of rows of any length.

    The maximum and the sum of a row are found together: when the maximum grows, the sum so far is rescaled
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    M, N = T.dynamic("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block_M), threads=128) as block:
        tile = T.alloc_fragment((block_M, block_N), "float32")
        tile_max = T.alloc_fragment((block_M,), "float32")
        tile_sum = T.alloc_fragment((block_M,), "float32")
        row_max = T.alloc_fragment((block_M,), "float32")
        row_sum = T.alloc_fragment((block_M,), "float32")
        T.annotate_safe_value({X: -T.infinity(dtype)})
        T.fill(row_max, -T.infinity("float32"))
        T.clear(row_sum)
        for n in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[block * block_M, n * block_N], tile)
            T.reduce_max(tile, tile_max, dim=1)
            for i in T.Parallel(block_M):
                tile_max[i] = T.max(tile_max[i], row_max[i])
                # A row of minus infinities so far has no sum to rescale, and inf - inf would be NaN.
                row_sum[i] *= T.if_then_else(
                    row_max[i] == tile_max[i], 1.0, T.exp2((row_max[i] - tile_max[i]) * LOG2_E)
                )
                row_max[i] = tile_max[i]
            for i, j in T.Parallel(block_M, block_N):
                tile[i, j] = T.if_then_else(
                    tile[i, j] == -T.infinity("float32"), 0.0, T.exp2((tile[i, j] - row_max[i]) * LOG2_E)
                )
            T.reduce_sum(tile, tile_sum, dim=1)
            for i in T.Parallel(block_M):
                row_sum[i] += tile_sum[i]
        for i in T.Parallel(block_M):
            row_sum[i] = 1.0 / row_sum[i]
        for n in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[block * block_M, n * block_N], tile)
            for i, j in T.Parallel(block_M, block_N):
                tile[i, j] = T.exp2((tile[i, j] - row_max[i]) * LOG2_E) * row_sum[i]
            T.copy(tile, Y[block * block_M, n * block_N])
    return Y
