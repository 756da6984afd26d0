"""Retention: products with decays between the two, one pass over blocks."""

import argparse

import tilelang
import tilelang.language as T
import torch

dev = "cuda" if torch.cuda.is_available() else "cpu"


def chunk_retention_fwd_kernel(B, S, H, DK, DV, dtype="float16", scale=None):
    if scale is None:
        scale = DK**-0.5
    accum_dtype = "float"
    chunk_size = 32
    BK = BV = 32
    NK = tilelang.cdiv(DK, BK)
    NV = tilelang.cdiv(DV, BV)
    NT = tilelang.cdiv(S, chunk_size)

    @T.prim_func
    def chunk_retention_fwd(
        Q: T.Tensor([B, S, H, DK], dtype),
        K: T.Tensor([B, S, H, DK], dtype),
        V: T.Tensor([B, S, H, DV], dtype),
        O: T.Tensor([NK, B, S, H, DV], dtype),
    ):
        with T.Kernel(NV, NK, B * H) as (i_v, i_k, i_bh):
            i_b = i_bh // H
            i_h = i_bh % H
            log_decay = T.alloc_var("float32")
            log_decay = T.log2(1 - T.exp2(-5.0 - 1.0 * i_h))
            q = T.alloc_shared([chunk_size, BK], dtype)
            k = T.alloc_shared([chunk_size, BK], dtype)
            v = T.alloc_shared([chunk_size, BV], dtype)
            h = T.alloc_fragment([BK, BV], accum_dtype)
            h_shared = T.alloc_shared([BK, BV], dtype)
            s = T.alloc_fragment([chunk_size, chunk_size], accum_dtype)
            s_shared = T.alloc_shared([chunk_size, chunk_size], dtype)
            o = T.alloc_fragment([chunk_size, BV], accum_dtype)
            T.clear(h)
            T.use_swizzle(10)
            for i in T.Pipelined(0, NT):
                for row, col in T.Parallel(chunk_size, BK):
                    q[row, col] = Q[i_b, i * chunk_size + row, i_h, i_k * BK + col] * scale
                T.copy(K[i_b, i * chunk_size : (i + 1) * chunk_size, i_h, i_k * BK : (i_k + 1) * BK], k)
                T.copy(V[i_b, i * chunk_size : (i + 1) * chunk_size, i_h, i_v * BV : (i_v + 1) * BV], v)
                T.gemm(q, k, s, clear_accum=True, transpose_B=True)
                for row, col in T.Parallel(chunk_size, chunk_size):
                    s_shared[row, col] = T.if_then_else(row >= col, s[row, col] * T.exp2((row - col) * log_decay), 0)
                T.copy(h, h_shared)
                T.gemm(q, h_shared, o, clear_accum=True)
                for row, col in T.Parallel(chunk_size, BV):
                    o[row, col] = T.exp2((row + 1) * log_decay) * o[row, col]
                T.gemm(s_shared, v, o)
                for row, col in T.Parallel(chunk_size, BV):
                    v[row, col] = v[row, col] * T.exp2((chunk_size - row - 1) * log_decay)
                for row, col in T.Parallel(BK, BV):
                    h[row, col] = T.exp2(chunk_size * log_decay) * h[row, col]
                T.copy(o, O[i_k, i_b, i * chunk_size : (i + 1) * chunk_size, i_h, i_v * BV : (i_v + 1) * BV])
                T.gemm(k, v, h, transpose_A=True)

    return chunk_retention_fwd


def postprocess(o):
    return o if o.size(0) == 1 else o.sum(0)


REAL_SIZES = [("retention", lambda: tilelang.compile(chunk_retention_fwd_kernel(4, 4096, 16, 256, 512), out_idx=[3]))]


def main(B=1, S=96, H=2, D=64):
    q, k, v = (torch.randn((B, S, H, D), device=dev, dtype=torch.float16) * 0.5 for _ in range(3))
    kernel = tilelang.compile(
        chunk_retention_fwd_kernel(B, S, H, D, D), out_idx=[3], pass_configs={"tl.disable_warp_specialized": True}
    )
    o = postprocess(kernel(q, k, v).float())
    decay = torch.log2(1 - torch.exp2(-5.0 - torch.arange(H, device=dev).float()))
    n = torch.arange(S, device=dev).float()
    n = torch.exp2((n[:, None] - n[None, :]) * decay.view(-1, 1, 1)) * (n[:, None] >= n[None, :])
    s = torch.einsum("bqhd,bkhd,hqk->bhqk", q.float(), k.float(), n) * D**-0.5
    ref = torch.einsum("bhqk,bkhd->bqhd", s, v.float())
    torch.testing.assert_close(o, ref, rtol=2e-2, atol=2e-2)
    print("retention ok")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--B", type=int, default=1, help="Batch size")
    args, _ = parser.parse_known_args()
    main(args.B)
