"""Sparse attention over keys that masks and lists choose."""

import numpy as np
from specialized_base import product

import tilewright.language as T


def sparse_attention(Q, K, V, mask, stages=2, group=1):
    """Attention over the blocks of keys that a mask keeps; one stage is how SeerAttention's kernels are written."""
    heads, M, D = T.const("heads, M, D")
    kv_heads, N = T.const("kv_heads, N")
    Q: T.Tensor((heads, M, D), "float16")
    K: T.Tensor((kv_heads, N, D), "float16")
    V: T.Tensor((kv_heads, N, D), "float16")
    mask: T.Tensor((heads, M // 64, N // 64), "int8")
    O = T.empty((heads, M, D), "float32")
    with T.Kernel(M // 64, heads, threads=128) as (block, head):
        q = T.alloc_shared((64, D), "float16")
        k_tile = T.alloc_shared((64, D), "float16")
        v_tile = T.alloc_shared((64, D), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        result = T.alloc_fragment((64, D), "float32")
        top = T.alloc_fragment((64,), "float32")
        before = T.alloc_fragment((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        part = T.alloc_fragment((64,), "float32")
        kept = T.alloc_shared((N // 64,), "int32")
        T.copy(Q[head, block * 64, 0], q)
        T.clear(result)
        T.clear(total)
        T.fill(top, -1e30)
        for i in T.Parallel(N // 64):
            kept[i] = T.cast(mask[head, block, i], "int32")
        for n in T.Pipelined(N // 64, num_stages=stages):
            if kept[n] != 0:
                T.copy(K[head // group, n * 64, 0], k_tile)
                T.clear(scores)
                T.gemm(q, k_tile, scores, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i, j in T.Parallel(64, 64):
                    scores[i, j] = T.exp2(scores[i, j] - top[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(64):
                    before[i] = T.exp2(before[i] - top[i])
                    total[i] = total[i] * before[i] + part[i]
                for i, j in T.Parallel(64, D):
                    result[i, j] *= before[i]
                T.copy(scores, weights)
                T.copy(V[head // group, n * 64, 0], v_tile)
                T.gemm(weights, v_tile, result)
        for i, j in T.Parallel(64, D):
            result[i, j] = T.if_then_else(total[i] > 0.0, result[i, j] / total[i], 0.0)
        T.copy(result, O[head, block * 64, 0])
    return O


def sparse_attention_expected(q, k, v, mask, group=1):
    k, v = (np.repeat(one.astype(np.float64), group, 0) for one in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(1, 2)
    scores = np.where(np.kron(mask != 0, np.ones((1, 64, 64))), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp2(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 0, weights @ v / np.where(total > 0, total, 1), 0)


def sparse_decode(Q, K, V, indices, counts, stages=2):
    """Decoding with grouped queries: each sequence and group reads the blocks of its list, as many as it has."""
    batch, groups, limit = T.const("batch, groups, limit")
    tokens = T.dynamic("tokens")
    Q: T.Tensor((batch, groups, 64, 64), "float16")
    K: T.Tensor((tokens, groups, 64), "float16")
    V: T.Tensor((tokens, groups, 64), "float16")
    indices: T.Tensor((batch, groups, limit), "int32")
    counts: T.Tensor((batch, groups), "int32")
    O = T.empty((batch, groups, 64, 64), "float32")
    with T.Kernel(groups, batch, threads=128) as (group, b):
        q = T.alloc_shared((64, 64), "float16")
        k_tile = T.alloc_shared((64, 64), "float16")
        v_tile = T.alloc_shared((64, 64), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        result = T.alloc_fragment((64, 64), "float32")
        T.copy(Q[b, group, 0, 0], q)
        T.clear(result)
        for n in T.Pipelined(counts[b, group], num_stages=stages):
            block = indices[b, group, n]
            if block >= 0:
                T.copy(K[block * 64 : block * 64 + 64, group, :], k_tile)
                T.copy(V[block * 64 : block * 64 + 64, group, :], v_tile)
                T.gemm(q, k_tile, scores, transpose_B=True, clear_accum=True)
                T.copy(scores, weights)
                T.gemm(weights, v_tile, result)
        T.copy(result, O[b, group, 0, 0])
    return O


def sparse_decode_expected(q, k, v, indices, counts):
    result = np.zeros((*q.shape[:2], 64, 64), np.float32)
    for b, g in np.ndindex(*q.shape[:2]):
        for block in indices[b, g, : counts[b, g]]:
            if block >= 0:
                part = slice(64 * block, 64 * block + 64)
                scores = product(q[b, g], k[part, g].T).astype(np.float16)
                result[b, g] += product(scores, v[part, g])
    return result


def attention_expected(q, k, v, causal=False):
    k, v = (np.repeat(one.astype(np.float64), q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if causal:
        rows, columns = scores.shape[2:]
        scores = np.where(np.arange(columns) <= np.arange(rows)[:, None] + columns - rows, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
