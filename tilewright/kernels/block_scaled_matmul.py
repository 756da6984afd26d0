"""``C = A @ B^T`` of 8-bit floats with a scale for each 1 x 128 of A and each 128 x 128 of B; sums are promoted every 128 k.

The matrix unit's accumulator keeps fewer bits than float32; here it holds 128 products at most, which are scaled and
added up in float32 beside the next ones.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.kernels.tiles import CORES, FEW_ROWS, MANY, Tiles

BLOCK = 128
"""Elements of k, and rows of B, that share a scale."""


class InvalidScaleBlocks(TilewrightError):
    """K that does not consist of whole blocks."""

    def __init__(self, K: int) -> None:
        super().__init__(
            f"K = {K} is no multiple of {BLOCK}, of which each block of A and B has a scale",
            hint="pad K with zeros, which changes nothing",
        )


def block_tiles(M: int, N: int) -> Tiles:
    """Tiles for a product of this size: half of a thread's registers hold the sum, half what is added to it."""
    for rows, columns, threads, stages, cluster in (
        (256, 128, 256, 4, (2, 1)), (128, 128, 256, 6, (2, 1)), (64, 128, 128, 6, None), (64, 64, 128, 8, None),
    ):  # fmt: skip
        tiles = Tiles(rows, columns, BLOCK, stages, threads, cluster if -(-N // columns) % 2 == 0 else None)
        if -(-M // rows) * -(-N // columns) >= CORES and rows // 2 < M:
            return tiles
    return tiles


@tilewright.jit
def block_scaled_matmul(
    N: int, K: int, dtype: str = "float8_e4m3fn", out: str = "bfloat16", tiles: Tiles | None = None
) -> Any:
    """Product of an activation and a weight, both scaled in blocks.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``; K is a multiple of 128.
    dtype, out : of the operands and of the result.
    tiles : None for those that suit many rows; see `block_tiles`.  256 rows are held in two sums of 128.

    Returns
    -------
    kernel of ``A[M, K]``, ``B[N, K]``, ``scales_A[K / 128, M]``, ``scales_B[ceil(N / 128), K / 128]`` (float32) and
    ``C[M, N]``; any M.

    Raises
    ------
    InvalidScaleBlocks : 128 does not divide K.
    """
    if K % BLOCK:
        raise InvalidScaleBlocks(K)
    chosen = tiles or block_tiles(MANY, N)
    block_M, block_N = chosen.block_M, chosen.block_N
    halves = 2 if block_M > BLOCK else 1
    rows = block_M // halves
    few = block_M <= FEW_ROWS  # nobody reads these scales again: they come through the ring
    M = T.dynamic("M")

    @T.macro
    def add(a: Any, b: Any, total: Any, scales: Any, scales_B: Any, column: Any, k: Any) -> None:
        """One step of k for one sum."""
        across = -(-block_N // BLOCK)
        T.gemm(
            a, b, total, transpose_B=True, scale_A=scales,
            scale_B=scales_B[column // BLOCK : column // BLOCK + across, k : k + 1], promote_every=BLOCK,
        )  # fmt: skip

    @T.prim_func
    def block_scaled_matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        scales_A: T.Tensor((K // BLOCK, M), "float32"),
        scales_B: T.Tensor((-(-N // BLOCK), K // BLOCK), "float32"),
        C: T.Tensor((M, N), out),
    ):
        grid = T.ceildiv(N, block_N), T.ceildiv(M, block_M)
        with T.Kernel(*grid, threads=chosen.threads, cluster_dims=chosen.cluster) as (bn, bm):
            a = T.alloc_shared((rows, BLOCK), dtype)
            b = T.alloc_shared((block_N, BLOCK), dtype)
            a_scales = T.alloc_shared((1, rows), "float32")
            upper = T.alloc_fragment((rows, block_N), "float32")
            if halves == 2:
                a_lower = T.alloc_shared((rows, BLOCK), dtype)
                lower = T.alloc_fragment((rows, block_N), "float32")
                T.clear(lower)
            T.clear(upper)
            row, column = bm * block_M, bn * block_N
            for k in T.Pipelined(K // BLOCK, num_stages=chosen.stages):
                T.copy(A[row, k * BLOCK], a)
                T.copy(B[column, k * BLOCK], b)
                if halves == 2:
                    T.copy(A[row + rows, k * BLOCK], a_lower)
                if few:
                    T.copy(scales_A[k, row], a_scales)
                    add(a, b, upper, a_scales[0, :], scales_B, column, k)
                else:
                    add(a, b, upper, scales_A[k, row : row + rows], scales_B, column, k)
                if halves == 2:
                    add(a_lower, b, lower, scales_A[k, row + rows : row + 2 * rows], scales_B, column, k)
            T.copy(upper, C[row, column])
            if halves == 2:
                T.copy(lower, C[row + rows, column])

    return block_scaled_matmul
