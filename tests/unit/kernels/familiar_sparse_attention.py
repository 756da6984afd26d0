"""Attention to chosen keys: rows that an index list names, blocks that each query selects."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan, softmax

import tilewright.language as T

bf = ml_dtypes.bfloat16


def chosen_rows():
    """Top-k indices gather rows of a latent cache."""
    normal, rng = drawn(0)
    S, SKV, H, D, DT, topk, BI = 4, 90, 16, 64, 32, 48, 16
    sm = 1.44269504 / np.sqrt(D + DT)
    H_per_block = 16
    NI = topk // BI

    @T.prim_func
    def main(
        Q: T.Tensor([1, S, H, D + DT], "bfloat16"),
        KV: T.Tensor([1, SKV, 1, D + DT], "bfloat16"),
        Indices: T.Tensor([1, S, 1, topk], "int32"),
        Output: T.Tensor([1, S, H, D], "bfloat16"),
        Lse: T.Tensor([1, S, H], "float32"),
    ):
        with T.Kernel(S, 1, 1, threads=128) as (bx, by, bz):
            Q_shared = T.alloc_shared([H_per_block, D], "bfloat16")
            Q_tail_shared = T.alloc_shared([H_per_block, DT], "bfloat16")
            KV_shared = T.alloc_shared([BI, D], "bfloat16")
            K_tail_shared = T.alloc_shared([BI, DT], "bfloat16")
            mask = T.alloc_fragment([BI], "bool")
            acc_o = T.alloc_fragment([H_per_block, D], "float32")
            acc_s = T.alloc_fragment([H_per_block, BI], "float32")
            S_shared = T.alloc_shared([H_per_block, BI], "bfloat16")
            sumexp = T.alloc_fragment([H_per_block], "float32")
            sumexp_i = T.alloc_fragment([H_per_block], "float32")
            alpha = T.alloc_fragment([H_per_block], "float32")
            m_i = T.alloc_fragment([H_per_block], "float32")
            m_i_prev = T.alloc_fragment([H_per_block], "float32")
            T.fill(acc_o, 0)
            T.fill(sumexp, 0)
            T.fill(m_i, -(2**30))
            b_i, g_i = by, bz
            s_i = bx
            T.copy(Q[b_i, s_i, 0:H_per_block, :D], Q_shared)
            T.copy(Q[b_i, s_i, 0:H_per_block, D:], Q_tail_shared)
            for i_i in T.Pipelined(NI, num_stages=2):
                for bi_i in T.Parallel(BI):
                    mask[bi_i] = Indices[b_i, s_i, g_i, i_i * BI + bi_i] >= 0
                for bi_i, d_i in T.Parallel(BI, D):
                    KV_shared[bi_i, d_i] = KV[b_i, Indices[b_i, s_i, g_i, i_i * BI + bi_i], g_i, d_i]
                for bi_i, d_i in T.Parallel(BI, DT):
                    K_tail_shared[bi_i, d_i] = KV[b_i, Indices[b_i, s_i, g_i, i_i * BI + bi_i], g_i, D + d_i]
                for h_i, bi_i in T.Parallel(H_per_block, BI):
                    acc_s[h_i, bi_i] = T.if_then_else(mask[bi_i], 0, -T.infinity("float32"))
                T.gemm(Q_shared, KV_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.gemm(Q_tail_shared, K_tail_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.copy(m_i, m_i_prev)
                T.reduce_max(acc_s, m_i, dim=1, clear=False)
                for h_i in T.Parallel(H_per_block):
                    alpha[h_i] = T.exp2((m_i_prev[h_i] - m_i[h_i]) * sm)
                for h_i, bi_i in T.Parallel(H_per_block, BI):
                    acc_s[h_i, bi_i] = T.exp2(acc_s[h_i, bi_i] * sm - m_i[h_i] * sm)
                T.reduce_sum(acc_s, sumexp_i, dim=1)
                for h_i in T.Parallel(H_per_block):
                    sumexp[h_i] = sumexp[h_i] * alpha[h_i] + sumexp_i[h_i]
                for h_i, d_i in T.Parallel(H_per_block, D):
                    acc_o[h_i, d_i] = acc_o[h_i, d_i] * alpha[h_i]
                T.copy(acc_s, S_shared)
                T.gemm(S_shared, KV_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for h_i, d_i in T.Parallel(H_per_block, D):
                acc_o[h_i, d_i] /= sumexp[h_i]
            for h_i in T.Parallel(H_per_block):
                sumexp[h_i] = T.log2(sumexp[h_i]) + m_i[h_i] * sm
            T.copy(acc_o, Output[b_i, s_i, 0:H_per_block, :])
            T.copy(sumexp, Lse[b_i, s_i, 0:H_per_block])

    q, kv = normal(1, S, H, D + DT, dtype=bf), normal(1, SKV, 1, D + DT, dtype=bf)
    idx = np.stack([rng.permutation(SKV)[:topk] for _ in range(S)])[None, :, None].astype(np.int32)
    idx[0, 1, 0, 30:] = -1
    out, lse = np.zeros((1, S, H, D)), np.zeros((1, S, H))
    for s in range(S):
        ii = idx[0, s, 0]
        ii = ii[ii >= 0]
        k = kv[0, ii, 0].astype(float)
        sc = q[0, s].astype(float) @ k.T * sm
        e = np.exp2(sc - sc.max(-1, keepdims=True))
        out[0, s] = e / e.sum(-1, keepdims=True) @ k[:, :D]
        lse[0, s] = np.log2(e.sum(-1)) + sc.max(-1)
    return Familiar(main, (q, kv, idx, nan(*out.shape, dtype=bf), nan(*lse.shape)), {3: out, 4: lse}, 2e-2)


def chosen_blocks():
    """NSA forward: each query of a GQA group reads the selected blocks, causal."""
    normal, rng = drawn(1)
    S, H, HQ, D, BS, SEL = 96, 1, 16, 64, 32, 2

    @T.prim_func
    def main(
        Q: T.Tensor([1, S, HQ, D], "float16"),
        K: T.Tensor([1, S, H, D], "float16"),
        V: T.Tensor([1, S, H, D], "float16"),
        BI: T.Tensor([1, S, H, SEL], "int32"),
        O: T.Tensor([1, S, HQ, D], "float16"),
    ):
        with T.Kernel(S, 1, H, threads=32) as (bx, _, bz):
            Qs = T.alloc_shared([HQ, D], "float16")
            Ks = T.alloc_shared([BS, D], "float16")
            Vs = T.alloc_shared([BS, D], "float16")
            Os = T.alloc_shared([HQ, D], "float16")
            acc_s = T.alloc_fragment([HQ, BS], "float32")
            p = T.alloc_fragment([HQ, BS], "float16")
            acc_o = T.alloc_fragment([HQ, D], "float32")
            m = T.alloc_fragment([HQ], "float32")
            m0 = T.alloc_fragment([HQ], "float32")
            sc = T.alloc_fragment([HQ], "float32")
            ls = T.alloc_fragment([HQ], "float32")
            l = T.alloc_fragment([HQ], "float32")
            i_t, i_h = bx, bz
            T.copy(Q[0, i_t, i_h * HQ : (i_h + 1) * HQ, :], Qs)
            T.fill(acc_o, 0)
            T.fill(l, 0)
            T.fill(m, -T.infinity("float32"))
            for i in T.Pipelined(SEL, num_stages=2):
                i_s = BI[0, i_t, i_h, i] * BS
                if i_s <= i_t and i_s >= 0:
                    T.copy(K[0, i_s : i_s + BS, i_h, :], Ks)
                    for r, c in T.Parallel(HQ, BS):
                        acc_s[r, c] = T.if_then_else(i_t >= (i_s + c), 0, -T.infinity("float32"))
                    T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(m, m0)
                    T.fill(m, -T.infinity("float32"))
                    T.reduce_max(acc_s, m, dim=1, clear=True)
                    for r in T.Parallel(HQ):
                        m[r] = T.max(m[r], m0[r])
                        sc[r] = T.exp2(m0[r] * 0.18033688 - m[r] * 0.18033688)
                    for r, c in T.Parallel(HQ, BS):
                        acc_s[r, c] = T.exp2(acc_s[r, c] * 0.18033688 - m[r] * 0.18033688)
                    T.reduce_sum(acc_s, ls, dim=1)
                    for r in T.Parallel(HQ):
                        l[r] = l[r] * sc[r] + ls[r]
                    T.copy(acc_s, p)
                    for r, c in T.Parallel(HQ, D):
                        acc_o[r, c] *= sc[r]
                    T.copy(V[0, i_s : i_s + BS, i_h, :], Vs)
                    T.gemm(p, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for r, c in T.Parallel(HQ, D):
                acc_o[r, c] /= l[r]
            T.copy(acc_o, Os)
            T.copy(Os, O[0, i_t, i_h * HQ : (i_h + 1) * HQ, :])

    q, k, v = normal(1, S, HQ, D), normal(1, S, H, D), normal(1, S, H, D)
    bi = np.zeros((1, S, H, SEL), np.int32)
    for t in range(S):
        bi[0, t, 0] = [t // BS, rng.integers(-1, 3)]
    bi[0, :, 0, 1] = np.where(bi[0, :, 0, 1] == bi[0, :, 0, 0], -1, bi[0, :, 0, 1])
    o = np.zeros((1, S, HQ, D))
    for t in range(S):
        cols = [c for b in bi[0, t, 0] if 0 <= b * BS <= t for c in range(b * BS, b * BS + BS) if c <= t]
        s_ = q[0, t].astype(float) @ k[0, cols, 0].astype(float).T / 8
        o[0, t] = softmax(s_) @ v[0, cols, 0].astype(float)
    return Familiar(main, (q, k, v, bi, nan(1, S, HQ, D, dtype=np.float16)), {4: o}, 5e-3)
