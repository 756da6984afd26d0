"""FlashAttention forward: softmax(Q K^T) V without ever storing the scores."""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T

LOG2_E = 1.4426950408889634


@tilewright.jit
def flash_attention(
    Q: Any,
    K: Any,
    V: Any,
    causal: bool = False,
    scale: float | None = None,
    dtype: str = "float32",
    block_M: int = 64,
    block_N: int = 64,
    num_stages: int = 2,
    threads: int = 128,
) -> Any:
    """Attention of every head, the online softmax of FlashAttention-2 (Dao, 2023, algorithm 1).

    Parameters
    ----------
    Q : ``[batch, heads, M, dim]`` of `dtype`.
    K, V : ``[batch, kv_heads, N, dim]``; heads must be a multiple of kv_heads (grouped queries).
    causal : query ``i`` sees keys up to ``i + N - M``: the last query sees all of them.
    scale : of the scores; ``1 / sqrt(dim)`` where None.

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
    # Scores are kept in units of log2, so that exp2 needs no multiplication of its own.
    to_log2 = (dim**-0.5 if scale is None else scale) * LOG2_E
    group = heads // kv_heads

    with T.Kernel(T.ceildiv(M, block_M), heads, batch, threads=threads) as (block, head, b):
        Q_shared = T.alloc_shared((block_M, dim), dtype)
        K_shared = T.alloc_shared((block_N, dim), dtype)
        V_shared = T.alloc_shared((block_N, dim), dtype)
        scores = T.alloc_fragment((block_M, block_N), "float32")
        weights = T.alloc_fragment((block_M, block_N), dtype)
        result = T.alloc_fragment((block_M, dim), "float32")
        row_max = T.alloc_fragment((block_M,), "float32")
        previous_max = T.alloc_fragment((block_M,), "float32")
        rescale = T.alloc_fragment((block_M,), "float32")
        tile_sum = T.alloc_fragment((block_M,), "float32")
        row_sum = T.alloc_fragment((block_M,), "float32")

        T.copy(Q[b, head, block * block_M, 0], Q_shared)
        T.clear(result)
        T.clear(row_sum)
        T.fill(row_max, -T.infinity("float32"))

        # Key tiles beyond the last one that some query of this block sees are skipped.
        last_key = T.min(N, (block + 1) * block_M + N - M) if causal else N
        for n in T.Pipelined(T.ceildiv(last_key, block_N), num_stages=num_stages):
            T.copy(K[b, head // group, n * block_N, 0], K_shared)
            T.copy(V[b, head // group, n * block_N, 0], V_shared)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(block_M, block_N):
                visible = n * block_N + j < N
                if causal:
                    visible = visible and n * block_N + j <= block * block_M + i + N - M
                scores[i, j] = T.if_then_else(visible, scores[i, j] * to_log2, -T.infinity("float32"))
            T.copy(row_max, previous_max)
            T.reduce_max(scores, row_max, dim=1, clear=False)
            for i in T.Parallel(block_M):
                # A row that has seen no key yet stays at minus infinity, where inf - inf would be NaN.
                rescale[i] = T.if_then_else(row_max[i] == previous_max[i], 1.0, T.exp2(previous_max[i] - row_max[i]))
            for i, j in T.Parallel(block_M, block_N):
                scores[i, j] = T.if_then_else(
                    scores[i, j] == -T.infinity("float32"), 0.0, T.exp2(scores[i, j] - row_max[i])
                )
            T.reduce_sum(scores, tile_sum, dim=1)
            T.copy(scores, weights)
            for i in T.Parallel(block_M):
                row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
            for i, j in T.Parallel(block_M, dim):
                result[i, j] *= rescale[i]
            T.gemm(weights, V_shared, result)
        for i, j in T.Parallel(block_M, dim):
            result[i, j] = T.if_then_else(row_sum[i] > 0.0, result[i, j] / row_sum[i], 0.0)
        T.copy(result, Output[b, head, block * block_M, 0])
    return Output
