"""Attention over chosen positions: each query has a list of keys, gathered one by one; -1 stands for none."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-2, -1])
def chosen(heads, dim, tail, topk, kv_group=1, sm_scale=None, BI=16, threads=64):
    sm_scale = ((1.0 / (dim + tail)) ** 0.5 if sm_scale is None else sm_scale) * 1.44269504
    batch, seq_len, seq_len_kv = T.symbolic("batch"), T.symbolic("seq_len"), T.symbolic("seq_len_kv")
    head_kv = heads // kv_group
    q_shape, kv_shape = [batch, seq_len, heads, dim + tail], [batch, seq_len_kv, kv_group, dim + tail]
    o_shape, i_shape, l_shape = [batch, seq_len, heads, dim], [batch, seq_len, kv_group, topk], [batch, seq_len, heads]
    dtype, accum_dtype, H, D, DT = "bfloat16", "float", head_kv, dim, tail

    @T.prim_func
    def main(
        Q: T.Tensor(q_shape, dtype),  # type: ignore
        KV: T.Tensor(kv_shape, dtype),  # type: ignore
        Indices: T.Tensor(i_shape, "int32"),  # type: ignore
        Output: T.Tensor(o_shape, dtype),  # type: ignore
        Lse: T.Tensor(l_shape, accum_dtype),  # type: ignore
    ):
        with T.Kernel(seq_len, batch, kv_group, threads=threads) as (bx, by, bz):
            q, q_tail = T.alloc_shared([H, D], dtype), T.alloc_shared([H, DT], dtype)
            kv, k_tail = T.alloc_shared([BI, D], dtype), T.alloc_shared([BI, DT], dtype)
            mask = T.alloc_fragment([BI], "bool")
            acc_o, acc_s = T.alloc_fragment([H, D], accum_dtype), T.alloc_fragment([H, BI], accum_dtype)
            S = T.alloc_shared([H, BI], dtype)
            sumexp, sumexp_i = T.alloc_fragment([H], accum_dtype), T.alloc_fragment([H], accum_dtype)
            alpha = T.alloc_fragment([H], accum_dtype)
            m_i, m_prev = T.alloc_fragment([H], accum_dtype), T.alloc_fragment([H], accum_dtype)
            T.fill(acc_o, 0)
            T.fill(sumexp, 0)
            T.fill(m_i, -(2**30))
            b_i, g_i = by, bz
            s_i = bx
            H0 = g_i * H
            H1 = H0 + H
            T.copy(Q[b_i, s_i, H0:H1, :D], q)
            T.copy(Q[b_i, s_i, H0:H1, D:], q_tail)
            for i_i in T.Pipelined(T.ceildiv(topk, BI), num_stages=2):
                for bi_i in T.Parallel(BI):
                    mask[bi_i] = Indices[b_i, s_i, g_i, i_i * BI + bi_i] >= 0
                for bi_i, d_i in T.Parallel(BI, D):
                    kv[bi_i, d_i] = KV[b_i, T.max(Indices[b_i, s_i, g_i, i_i * BI + bi_i], 0), g_i, d_i]
                for bi_i, d_i in T.Parallel(BI, DT):
                    k_tail[bi_i, d_i] = KV[b_i, T.max(Indices[b_i, s_i, g_i, i_i * BI + bi_i], 0), g_i, D + d_i]
                for h_i, bi_i in T.Parallel(H, BI):
                    acc_s[h_i, bi_i] = T.if_then_else(mask[bi_i], 0, -T.infinity(acc_s.dtype))
                T.gemm(q, kv, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(q_tail, k_tail, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(m_i, m_prev)
                T.reduce_max(acc_s, m_i, dim=1, clear=False)
                for h_i in T.Parallel(H):
                    m_i[h_i] = T.max(m_i[h_i], m_prev[h_i])
                for h_i in T.Parallel(H):
                    alpha[h_i] = T.exp2((m_prev[h_i] - m_i[h_i]) * sm_scale)
                for h_i, bi_i in T.Parallel(H, BI):
                    acc_s[h_i, bi_i] = T.exp2(acc_s[h_i, bi_i] * sm_scale - m_i[h_i] * sm_scale)
                T.reduce_sum(acc_s, sumexp_i, dim=1)
                for h_i in T.Parallel(H):
                    sumexp[h_i] = sumexp[h_i] * alpha[h_i] + sumexp_i[h_i]
                for h_i, d_i in T.Parallel(H, D):
                    acc_o[h_i, d_i] = acc_o[h_i, d_i] * alpha[h_i]
                T.copy(acc_s, S)
                T.gemm(S, kv, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for h_i, d_i in T.Parallel(H, D):
                acc_o[h_i, d_i] /= sumexp[h_i]
            for h_i in T.Parallel(H):
                sumexp[h_i] = T.log2(sumexp[h_i]) + m_i[h_i] * sm_scale
            T.copy(acc_o, Output[b_i, s_i, H0:H1, :])
            T.copy(sumexp, Lse[b_i, s_i, H0:H1])

    return main


B, S, SKV, H, D, DT, topk = 1, 3, 64, 16, 32, 16, 32
q, kv = (
    torch.randn(B, S, H, D + DT, device=device).bfloat16(),
    torch.randn(B, SKV, 1, D + DT, device=device).bfloat16(),
)
index = torch.stack([torch.randperm(SKV)[:topk] for _ in range(B * S)]).view(B, S, 1, topk).int().to(device)
index[:, :, :, -5:] = -1
out, lse = chosen(H, D, DT, topk)(q, kv, index)
for s in range(S):
    keys = kv[0, index[0, s, 0, :-5].long(), 0].float()
    scores = q[0, s].float() @ keys.T / (D + DT) ** 0.5
    torch.testing.assert_close(out[0, s].float(), scores.softmax(-1) @ keys[:, :D], rtol=3e-2, atol=3e-2)
    torch.testing.assert_close(lse[0, s] * 0.6931472, scores.logsumexp(-1), rtol=1e-2, atol=1e-2)
