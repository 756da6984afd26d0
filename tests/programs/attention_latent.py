"""Decoding with latent attention: keys are values and a rotated part, and all heads share them."""

import tilelang
import tilelang.language as T
import torch
from tilelang.profiler import do_bench

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[4])
def latent(batch, heads, seq, dim, pe_dim, block_N=32, block_H=16):
    scale = (1.0 / (dim + pe_dim)) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        Q_pe: T.Tensor([batch, heads, pe_dim], dtype),
        KV: T.Tensor([batch, seq, 1, dim], dtype),
        K_pe: T.Tensor([batch, seq, 1, pe_dim], dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(heads // block_H, batch, threads=128) as (hid, bid):
            Q_shared = T.alloc_shared([block_H, dim], dtype)
            S_shared = T.alloc_shared([block_H, block_N], dtype)
            Q_pe_shared = T.alloc_shared([block_H, pe_dim], dtype)
            KV_shared = T.alloc_shared([block_N, dim], dtype)
            K_pe_shared = T.alloc_shared([block_N, pe_dim], dtype)
            O_shared = T.alloc_shared([block_H, dim], dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            acc_o = T.alloc_fragment([block_H, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_H], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_H], accum_dtype)
            scores_scale = T.alloc_fragment([block_H], accum_dtype)
            scores_sum = T.alloc_fragment([block_H], accum_dtype)
            logsum = T.alloc_fragment([block_H], accum_dtype)

            T.annotate_layout({O_shared: tilelang.layout.make_swizzled_layout(O_shared)})
            T.use_swizzle(10)
            T.copy(Q[bid, hid * block_H : (hid + 1) * block_H, :], Q_shared)
            T.copy(Q_pe[bid, hid * block_H : (hid + 1) * block_H, :], Q_pe_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            for k in T.Pipelined(T.ceildiv(seq, block_N), num_stages=2):
                T.copy(KV[bid, k * block_N : (k + 1) * block_N, 0, :], KV_shared)
                T.copy(K_pe[bid, k * block_N : (k + 1) * block_N, 0, :], K_pe_shared)
                T.gemm(Q_shared, KV_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
                T.gemm(Q_pe_shared, K_pe_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
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
                T.copy(acc_s, S_shared)
                for i in T.Parallel(block_H):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.gemm(S_shared, KV_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(block_H, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bid, hid * block_H : (hid + 1) * block_H, :])

    return main


batch, heads, seq, dim, pe = 1, 16, 96, 64, 16
q, q_pe = torch.randn(batch, heads, dim, device=device).half(), torch.randn(batch, heads, pe, device=device).half()
kv, k_pe = torch.randn(batch, seq, 1, dim, device=device).half(), torch.randn(batch, seq, 1, pe, device=device).half()
kernel = latent(batch, heads, seq, dim, pe)
query, key = torch.cat([q, q_pe], -1).float(), torch.cat([kv, k_pe], -1).float()[:, :, 0]
weights = (torch.einsum("bhd,bnd->bhn", query, key) / (dim + pe) ** 0.5).softmax(-1)
wanted = torch.einsum("bhn,bnd->bhd", weights, kv.float()[:, :, 0])
torch.testing.assert_close(kernel(q, q_pe, kv, k_pe).float(), wanted, rtol=2e-2, atol=2e-2)
profiler = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Randn)
assert profiler.do_bench(warmup=1, rep=1) > 0 and do_bench(lambda: kernel(q, q_pe, kv, k_pe), warmup=1, rep=1) > 0
