"""FlashAttention forward: softmax(Q K^T) V without ever storing the scores."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.attention_tiles import (
    AttentionTiles,
    heads_together,
    in_cluster,
    on_hopper,
    register_budget,
    suited_tiles,
)
from tilewright.kernels.cluster_sums import PADDING
from tilewright.kernels.values import Tile, Value

LOG2_E = 1.4426950408889634

COMBINED_ROWS, COMBINED_COLUMNS = 4, 64
"""Rows and columns of a block that combines what many blocks found."""


@tilewright.jit
def flash_attention(
    Q: Tile,
    K: Tile,
    V: Tile,
    causal: bool = False,
    scale: float | None = None,
    dtype: str = "float32",
    tiles: AttentionTiles | None = None,
    expected: tuple[int, int] | None = None,
) -> Tile:  # the kernel's tensor
    """Attention of every head, the online softmax of FlashAttention-2 (Dao, 2023, algorithm 1).

    Parameters
    ----------
    Q : ``[batch, heads, M, dim]`` of `dtype`.
    K, V : ``[batch, kv_heads, N, dim]``; heads must be a multiple of kv_heads (grouped queries).
    causal : query ``i`` sees keys up to ``i + N - M``: the last query sees all of them.
    scale : of the scores; ``1 / sqrt(dim)`` where None.
    tiles : None for those that suit the machine and the numbers of queries and keys of the call; see `suited_tiles`.
    expected : queries and keys that tiles shall suit instead, for one kernel whatever comes.  Any numbers are right.

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
    shape = suited_tiles(T.machine(), dtype, (batch, heads, kv_heads), dim, causal)
    chosen = tiles or (T.suited(shape, M, N) if expected is None else shape(*expected))
    block_M, block_N, num_stages, threads = chosen.block_M, chosen.block_N, chosen.num_stages, chosen.threads
    splits, kept = chosen.splits, chosen.stored_rows
    # Heads that share keys may be one, of as many more rows.
    joined = group if chosen.together else 1
    lines, own_heads, sharing = M * joined, heads // joined, group // joined
    queries = T.view(Q, (batch, own_heads, lines, dim)) if joined > 1 else Q
    output = T.view(Output, (batch, own_heads, lines, dim)) if joined > 1 else Output
    blocks = T.ceildiv(lines, kept)
    clustered = in_cluster(T.machine(), splits, dim)
    if splits > 1 and not clustered:
        results = T.alloc_global((splits, batch, own_heads, lines, dim), "float32")
        maxima, sums = (T.alloc_global((splits, batch, own_heads, lines), "float32") for _ in range(2))

    section = heads_together(own_heads) if causal and splits == 1 and on_hopper(T.machine()) else 0
    grid = (
        (section, blocks, batch * own_heads // section)
        if section
        else (blocks * splits if splits > 1 else blocks, own_heads, batch)
    )
    cluster = (splits, 1, 1) if clustered else None
    with T.Kernel(*grid, threads=threads, persistent="claim" if section else None, cluster_dims=cluster) as place:
        if chosen.blocks > 1:
            consuming, producing = register_budget(chosen.blocks)
            T.annotate_min_blocks_per_sm(chosen.blocks)
            T.annotate_consumer_reg_alloc(consuming)
            T.annotate_producer_reg_dealloc(producing)
        if section:
            # Blocks claim tiles as they become free: the longest of some heads first, whose keys stay in the L2 cache.
            T.use_swizzle(1)
            number = place[2] * section + place[0]
            turn, head, b = place[1], number % own_heads, number // own_heads
        else:
            turn, head, b = place
        part, turn = (turn % splits, turn // splits) if splits > 1 else (0, turn)
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
            T.copy(K[b, head // sharing, n * block_N, 0], K_shared)
            T.copy(V[b, head // sharing, n * block_N, 0], V_shared)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True)
            if before_maximum != 1.0:
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] *= before_maximum
            if n >= seen_by_all:
                for i, j in T.Parallel(block_M, block_N):
                    visible = n * block_N + j < N
                    if causal:
                        line = block * kept + i
                        visible = visible and n * block_N + j <= (line % M if joined > 1 else line) + N - M
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
        T.copy(queries[b, head, block * kept, 0], Q_shared)
        T.clear(result)
        T.clear(row_sum)
        T.fill(row_max, -T.infinity("float32"))

        # Tiles of keys that every query of the block sees need no mask; those that none sees are skipped.
        first_key = N - M if joined > 1 else block * kept + N - M
        last_key = N - 1 if joined > 1 else first_key + kept - 1
        seen_by_all = T.max(T.min(N, first_key + 1), 0) // block_N if causal else N // block_N
        seen_by_any = T.ceildiv(T.min(N, last_key + 1), block_N) if causal else T.ceildiv(N, block_N)
        if splits > 1:
            share = T.ceildiv(seen_by_any, splits)
            for n in T.Pipelined(T.max(T.min(seen_by_any - part * share, share), 0), num_stages=num_stages):
                attend(part * share + n)
            if clustered:
                place = (b, head, block * kept, part * (dim // splits))
                _combine_in_cluster((result, row_max, row_sum), output, place, splits, kept, factor)
            else:
                T.copy(row_max[0:kept], maxima[part, b, head, block * kept])
                T.copy(row_sum[0:kept], sums[part, b, head, block * kept])
                T.copy(result[0:kept, :], results[part, b, head, block * kept, 0])
        else:
            for n in T.Pipelined(seen_by_any, num_stages=num_stages):
                attend(n)
            for i in T.Parallel(block_M):
                rescale[i] = T.if_then_else(row_sum[i] > 0.0, 1.0 / row_sum[i], 0.0)
            for i, j in T.Parallel(block_M, dim):
                result[i, j] *= rescale[i]
            T.copy(result[0:kept, :], output[b, head, block * kept, 0])
    if splits > 1 and not clustered:
        rows = batch * heads * M
        flat = T.view(results, (splits, rows, dim)), T.view(maxima, (splits, rows)), T.view(sums, (splits, rows))
        _combine_in_kernel(flat, T.view(Output, (rows, dim)), splits, factor)
    return Output


@T.macro
def _combine_in_cluster(
    partial: tuple[Tile, Tile, Tile],
    output: Tile,
    place: tuple[Value, Value, Value, Value],
    splits: int,
    kept: int,
    factor: float,
) -> None:
    """Combine the partial results of the blocks of a cluster that split the keys (before division, with maxima and
    sums; rows from `kept` on are left out): each block reads its columns of all of them through distributed shared
    memory. They begin at a place of `output`."""
    result, row_max, row_sum = partial
    rows, dim = result.shape
    columns, (batch, head, row, column) = dim // splits, place
    results = T.alloc_shared((kept, dim + PADDING), "float32")
    maxima, sums = (T.alloc_shared((rows,), "float32") for _ in range(2))
    T.copy(row_max, maxima)
    T.copy(row_sum, sums)
    for i, j in T.Parallel(rows, dim):
        if i < kept:
            results[i, j] = result[i, j]
    T.sync_cluster()
    peers = _fragments_of_peers(splits, kept, columns)
    for rank, (peer_result, peer_max, peer_sum) in list(enumerate(peers)):
        T.copy(maxima[0:kept], peer_max, rank=rank)
        T.copy(sums[0:kept], peer_sum, rank=rank)
        T.copy(results[0:kept, column : column + columns], peer_result, rank=rank)
    T.cluster_arrive()
    combined = T.alloc_fragment((kept, columns), "float32")
    _combine(peers, combined, factor)
    for i, j in T.Parallel(kept, columns):
        output[batch, head, row + i, column + j] = combined[i, j]
    T.cluster_wait()


@T.macro
def _combine_in_kernel(workspaces: tuple[Tile, Tile, Tile], output: Tile, splits: int, factor: float) -> None:
    """Combine the partial results of more blocks than a cluster has, by a kernel of its own."""
    results, maxima, sums = workspaces
    _, rows, dim = results.shape
    columns = min(dim, COMBINED_COLUMNS)
    with T.Kernel(T.ceildiv(rows, COMBINED_ROWS), T.ceildiv(dim, columns)) as (block, across):
        row, column = block * COMBINED_ROWS, across * columns
        T.pdl_sync()
        peers = _fragments_of_peers(splits, COMBINED_ROWS, columns)
        for number, (peer_result, peer_max, peer_sum) in list(enumerate(peers)):
            T.copy(maxima[number, row], peer_max)
            T.copy(sums[number, row], peer_sum)
            T.copy(results[number, row, column], peer_result)
        combined = T.alloc_fragment((COMBINED_ROWS, columns), "float32")
        _combine(peers, combined, factor)
        T.copy(combined, output[row, column])


def _fragments_of_peers(splits: int, rows: Value, columns: Value) -> list[tuple[Tile, Tile, Tile]]:
    """For the results, maxima and sums of the blocks that split the keys."""

    def line() -> Tile:
        return T.alloc_fragment((rows,), "float32")

    return [(T.alloc_fragment((rows, columns), "float32"), line(), line()) for _ in range(splits)]


@T.macro
def _combine(peers: list[tuple[Tile, Tile, Tile]], combined: Tile, factor: float) -> None:
    """Combine partial results by the weights of their maxima, and divide them by the sum of all exponents."""
    rows, columns = combined.shape
    largest, total, weight = (T.alloc_fragment((rows,), "float32") for _ in range(3))
    T.fill(largest, -T.infinity("float32"))
    for _, row_max, _ in list(peers):
        for i in T.Parallel(rows):
            largest[i] = T.max(largest[i], row_max[i])
    T.clear(total)
    T.clear(combined)
    for result, row_max, row_sum in list(peers):
        for i in T.Parallel(rows):
            # A block that saw no key has the weight 0; where no block did, so has the row.
            known = row_max[i] > -T.infinity("float32")
            weight[i] = T.if_then_else(known, T.fast_exp2((row_max[i] - largest[i]) * factor), 0.0)
            total[i] += weight[i] * row_sum[i]
        for i, j in T.Parallel(rows, columns):
            combined[i, j] += result[i, j] * weight[i]
    for i, j in T.Parallel(rows, columns):
        combined[i, j] = T.if_then_else(total[i] > 0.0, combined[i, j] / total[i], 0.0)
