"""Sparse training of variable lengths: an indexer's scores and their gradients, chosen keys of latent attention forwards and backwards."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(4)
dev = "cuda" if torch.cuda.is_available() else "cpu"
BF16, F32, I32 = T.bfloat16, T.float32, T.int32


@tilelang.jit(
    pass_configs={
        tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True,
        tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True,
    }
)
def indexer_backward(heads, dim, topk, block=32, threads=128):
    S, SK, B1 = T.symbolic("S"), T.symbolic("SK"), T.symbolic("B1")

    @T.prim_func
    def main(
        Q: T.Tensor([S, heads, dim], BF16),
        W: T.Tensor([S, heads], F32),
        K: T.Tensor([SK, dim], BF16),
        dQ: T.Tensor([S, heads, dim], F32),
        dW: T.Tensor([S, heads], F32),
        dK: T.Tensor([SK, dim], F32),
        P: T.Tensor([S, topk], F32),
        Qt: T.Tensor([S, topk], F32),
        idx: T.Tensor([S, topk], I32),
        offsets: T.Tensor([B1], I32),
        tokens: T.Tensor([S, 2], I32),
    ):
        with T.Kernel(S, threads=threads) as bx:
            q, k = T.alloc_shared([heads, dim], BF16), T.alloc_shared([block, dim], BF16)
            w = T.alloc_shared([heads], F32)
            chosen = T.alloc_shared([block], I32)
            logits, d_logits = T.alloc_fragment([block, heads], F32), T.alloc_shared([block, heads], BF16)
            dq, dk = T.alloc_fragment([heads, dim], F32), T.alloc_fragment([block, dim], F32)
            dw, dw_part = T.alloc_fragment([heads], F32), T.alloc_fragment([heads], F32)
            g = T.alloc_fragment([block], F32)
            relu = T.alloc_fragment([block, heads], F32)
            i_b, i_t = tokens[bx, 0], tokens[bx, 1]
            bos = offsets[i_b]
            n = T.min(topk, i_t + 1)
            T.copy(Q[bos + i_t, :, :], q)
            T.copy(W[bos + i_t, :], w)
            T.clear(dq)
            T.clear(dw)
            for kb in T.Pipelined(T.ceildiv(n, block), num_stages=0):
                for i in T.Parallel(block):
                    chosen[i] = T.if_then_else(kb * block + i < n, idx[bos + i_t, kb * block + i], -1)
                for i, j in T.Parallel(block, dim):
                    k[i, j] = T.if_then_else(chosen[i] >= 0, K[bos + chosen[i], j], 0)
                for i in T.Parallel(block):
                    g[i] = T.if_then_else(
                        chosen[i] >= 0, P[bos + i_t, kb * block + i] - Qt[bos + i_t, kb * block + i], 0.0
                    )
                T.gemm(k, q, logits, transpose_A=False, transpose_B=True, clear_accum=True)
                for i, h in T.Parallel(block, heads):
                    relu[i, h] = T.max(logits[i, h], 0) * g[i]
                T.reduce_sum(relu, dw_part, dim=0)
                for h in T.Parallel(heads):
                    dw[h] += dw_part[h]
                for i, h in T.Parallel(block, heads):
                    d_logits[i, h] = T.if_then_else(logits[i, h] > 0, g[i] * w[h], 0)
                T.gemm(d_logits, k, dq, transpose_A=True, transpose_B=False, clear_accum=False)
                T.gemm(d_logits, q, dk, transpose_A=False, transpose_B=False, clear_accum=True)
                for i, j in T.Parallel(block, dim):
                    if chosen[i] >= 0:
                        T.atomic_add(dK[bos + chosen[i], j], dk[i, j])
            T.copy(dq, dQ[bos + i_t, :, :])
            T.copy(dw, dW[bos + i_t, :])

    return main


@tilelang.jit(out_idx=[-2, -1])
def sparse_forward(heads, dim, tail, topk, block=32, threads=128):
    S, B1 = T.dynamic("S, B1")
    scale = (1.0 / (dim + tail)) ** 0.5 * 1.44269504

    @T.prim_func
    def main(
        Q: T.Tensor([S, heads, dim + tail], BF16),
        KV: T.Tensor([S, 1, dim + tail], BF16),
        Indices: T.Tensor([S, 1, topk], I32),
        offsets: T.Tensor([B1], I32),
        tokens: T.Tensor([S, 2], I32),
        O: T.Tensor([S, heads, dim], BF16),
        Lse: T.Tensor([S, heads], F32),
    ):
        with T.Kernel(S, 1, threads=threads) as (bx, by):
            q, qt = T.alloc_shared([heads, dim], BF16), T.alloc_shared([heads, tail], BF16)
            kv, kt = T.alloc_shared([block, dim], BF16), T.alloc_shared([block, tail], BF16)
            mask = T.alloc_fragment([block], "bool")
            acc_o, acc_s, s_s = (
                T.alloc_fragment([heads, dim], F32),
                T.alloc_fragment([heads, block], F32),
                T.alloc_shared([heads, block], BF16),
            )
            sumexp, sumexp_i, alpha, m, m_prev = (T.alloc_fragment([heads], F32) for _ in range(5))
            T.fill(acc_o, 0)
            T.fill(sumexp, 0)
            T.fill(m, -(2**30))
            b, t = tokens[bx, 0], tokens[bx, 1]
            bos, eos = offsets[b], offsets[b + 1]
            T.copy(Q[bos + t, 0:heads, :dim], q)
            T.copy(Q[bos + t, 0:heads, dim:], qt)
            for ki in T.Pipelined(topk // block, num_stages=2):
                for i in T.Parallel(block):
                    mask[i] = (Indices[bos + t, by, ki * block + i] <= t) & (Indices[bos + t, by, ki * block + i] != -1)
                for i, j in T.Parallel(block, dim):
                    kv[i, j] = KV[bos + T.max(Indices[bos + t, by, ki * block + i], 0), by, j]
                for i, j in T.Parallel(block, tail):
                    kt[i, j] = KV[bos + T.max(Indices[bos + t, by, ki * block + i], 0), by, dim + j]
                for h, i in T.Parallel(heads, block):
                    acc_s[h, i] = T.if_then_else(mask[i], 0, -T.infinity(acc_s.dtype))
                T.gemm(q, kv, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.gemm(qt, kt, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.copy(m, m_prev)
                T.reduce_max(acc_s, m, dim=1, clear=False)
                for h in T.Parallel(heads):
                    m[h] = T.max(m[h], m_prev[h])
                for h in T.Parallel(heads):
                    alpha[h] = T.exp2((m_prev[h] - m[h]) * scale)
                for h, i in T.Parallel(heads, block):
                    acc_s[h, i] = T.exp2(acc_s[h, i] * scale - m[h] * scale)
                T.reduce_sum(acc_s, sumexp_i, dim=1)
                for h in T.Parallel(heads):
                    sumexp[h] = sumexp[h] * alpha[h] + sumexp_i[h]
                for h, d in T.Parallel(heads, dim):
                    acc_o[h, d] *= alpha[h]
                T.copy(acc_s, s_s)
                T.gemm(s_s, kv, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for h, d in T.Parallel(heads, dim):
                acc_o[h, d] /= sumexp[h]
            for h in T.Parallel(heads):
                sumexp[h] = T.log2(sumexp[h]) + m[h] * scale
            T.copy(acc_o, O[bos + t, 0:heads, :])
            T.copy(sumexp, Lse[bos + t, 0:heads])

    return main


def main():
    lengths = [9, 20]
    offsets = torch.tensor([0, 9, 29], dtype=torch.int32)
    tokens = torch.tensor([[b, t] for b, n in enumerate(lengths) for t in range(n)], dtype=torch.int32)
    S, heads, dim, tail, topk = 29, 16, 64, 32, 32
    idx = torch.full((S, topk), -1, dtype=torch.int32)
    for s, (_, t) in enumerate(tokens.tolist()):
        chosen = torch.randperm(t + 1)[:topk]
        idx[s, : len(chosen)] = chosen.int()
    q, kv = torch.randn(S, heads, dim + tail).bfloat16(), torch.randn(S, 1, dim + tail).bfloat16()
    o, lse = sparse_forward(heads, dim, tail, topk)(*(x.to(dev) for x in (q, kv, idx[:, None], offsets, tokens)))
    qi, ki, w = torch.randn(S, heads, dim).bfloat16(), torch.randn(S, dim).bfloat16(), torch.randn(S, heads)
    p, pt = torch.rand(S, topk), torch.rand(S, topk)
    dq, dw, dk = torch.full((S, heads, dim), 7.0), torch.full((S, heads), 7.0), torch.zeros(S, dim)
    given = [x.to(dev) for x in (qi, w, ki, dq, dw, dk, p, pt, idx, offsets, tokens)]
    indexer_backward(heads, dim, topk)(*given)
    wq, ww, wk = torch.zeros(S, heads, dim), torch.zeros(S, heads), torch.zeros(S, dim)
    for s, (b, _) in enumerate(tokens.tolist()):
        rows = idx[s][idx[s] >= 0].long() + int(offsets[b])
        n = len(rows)
        keys = kv[rows, 0].float()
        sc = (q[s].float() @ keys.T) / (dim + tail) ** 0.5
        torch.testing.assert_close(o[s].float().cpu(), sc.softmax(-1) @ keys[:, :dim], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lse[s].cpu(), sc.logsumexp(-1) * 1.44269504, rtol=1e-2, atol=1e-2)
        g = (p - pt)[s, :n]
        logits = ki[rows].float() @ qi[s].float().T
        ww[s] = (logits.relu() * g[:, None]).sum(0)
        dl = (g[:, None] * w[s] * (logits > 0)).bfloat16().float()
        wq[s] = dl.T @ ki[rows].float()
        wk.index_add_(0, rows, dl @ qi[s].float())
    for found, wanted in zip(given[3:6], (wq, ww, wk)):
        torch.testing.assert_close(found.cpu(), wanted, rtol=2e-2, atol=5e-2)
    print("right")


REAL_SIZES = [
    ("indexer", lambda: indexer_backward(64, 128, 2048, threads=128)),
    ("sparse", lambda: sparse_forward(64, 512, 64, 2048, block=64, threads=256)),
]

if __name__ == "__main__":
    main()
