"""Attention and its backward pass: grouped heads, sequences of any length, windows, sinks; decoding in parts."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[3, 4], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def flashattn_fwd(
    batch,
    heads,
    seq_len,
    dim_qk,
    dim_v,
    is_causal,
    groups=1,
    block_M=128,
    block_N=64,
    stages=1,
    threads=128,
    window=None,
    sink=False,
    dtype="float16",
):
    scale = (1.0 / dim_qk) ** 0.5 * 1.44269504
    head_kv = heads // groups
    accum_dtype = "float"

    @T.prim_func
    def flash_fwd(
        Q: T.Tensor([batch, seq_len, heads, dim_qk], dtype),
        K: T.Tensor([batch, seq_len, head_kv, dim_qk], dtype),
        V: T.Tensor([batch, seq_len, head_kv, dim_v], dtype),
        Output: T.Tensor([batch, seq_len, heads, dim_v], dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype),
        Sinks: T.Tensor([heads], accum_dtype),
    ):
        with T.Kernel(T.ceildiv(seq_len, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim_qk], dtype)
            K_shared = T.alloc_shared([block_N, dim_qk], dtype)
            V_shared = T.alloc_shared([block_N, dim_v], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim_v], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            sinks = T.alloc_fragment([block_M], accum_dtype)
            T.annotate_layout({Q_shared: tilelang.layout.make_swizzled_layout(Q_shared)})
            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            if sink:
                for i in T.Parallel(block_M):
                    sinks[i] = Sinks[by]
            end = (
                T.min(T.ceildiv(seq_len, block_N), T.ceildiv((bx + 1) * block_M, block_N))
                if is_causal
                else T.ceildiv(seq_len, block_N)
            )
            start = T.max(0, (bx * block_M - window) // block_N) if window is not None else 0
            for k in T.Pipelined(start, end, num_stages=stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by // groups, :], K_shared)
                if is_causal:
                    for i, j in T.Parallel(block_M, block_N):
                        q_idx = bx * block_M + i
                        k_idx = k * block_N + j
                        if window is not None:
                            acc_s[i, j] = T.if_then_else(
                                q_idx >= k_idx and q_idx < k_idx + window, 0, -T.infinity(acc_s.dtype)
                            )
                        else:
                            acc_s[i, j] = T.if_then_else(q_idx >= k_idx, 0, -T.infinity(acc_s.dtype))
                else:
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(k * block_N + j >= seq_len, -T.infinity(acc_s.dtype), 0)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by // groups, :], V_shared)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                if window is not None:
                    for i in T.Parallel(block_M):
                        scores_max[i] = T.if_then_else(scores_max[i] == -T.infinity(accum_dtype), 0, scores_max[i])
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, dim_v):
                    acc_o[i, j] *= scores_scale[i]
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.copy(acc_s, acc_s_cast)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
            if sink:
                for i in T.Parallel(block_M):
                    logsum[i] += T.exp2(sinks[i] * 1.44269504 - scores_max[i] * scale)
            for i, j in T.Parallel(block_M, dim_v):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])
            for i in T.Parallel(block_M):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            T.copy(logsum, lse[bz, by, bx * block_M : (bx + 1) * block_M])

    return flash_fwd


@tilelang.jit(out_idx=[2])
def flashattn_bwd_preprocess(batch, heads, seq_len, dim_v, blk=32, dtype="float16"):
    accum_dtype = "float"
    shape = [batch, seq_len, heads, dim_v]

    @T.prim_func
    def flash_bwd_prep(
        O: T.Tensor(shape, dtype), dO: T.Tensor(shape, dtype), Delta: T.Tensor([batch, heads, seq_len], accum_dtype)
    ):
        with T.Kernel(heads, T.ceildiv(seq_len, blk), batch) as (bx, by, bz):
            o = T.alloc_fragment([blk, blk], dtype)
            do = T.alloc_fragment([blk, blk], dtype)
            acc = T.alloc_fragment([blk, blk], accum_dtype)
            delta = T.alloc_fragment([blk], accum_dtype)
            T.clear(acc)
            for k in range(T.ceildiv(dim_v, blk)):
                T.copy(O[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], o)
                T.copy(dO[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], do)
                for i, j in T.Parallel(blk, blk):
                    acc[i, j] += o[i, j] * do[i, j]
            T.reduce_sum(acc, delta, 1)
            T.copy(delta, Delta[bz, bx, by * blk : (by + 1) * blk])

    return flash_bwd_prep


def make_dq_layout(dQ):
    return T.Layout(dQ.shape, lambda b, l, h, d: [b, l // 8, h, d // 8, (d % 2), 4 * (l % 8) + (d % 8) // 2])


@tilelang.jit(out_idx=[1])
def flashattn_bwd_postprocess(batch, heads, seq_len, dim_qk, blk=64, dtype="float16"):
    accum_dtype = "float"
    shape = [batch, seq_len, heads, dim_qk]

    @T.prim_func
    def flash_bwd_post(dQ: T.Tensor(shape, accum_dtype), dQ_out: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(seq_len, blk), heads, batch, threads=128) as (bx, by, bz):
            T.annotate_layout({dQ: make_dq_layout(dQ)})
            T.copy(dQ[bz, bx * blk : (bx + 1) * blk, by, :], dQ_out[bz, bx * blk : (bx + 1) * blk, by, :])

    return flash_bwd_post


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def flashattn_bwd(
    batch,
    heads,
    seq_len,
    dim_qk,
    dim_v,
    is_causal,
    block_M,
    block_N,
    threads=256,
    num_stages=2,
    groups=1,
    style="atomic",
    dtype="float16",
):
    sm_scale = (1.0 / dim_qk) ** 0.5
    scale = sm_scale * 1.44269504
    head_kv = heads // groups
    accum_dtype = "float"

    @T.prim_func
    def flash_bwd(
        Q: T.Tensor([batch, seq_len, heads, dim_qk], dtype),
        K: T.Tensor([batch, seq_len, head_kv, dim_qk], dtype),
        V: T.Tensor([batch, seq_len, head_kv, dim_v], dtype),
        dO: T.Tensor([batch, seq_len, heads, dim_v], dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype),
        Delta: T.Tensor([batch, heads, seq_len], accum_dtype),
        dQ: T.Tensor([batch, seq_len, heads, dim_qk], accum_dtype),
        dK: T.Tensor([batch, seq_len, head_kv, dim_qk], accum_dtype),
        dV: T.Tensor([batch, seq_len, head_kv, dim_v], accum_dtype),
    ):
        with T.Kernel(heads, T.ceildiv(seq_len, block_M), batch, threads=threads) as (bx, by, bz):
            K_shared = T.alloc_shared([block_M, dim_qk], dtype)
            dsT_shared = T.alloc_shared([block_M, block_N], dtype)
            q = T.alloc_shared([block_N, dim_qk], dtype)
            V_shared = T.alloc_shared([block_M, dim_v], dtype)
            qkT = T.alloc_fragment([block_M, block_N], accum_dtype)
            dsT = T.alloc_fragment([block_M, block_N], accum_dtype)
            qkT_cast = T.alloc_fragment([block_M, block_N], dtype)
            dsT_cast = T.alloc_fragment([block_M, block_N], dtype)
            lse_shared = T.alloc_shared([block_N], accum_dtype)
            delta = T.alloc_shared([block_N], accum_dtype)
            do = T.alloc_shared([block_N, dim_v], dtype)
            dv = T.alloc_fragment([block_M, dim_v], accum_dtype)
            dk = T.alloc_fragment([block_M, dim_qk], accum_dtype)
            dq = T.alloc_fragment([block_N, dim_qk], accum_dtype)
            dk_shared = T.alloc_shared([block_M, dim_qk], accum_dtype)
            dv_shared = T.alloc_shared([block_M, dim_v], accum_dtype)
            dq_shared = T.alloc_shared([block_N, dim_qk], accum_dtype)
            T.annotate_layout({K_shared: tilelang.layout.make_swizzled_layout(K_shared)})
            if style == "layout":
                T.annotate_layout({dQ: make_dq_layout(dQ)})
            T.copy(K[bz, by * block_M : (by + 1) * block_M, bx // groups, :], K_shared)
            T.copy(V[bz, by * block_M : (by + 1) * block_M, bx // groups, :], V_shared)
            T.clear(dv)
            T.clear(dk)
            loop_st = T.floordiv(by * block_M, block_N) if is_causal else 0
            loop_ed = T.ceildiv(seq_len, block_N)
            for k in T.Pipelined(loop_st, loop_ed, num_stages=num_stages):
                T.copy(Q[bz, k * block_N : (k + 1) * block_N, bx, :], q)
                T.clear(qkT)
                T.gemm(K_shared, q, qkT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dO[bz, k * block_N : (k + 1) * block_N, bx, :], do)
                T.clear(dsT)
                T.gemm(V_shared, do, dsT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(lse[bz, bx, k * block_N : (k + 1) * block_N], lse_shared)
                for i, j in T.Parallel(block_M, block_N):
                    qkT[i, j] = T.exp2(qkT[i, j] * scale - lse_shared[j])
                if is_causal:
                    for i, j in T.Parallel(block_M, block_N):
                        qkT[i, j] = T.if_then_else(by * block_M + i <= k * block_N + j, qkT[i, j], 0)
                T.copy(qkT, qkT_cast)
                T.gemm(qkT_cast, do, dv, policy=T.GemmWarpPolicy.FullRow)
                T.copy(Delta[bz, bx, k * block_N : (k + 1) * block_N], delta)
                for i, j in T.Parallel(block_M, block_N):
                    dsT_cast[i, j] = qkT[i, j] * (dsT[i, j] - delta[j]) * sm_scale
                T.gemm(dsT_cast, q, dk, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dsT_cast, dsT_shared)
                T.clear(dq)
                T.gemm(dsT_shared, K_shared, dq, transpose_A=True)
                if style == "tma":
                    T.copy(dq, dq_shared)
                    T.atomic_add(dQ[bz, k * block_N : (k + 1) * block_N, bx, :], dq_shared, use_tma=True)
                elif style == "layout":
                    for i, j in T.Parallel(block_N, dim_qk):
                        T.atomic_add(dQ[bz, k * block_N + i, bx, j], dq[i, j])
                else:
                    T.atomic_add(dQ[bz, k * block_N : (k + 1) * block_N, bx, :], dq)
            if style == "tma":
                T.copy(dv, dv_shared)
                T.atomic_add(dV[bz, by * block_M : (by + 1) * block_M, bx // groups, :], dv_shared, use_tma=True)
                T.copy(dk, dk_shared)
                T.atomic_add(dK[bz, by * block_M : (by + 1) * block_M, bx // groups, :], dk_shared, use_tma=True)
            else:
                for i, j in T.Parallel(block_M, dim_v):
                    T.atomic_add(dV[bz, by * block_M + i, bx // groups, j], dv[i, j])
                for i, j in T.Parallel(block_M, dim_qk):
                    T.atomic_add(dK[bz, by * block_M + i, bx // groups, j], dk[i, j])

    return flash_bwd


@tilelang.jit(out_idx=[6])
def varlen(batch_size, UQ, UKV, heads, dim, is_causal, block_M=64, block_N=64, num_stages=1, threads=128, groups=1):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"
    head_kv = heads // groups

    @T.prim_func
    def main(
        Q_unpad: T.Tensor([UQ, heads, dim], dtype),
        K_unpad: T.Tensor([UKV, head_kv, dim], dtype),
        V_unpad: T.Tensor([UKV, head_kv, dim], dtype),
        cu_seqlens_q: T.Tensor([batch_size + 1], "int32"),
        cu_seqlens_k: T.Tensor([batch_size + 1], "int32"),
        max_seqlen_q: T.int32,
        Output_unpad: T.Tensor([UQ, heads, dim], dtype),
    ):
        with T.Kernel(T.ceildiv(max_seqlen_q, block_M), heads, batch_size, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], dtype, "shared")
            K_shared = T.alloc_shared([block_N, dim], dtype, "shared")
            V_shared = T.alloc_shared([block_N, dim], dtype, "shared")
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            batch_idx, head_idx = bz, by
            q_start_idx = cu_seqlens_q[batch_idx]
            k_start_idx = cu_seqlens_k[batch_idx]
            v_start_idx = cu_seqlens_k[batch_idx]
            q_end_idx = cu_seqlens_q[batch_idx + 1]
            k_end_idx = cu_seqlens_k[batch_idx + 1]
            q_current_seqlen = q_end_idx - q_start_idx
            k_current_seqlen = k_end_idx - k_start_idx
            T.copy(Q_unpad[q_start_idx + bx * block_M : q_start_idx + (bx + 1) * block_M, head_idx, :], Q_shared)
            for i, d in T.Parallel(block_M, dim):
                if bx * block_M + i >= q_current_seqlen:
                    Q_shared[i, d] = 0
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            loop_range = (
                T.min(T.ceildiv(k_current_seqlen, block_N), T.ceildiv((bx + 1) * block_M, block_N))
                if is_causal
                else T.ceildiv(k_current_seqlen, block_N)
            )
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    K_unpad[k_start_idx + k * block_N : k_start_idx + (k + 1) * block_N, head_idx // groups, :],
                    K_shared,
                )
                for i, d in T.Parallel(block_N, dim):
                    if k * block_N + i >= k_current_seqlen:
                        K_shared[i, d] = 0
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.if_then_else(
                        ((bx * block_M + i < k * block_N + j) if is_causal else False)
                        or (bx * block_M + i >= q_current_seqlen or k * block_N + j >= k_current_seqlen),
                        -1e9,
                        0,
                    )
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(
                    V_unpad[v_start_idx + k * block_N : v_start_idx + (k + 1) * block_N, head_idx // groups, :],
                    V_shared,
                )
                for i, d in T.Parallel(block_N, dim):
                    if k * block_N + i >= k_current_seqlen:
                        V_shared[i, d] = 0
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            for i, d in T.Parallel(block_M, dim):
                if bx * block_M + i < q_current_seqlen:
                    Output_unpad[q_start_idx + bx * block_M + i, head_idx, d] = O_shared[i, d]

    return main


@tilelang.jit(out_idx=[-1])
def gqa_decode_split(
    batch, heads, groups, seqlen_kv, dim, num_split, block_N=128, block_H=64, num_stages=2, threads=128
):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"
    kv_group_num = heads // groups
    valid_block_H = min(block_H, kv_group_num)
    part_shape = [batch, heads, num_split, dim]

    @T.macro
    def flash_attn_split(Q, K, V, mask, glse, Output_partial):
        with T.Kernel(batch, heads // valid_block_H, num_split, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_H, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([valid_block_H, dim], dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_H, block_N], dtype)
            mask_local = T.alloc_fragment([block_N], "uint8")
            acc_o = T.alloc_fragment([block_H, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_H], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_H], accum_dtype)
            scores_scale = T.alloc_fragment([block_H], accum_dtype)
            scores_sum = T.alloc_fragment([block_H], accum_dtype)
            logsum = T.alloc_fragment([block_H], accum_dtype)
            bid, hid, sid = bx, by, bz
            cur_kv_head = hid // (kv_group_num // valid_block_H)
            T.copy(Q[bid, hid * valid_block_H : hid * valid_block_H + block_H, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            loop_range = T.ceildiv((seqlen_kv // num_split), block_N)
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    K[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                        :,
                    ],
                    K_shared,
                )
                T.copy(
                    mask[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                    ],
                    mask_local,
                )
                T.clear(acc_s)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.if_then_else(
                        (mask_local[j] != 0) & (j < seqlen_kv // num_split), acc_s[i, j], -T.infinity(accum_dtype)
                    )
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_H):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(block_H):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_H):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(
                    V[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                        :,
                    ],
                    V_shared,
                )
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_H, dim):
                acc_o[i, j] /= logsum[i]
            for i in T.Parallel(block_H):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            for i in T.Parallel(block_H):
                if i < valid_block_H:
                    glse[bid, hid * valid_block_H + i, sid] = logsum[i]
            T.copy(acc_o[:valid_block_H, :], O_shared)
            T.copy(O_shared, Output_partial[bid, hid * valid_block_H : (hid + 1) * valid_block_H, sid, :])

    @T.macro
    def combine(glse, Output_partial, Output):
        with T.Kernel(heads, batch, threads=128) as (by, bz):
            po_local = T.alloc_fragment([dim], dtype)
            o_accum_local = T.alloc_fragment([dim], accum_dtype)
            lse_local = T.alloc_fragment([num_split, 128], dtype)
            lse_local_split = T.alloc_local([1], accum_dtype)
            lse_logsum_local = T.alloc_local([1], accum_dtype)
            lse_max_local = T.alloc_fragment([128], accum_dtype)
            scale_local = T.alloc_local([1], accum_dtype)
            T.annotate_layout(
                {
                    lse_logsum_local: T.Fragment(lse_logsum_local.shape, forward_thread_fn=lambda i: i),
                    lse_max_local: T.Fragment(lse_max_local.shape, forward_thread_fn=lambda i: i),
                    lse_local: T.Fragment(lse_local.shape, forward_thread_fn=lambda i, j: j),
                }
            )
            T.clear(lse_logsum_local)
            T.clear(o_accum_local)
            for k, j in T.Parallel(num_split, 128):
                lse_local[k, j] = glse[bz, by, k]
            T.reduce_max(lse_local, lse_max_local, dim=0, clear=True)
            for k in T.Pipelined(num_split, num_stages=1):
                lse_local_split[0] = glse[bz, by, k]
                lse_logsum_local[0] += T.exp2(lse_local_split[0])
            lse_logsum_local[0] = T.log2(lse_logsum_local[0])
            for k in T.serial(num_split):
                for i in T.Parallel(dim):
                    po_local[i] = Output_partial[bz, by, k, i]
                lse_local_split[0] = glse[bz, by, k]
                scale_local[0] = T.exp2(lse_local_split[0] - lse_logsum_local[0])
                for i in T.Parallel(dim):
                    o_accum_local[i] += po_local[i] * scale_local[0]
            for i in T.Parallel(dim):
                Output[bz, by, i] = o_accum_local[i]

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        K: T.Tensor([batch, seqlen_kv, groups, dim], dtype),
        V: T.Tensor([batch, seqlen_kv, groups, dim], dtype),
        mask: T.Tensor([batch, seqlen_kv, groups], "uint8"),
        glse: T.Tensor([batch, heads, num_split], dtype),
        Output_partial: T.Tensor(part_shape, dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        flash_attn_split(Q, K, V, mask, glse, Output_partial)
        combine(glse, Output_partial, Output)

    return main


REAL_SIZES = []
for d, m, n, s, t in (
    (64, 128, 128, 2, 128),
    (128, 128, 128, 2, 256),
    (128, 64, 64, 1, 128),
    (192, 128, 64, 2, 256),
    (256, 64, 64, 1, 128),
    (256, 128, 64, 2, 256),
):
    for causal in (False, True):
        REAL_SIZES.append(
            (
                f"fwd {d} {m}x{n} s{s} t{t} causal={causal}",
                lambda d=d, m=m, n=n, s=s, t=t, c=causal: flashattn_fwd(
                    1, 32, 4096, d, min(d, 128) if d == 192 else d, c, 4, m, n, s, t
                ),
            )
        )
REAL_SIZES += [
    (
        "fwd window sink bf16",
        lambda: flashattn_fwd(1, 32, 4096, 128, 128, True, 8, 128, 128, 2, 256, 128, True, "bfloat16"),
    ),
    ("prep", lambda: flashattn_bwd_preprocess(1, 32, 4096, 128)),
    ("post", lambda: flashattn_bwd_postprocess(1, 32, 4096, 128)),
    ("bwd layout 64", lambda: flashattn_bwd(1, 32, 4096, 64, 64, True, 128, 128, 256, 2, 1, "layout")),
    ("bwd atomic 128", lambda: flashattn_bwd(1, 32, 4096, 128, 128, True, 128, 32, 256, 2, 4)),
    ("bwd tma 128", lambda: flashattn_bwd(1, 32, 4096, 128, 128, False, 128, 32, 256, 2, 4, "tma")),
    ("bwd 192/128 tma", lambda: flashattn_bwd(1, 32, 4096, 192, 128, True, 128, 32, 256, 1, 16, "tma")),
    ("bwd 64 s0 128t", lambda: flashattn_bwd(1, 32, 4096, 64, 64, True, 64, 64, 128, 0)),
    ("varlen", lambda: varlen(8, 8192, 8192, 32, 128, True, 128, 128, 2, 256, 4)),
    ("varlen noncausal", lambda: varlen(8, 8192, 8192, 32, 64, False)),
    ("decode", lambda: gqa_decode_split(1, 32, 8, 8192, 128, 16)),
    ("decode 16", lambda: gqa_decode_split(1, 32, 8, 8192, 128, 8, 64, 64, 2, 128)),
]

if __name__ == "__main__":
    B, S, H, G = 1, 128, 4, 2

    def ref(q, k, v, causal, window=None, sink=None):
        k, v = k.repeat_interleave(q.shape[2] // k.shape[2], 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        i, j = torch.arange(S, device=dev)[:, None], torch.arange(S, device=dev)
        ok = (i >= j) if causal else torch.ones(S, S, dtype=torch.bool, device=dev)
        if window:
            ok = ok & (i < j + window)
        s = s.masked_fill(~ok, float("-inf"))
        if sink is not None:
            s = torch.cat([s, sink.double()[None, :, None, None].expand(B, H, S, 1)], -1)
            return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1)[..., :-1], v)
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)

    for D, DV, causal, w, sk in ((64, 64, True, None, False), (32, 64, False, None, False), (64, 32, True, 40, True)):
        q, k, v = (
            torch.randn(B, S, H, D, device=dev).half(),
            torch.randn(B, S, H // G, D, device=dev).half(),
            torch.randn(B, S, H // G, DV, device=dev).half(),
        )
        sink = torch.randn(H, device=dev)
        o, lse = flashattn_fwd(B, H, S, D, DV, causal, G, 64, 64, 2, 128, w, sk)(q, k, v, sink)
        torch.testing.assert_close(
            o.double(), ref(q.double(), k.double(), v.double(), causal, w, sink if sk else None), rtol=1e-2, atol=1e-2
        )
    for style in ("atomic", "tma", "layout"):
        D, DV, G = 64, 32, 2 if style != "layout" else 1
        q, k, v = (
            torch.randn(B, S, H, D, device=dev).half(),
            torch.randn(B, S, H // G, D, device=dev).half(),
            torch.randn(B, S, H // G, DV, device=dev).half(),
        )
        o, lse = flashattn_fwd(B, H, S, D, DV, True, G, 64, 64, 1, 128)(q, k, v, torch.zeros(H, device=dev))
        do = torch.randn_like(o)
        qd, kd, vd = (x.double().requires_grad_() for x in (q, k, v))
        ref(qd, kd, vd, True).backward(do.double())
        delta = flashattn_bwd_preprocess(B, H, S, DV)(o, do)
        dq, dk, dv = (
            torch.zeros(B, S, H, D, device=dev),
            torch.zeros(B, S, H // G, D, device=dev),
            torch.zeros(B, S, H // G, DV, device=dev),
        )
        flashattn_bwd(B, H, S, D, DV, True, 64, 32, 128, 2, G, style)(q, k, v, do, lse, delta, dq, dk, dv)
        if style == "layout":
            dq = flashattn_bwd_postprocess(B, H, S, D)(dq)
        for name, got, want in (("dq", dq, qd), ("dk", dk, kd), ("dv", dv, vd)):
            assert torch.allclose(got.double(), want.grad, rtol=3e-2, atol=3e-2), (style, name)
    # varlen
    lens = [50, 0, 77]
    cu = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32, device=dev)
    U = sum(lens)
    q, k, v = (torch.randn(U, 2, 32, device=dev).half() for _ in range(3))
    o = varlen(3, U, U, 2, 32, True)(q, k, v, cu, cu, max(lens))
    for b in range(3):
        a, e = cu[b].item(), cu[b + 1].item()
        s = torch.einsum("qhd,khd->hqk", q[a:e].double(), k[a:e].double()) * 32**-0.5
        s = s.masked_fill(~torch.ones(e - a, e - a, dtype=torch.bool, device=dev).tril(), float("-inf"))
        torch.testing.assert_close(
            o[a:e].double(), torch.einsum("hqk,khd->qhd", s.softmax(-1), v[a:e].double()), rtol=1e-2, atol=1e-2
        )
    # decode
    B, H, G, S, D, N = 1, 8, 2, 256, 64, 2
    q, k, v = (
        torch.randn(B, H, D, device=dev).half(),
        torch.randn(B, S, G, D, device=dev).half(),
        torch.randn(B, S, G, D, device=dev).half(),
    )
    mask = (torch.rand(B, S, G, device=dev) > 0.3).to(torch.uint8)
    glse, part = torch.empty(B, H, N, device=dev).half(), torch.empty(B, H, N, D, device=dev).half()
    o = gqa_decode_split(B, H, G, S, D, N, 64, 64)(q, k, v, mask, glse, part)
    kk, vv, mm = (x.repeat_interleave(H // G, 2) for x in (k.double(), v.double(), mask))
    s = (torch.einsum("bhd,bshd->bhs", q.double(), kk) * D**-0.5).masked_fill(mm.permute(0, 2, 1) == 0, float("-inf"))
    torch.testing.assert_close(o.double(), torch.einsum("bhs,bshd->bhd", s.softmax(-1), vv), rtol=2e-2, atol=2e-2)
    print("ok")
