"""FlashAttention forward: softmax(Q K^T) V without ever storing the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.machine.arch import Arch

LOG2_E = 1.4426950408889634

FEW_QUERIES = 64
"""Up to so many queries, blocks of as many rows are as good as larger ones, and there are more of them."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How the scores of a head are divided.

    Attributes
    ----------
    block_M, block_N : queries of a block, and keys of one step.
    threads : of the warps that compute.
    num_stages : tiles of keys and values that are held.
    blocks : that share a multiprocessor: one's first and last products leave room for the other's.
    """

    block_M: int = 64
    block_N: int = 64
    threads: int = 128
    num_stages: int = 2
    blocks: int = 1


WARPGROUPS = ((3, 128, 128, 128), (2, 192, 160, 128), (1, 192, 160, 128))
"""Warpgroups of 64 queries each, registers of a thread for scores, weights and result beside all else, and the keys of a
step, without and with a causal mask (wide tiles are masked in vain where they cross the diagonal); measured on an H200."""

CONSUMING, PRODUCING = 216, 40
"""Registers of a thread that computes, and of one that loads, of 128 each in two blocks of a multiprocessor."""

TOGETHER = 8
"""Heads of which causal blocks take the tiles in turn (measured on an H200)."""

SHARED_BYTES = 192 << 10
"""For queries, keys and values, beside the boxes through which results leave."""


def attention_tiles(
    arch: Arch | None, dtype: str, dim: int, causal: bool = False, queries: int | None = None
) -> AttentionTiles:
    """Tiles that suit a machine.

    On Hopper a warpgroup holds 64 rows: ``dim / 2`` registers of the result, ``block_N / 2`` of scores and half of that of
    weights.  Three warpgroups hide most of the exponents' time, where their registers and shared memory hold 128 keys; two
    hold more keys of wider heads.

    Parameters
    ----------
    arch : None where it is not known.
    dim : of a head.
    causal : whether the scores are masked above the diagonal.
    queries : how many there are at most, where that is known.
    """
    if arch is None or not arch.has_threads or tilewright.dtype(dtype).bits != 16:
        return AttentionTiles()
    few = queries is not None and queries <= FEW_QUERIES
    if not arch.has("wgmma"):
        return AttentionTiles(64, 64, 128) if few or dim > 128 else AttentionTiles(128, 64, 256)
    for groups, registers, most, most_causal in WARPGROUPS:
        rows = 64 * groups
        held = min((registers - dim // 2) * 4 // 3, (SHARED_BYTES // (2 * dim) - rows) // 4)
        if (groups == 1 or not few) and (groups < 3 or held >= most):
            keys = min(held, most_causal if causal else most)
            return AttentionTiles(rows, max(16, keys // 16 * 16), 128 * groups)
    return AttentionTiles()


def heads_together(heads: int) -> int:
    """Heads whose tiles are claimed in turn: as many as divide all, up to `TOGETHER`."""
    return max(count for count in range(1, TOGETHER + 1) if heads % count == 0)


def on_hopper(arch: Arch | None) -> bool:
    """Whether blocks can be divided into roles that claim tiles."""
    return arch is not None and arch.has_threads and arch.has("wgmma")


@tilewright.jit
def flash_attention(
    Q: Any,
    K: Any,
    V: Any,
    causal: bool = False,
    scale: float | None = None,
    dtype: str = "float32",
    tiles: AttentionTiles | None = None,
) -> Any:
    """Attention of every head, the online softmax of FlashAttention-2 (Dao, 2023, algorithm 1).

    Parameters
    ----------
    Q : ``[batch, heads, M, dim]`` of `dtype`.
    K, V : ``[batch, kv_heads, N, dim]``; heads must be a multiple of kv_heads (grouped queries).
    causal : query ``i`` sees keys up to ``i + N - M``: the last query sees all of them.
    scale : of the scores; ``1 / sqrt(dim)`` where None.
    tiles : None for those that suit the machine and many queries; see `attention_tiles`.

    Returns
    -------
    ``[batch, heads, M, dim]`` of `dtype`; rows that see no key are zero.
    """
    batch, heads, kv_heads, dim = T.const("batch, heads, kv_heads, dim")
    M, N = T.dynamic("M, N")
    Q: T.Tensor((batch, heads, M, dim), dtype)
    K: T.Tensor((batch, kv_heads, N, dim), dtype)
    V: T.Tensor((batch, kv_heads, N, dim), dtype)
    Output = T.empty((batch, heads, M, dim), dtype)
    # The exponents' base is 2, so that they need no multiplication of their own; one of the scores that is not positive
    # would change which is the largest, and is applied to them first.
    to_log2 = (dim**-0.5 if scale is None else scale) * LOG2_E
    before_maximum = to_log2 if to_log2 <= 0 else 1.0
    factor = 1.0 if to_log2 <= 0 else to_log2
    group = heads // kv_heads
    chosen = tiles or attention_tiles(T.machine(), dtype, dim, causal)
    block_M, block_N, num_stages, threads = chosen.block_M, chosen.block_N, chosen.num_stages, chosen.threads
    blocks = T.ceildiv(M, block_M)

    section = heads_together(heads) if causal and on_hopper(T.machine()) else 0
    grid = (section, blocks, batch * heads // section) if section else (blocks, heads, batch)
    with T.Kernel(*grid, threads=threads, persistent="claim" if section else None) as place:
        if chosen.blocks > 1:
            T.annotate_min_blocks_per_sm(chosen.blocks)
            T.annotate_consumer_reg_alloc(CONSUMING)
            T.annotate_producer_reg_dealloc(PRODUCING)
        if section:
            # Blocks claim tiles as they become free: the longest of some heads first, whose keys stay in the L2 cache.
            T.use_swizzle(1)
            number = place[2] * section + place[0]
            turn, head, b = place[1], number % heads, number // heads
        else:
            turn, head, b = place
        Q_shared = T.alloc_shared((block_M, dim), dtype)
        K_shared = T.alloc_shared((block_N, dim), dtype)
        V_shared = T.alloc_shared((block_N, dim), dtype)
        scores = T.alloc_fragment((block_M, block_N), "float32")
        weights = T.alloc_fragment((block_M, block_N), dtype)
        result = T.alloc_fragment((block_M, dim), "float32")
        row_max = T.alloc_fragment((block_M,), "float32")
        previous_max = T.alloc_fragment((block_M,), "float32")
        shift = T.alloc_fragment((block_M,), "float32")
        rescale = T.alloc_fragment((block_M,), "float32")
        tile_sum = T.alloc_fragment((block_M,), "float32")
        row_sum = T.alloc_fragment((block_M,), "float32")

        @T.macro
        def attend(n):
            """Adds what one tile of keys contributes."""
            T.copy(K[b, head // group, n * block_N, 0], K_shared)
            T.copy(V[b, head // group, n * block_N, 0], V_shared)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True)
            if before_maximum != 1.0:
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] *= before_maximum
            if n >= seen_by_all:
                for i, j in T.Parallel(block_M, block_N):
                    visible = n * block_N + j < N
                    if causal:
                        visible = visible and n * block_N + j <= block * block_M + i + N - M
                    scores[i, j] = T.if_then_else(visible, scores[i, j], -T.infinity("float32"))
            T.copy(row_max, previous_max)
            T.reduce_max(scores, row_max, dim=1, clear=False)
            for i in T.Parallel(block_M):
                # A row that has seen no key yet stays at minus infinity, where inf - inf would be NaN.
                shift[i] = T.if_then_else(row_max[i] == -T.infinity("float32"), 0.0, -row_max[i] * factor)
                rescale[i] = T.fast_exp2(T.fma(previous_max[i], factor, shift[i]))
            for i, j in T.Parallel(block_M, block_N):
                scores[i, j] = T.fast_exp2(T.fma(scores[i, j], factor, shift[i]))
            T.reduce_sum(scores, tile_sum, dim=1)
            for i in T.Parallel(block_M):
                row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
            T.copy(scores, weights)
            for i, j in T.Parallel(block_M, dim):
                result[i, j] *= rescale[i]
            T.gemm(weights, V_shared, result)

        # Blocks that see most keys begin first.
        block = blocks - 1 - turn if causal else turn
        T.copy(Q[b, head, block * block_M, 0], Q_shared)
        T.clear(result)
        T.clear(row_sum)
        T.fill(row_max, -T.infinity("float32"))

        # Tiles of keys that every query of the block sees need no mask; those that none sees are skipped.
        first_key = block * block_M + N - M
        seen_by_all = T.max(T.min(N, first_key + 1), 0) // block_N if causal else N // block_N
        seen_by_any = T.ceildiv(T.min(N, first_key + block_M), block_N) if causal else T.ceildiv(N, block_N)
        for n in T.Pipelined(seen_by_any, num_stages=num_stages):
            attend(n)
        for i in T.Parallel(block_M):
            rescale[i] = T.if_then_else(row_sum[i] > 0.0, 1.0 / row_sum[i], 0.0)
        for i, j in T.Parallel(block_M, dim):
            result[i, j] *= rescale[i]
        T.copy(result, Output[b, head, block * block_M, 0])
    return Output
