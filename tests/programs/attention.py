"""Attention of one head block by block, with running maxima and sums."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[3])
def attention(batch, heads, seq, dim, causal, BM=32, BN=32):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    shape, dtype, accum = [batch, seq, heads, dim], T.float16, T.float32

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype), Out: T.Tensor(shape, dtype)
    ):
        with T.Kernel(T.ceildiv(seq, BM), heads, batch, threads=64) as (bx, by, bz):
            q, k, v = (
                T.alloc_shared([BM, dim], dtype),
                T.alloc_shared([BN, dim], dtype),
                T.alloc_shared([BN, dim], dtype),
            )
            s, p, o = (
                T.alloc_fragment([BM, BN], accum),
                T.alloc_fragment([BM, BN], dtype),
                T.alloc_fragment([BM, dim], accum),
            )
            top, before, factor = (
                T.alloc_fragment([BM], accum),
                T.alloc_fragment([BM], accum),
                T.alloc_fragment([BM], accum),
            )
            part, total = T.alloc_fragment([BM], accum), T.alloc_fragment([BM], accum)
            T.copy(Q[bz, bx * BM : (bx + 1) * BM, by, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity(accum))
            steps = T.ceildiv((bx + 1) * BM, BN) if causal else T.ceildiv(seq, BN)
            for step in T.Pipelined(steps, num_stages=1):
                T.copy(K[bz, step * BN : (step + 1) * BN, by, :], k)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(bx * BM + i >= step * BN + j, 0, -T.infinity(accum)) if causal else 0
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(top, before)
                T.fill(top, -T.infinity(accum))
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(BM):
                    top[i] = T.max(top[i], before[i])
                    factor[i] = T.exp2(before[i] * scale - top[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] * scale - top[i] * scale)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * factor[i] + part[i]
                T.copy(s, p)
                for i, j in T.Parallel(BM, dim):
                    o[i, j] *= factor[i]
                T.copy(V[bz, step * BN : (step + 1) * BN, by, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, dim):
                o[i, j] /= total[i]
            T.copy(o, Out[bz, bx * BM : (bx + 1) * BM, by, :])

    return main


for causal in (False, True):
    q, k, v = (torch.randn(1, 64, 2, 32, device=device).half() for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.float().transpose(1, 2) for x in (q, k, v)), is_causal=causal
    )
    torch.testing.assert_close(
        attention(1, 2, 64, 32, causal)(q, k, v).float(), wanted.transpose(1, 2), rtol=2e-2, atol=2e-2
    )
