"""``C = A @ B^T`` of 8-bit floats with a scale for each 128 x 128 of B, and for each 1 x 128, row or all of A.

The matrix unit's accumulator keeps fewer bits than float32; here it holds 128 products at most, which are scaled and
added up in float32 beside the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.kernels.roofline import HOPPER, Speed
from tilewright.kernels.tile_choice import MANY
from tilewright.kernels.tiles import FEW_ROWS, Tiles

BLOCK = 128
"""Elements of k, and rows of B, that share a scale."""


LARGE = ((256, 128, 4, 1.0), (128, 128, 6, 0.78))
"""Rows, columns, slots and relative rate (H200) of tiles for many rows, on two warpgroups."""

SMALL = ((64, 128, 6, None), (64, 64, 8, None), (64, 32, 8, (1, 1)))
"""Rows, columns, slots and clusters of tiles for few, on one; of the narrowest a multiprocessor holds two."""


def block_tiles(M: int, N: int, speed: Speed = HOPPER) -> Tiles:
    """Tiles for a product of this size: half of a thread's registers hold the sum, half what is added to it.

    Large ones where all multiprocessors get some, those of the fewest waves in the end; else the widest of the small
    ones that there are enough of: few rows are a matter of reading the weight on all multiprocessors.
    """

    def count(rows: int, columns: int) -> int:
        return -(-M // rows) * -(-N // columns)

    if count(128, 128) >= speed.cores and M > FEW_ROWS:
        rows, columns, stages, _ = min(LARGE, key=lambda one: -(-count(*one[:2]) // speed.cores) * one[0] / one[3])
        return Tiles(rows, columns, BLOCK, stages, 256, (2, 1) if -(-N // columns) % 2 == 0 else None)
    enough = (one for one in SMALL if count(*one[:2]) >= speed.cores)
    rows, columns, stages, cluster = next(enough, SMALL[-1])
    return Tiles(rows, columns, BLOCK, stages, 128, cluster)


def block_candidates(M: int, N: int, speed: Speed = HOPPER) -> Iterator[Tiles]:
    """Tiles for a product of this size: those of `block_tiles`, then all that there are."""
    yield block_tiles(M, N, speed)
    for rows, columns, stages, _ in LARGE:
        for cluster in ((2, 1), None):
            yield Tiles(rows, columns, BLOCK, stages, 256, cluster)
    for rows, columns, stages, one in SMALL:
        yield Tiles(rows, columns, BLOCK, stages, 128, one)


@tilewright.jit
def block_scaled_matmul(
    N: int,
    K: int,
    dtype: str = "float8_e4m3fn",
    out: str = "bfloat16",
    scale_A: str = "group",
    bias: bool = False,
    tiles: Tiles | None = None,
) -> Any:
    """Product of an activation and a weight that is scaled in blocks.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``.
    dtype, out : of the operands and of the result.
    scale_A : ``"group"``, a factor for each 128 elements of a row of A, ``"token"``, one for each row, or ``"tensor"``.
    bias : whether a row ``[N]`` is added.
    tiles : None for those that suit many rows; see `block_tiles`.  256 rows are held in two sums of 128.

    Returns
    -------
    kernel of ``A[M, K]``, ``B[N, K]``, ``scales_A[ceil(K / 128), M]`` (``[M]`` by token, ``[1]`` for all),
    ``scales_B[ceil(N / 128), ceil(K / 128)]`` (both float32), with `bias` also ``bias[N]`` (float32), and ``C[M, N]``;
    any M.
    """
    chosen = tiles or block_tiles(MANY, N)
    block_M, block_N = chosen.block_M, chosen.block_N
    halves = 2 if block_M > BLOCK else 1
    rows, steps, across = block_M // halves, -(-K // BLOCK), -(-block_N // BLOCK)
    M, by_group = T.dynamic("M"), scale_A == "group"

    @T.macro
    def add(a: Any, b: Any, total: Any, scales: Any, scales_B: Any) -> None:
        """One step of k for one sum."""
        T.gemm(a, b, total, transpose_B=True, scale_A=scales, scale_B=scales_B, promote_every=BLOCK)

    @T.macro
    def leave(total: Any, scales_A: Any, shift: Any, C: Any, row: Any, column: Any) -> None:
        """What is applied to a sum once."""
        if by_group and not bias:
            T.copy(total, C[row, column])
        else:
            result = T.alloc_fragment((rows, block_N), out)
            factors = T.alloc_fragment((rows,), "float32")
            if scale_A == "token":
                T.copy(scales_A[row], factors)
            else:
                T.fill(factors, 1.0 if by_group else scales_A[0])
            for i, j in T.Parallel(rows, block_N):
                value = total[i, j] * factors[i]
                result[i, j] = T.cast(value + shift[j] if bias else value, out)
            T.copy(result, C[row, column])

    @T.macro
    def product(A: Any, B: Any, scales_A: Any, scales_B: Any, bias: Any, C: Any) -> None:
        grid = T.ceildiv(N, block_N), T.ceildiv(M, block_M)
        with T.Kernel(*grid, threads=chosen.threads, cluster_dims=chosen.cluster) as (bn, bm):
            row, column = bm * block_M, bn * block_N
            a = T.alloc_shared((block_M, BLOCK), dtype)
            b = T.alloc_shared((block_N, BLOCK), dtype)
            a_scales: Any = T.alloc_shared((1, block_M), "float32") if by_group else None
            shift = T.alloc_shared((block_N,), "float32") if bias is not None else None
            upper = T.alloc_fragment((rows, block_N), "float32")
            lower = T.alloc_fragment((rows, block_N), "float32")
            if bias is not None:
                T.copy(bias[column], shift)
            T.clear(upper)
            if halves == 2:
                T.clear(lower)
            for k in T.Pipelined(steps, num_stages=chosen.stages):
                T.copy(A[row, k * BLOCK], a)
                T.copy(B[column, k * BLOCK], b)
                if by_group:
                    T.copy(scales_A[k, row], a_scales)
                b_scales = scales_B[column // BLOCK : column // BLOCK + across, k : k + 1]
                add(a[0:rows, :], b, upper, a_scales[0, 0:rows] if by_group else None, b_scales)
                if halves == 2:
                    add(a[rows:, :], b, lower, a_scales[0, rows:] if by_group else None, b_scales)
            leave(upper, scales_A, shift, C, row, column)
            if halves == 2:
                leave(lower, scales_A, shift, C, row + rows, column)

    Scales = T.Tensor({"group": (steps, M), "token": (M,)}.get(scale_A, (1,)), "float32")

    if bias:

        @T.prim_func
        def block_scaled_matmul_bias(
            A: T.Tensor((M, K), dtype),
            B: T.Tensor((N, K), dtype),
            scales_A: Scales,
            scales_B: T.Tensor((-(-N // BLOCK), steps), "float32"),
            bias: T.Tensor((N,), "float32"),
            C: T.Tensor((M, N), out),
        ):
            product(A, B, scales_A, scales_B, bias, C)

        return block_scaled_matmul_bias

    @T.prim_func
    def block_scaled_matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        scales_A: Scales,
        scales_B: T.Tensor((-(-N // BLOCK), steps), "float32"),
        C: T.Tensor((M, N), out),
    ):
        product(A, B, scales_A, scales_B, None, C)

    return block_scaled_matmul
