"""Mamba 2: chunk state and chunk scan with tuned tiles by itertools and einops-free references."""

import argparse
import itertools

import tilelang
import tilelang.language as T
import torch
from tilelang.autotuner import autotune

dev = "cuda" if torch.cuda.is_available() else "cpu"


def chunk_state_ref(B, x, dt, dA_cumsum):
    batch, seqlen, nheads, headdim = x.shape  # noqa: RUF059
    dstate = B.shape[-1]
    _, _, nchunks, chunk_size = dt.shape
    B = B.repeat_interleave(nheads // B.shape[2], dim=2)
    x = x.view(batch, nchunks, chunk_size, nheads, headdim)
    B = B.view(batch, nchunks, chunk_size, nheads, dstate)
    decay = torch.exp(dA_cumsum[:, :, :, -1:] - dA_cumsum)
    return torch.einsum("bclhn,bhcl,bhcl,bclhp->bchpn", B.float(), decay.float(), dt.float(), x.float())


def get_configs():
    iter_params = {"block_M": [64], "block_N": [32, 64], "block_K": [32], "num_stages": [1, 2]}
    return [dict(zip(iter_params, values)) for values in itertools.product(*iter_params.values())]


@autotune(configs=get_configs(), warmup=1, rep=1)
@tilelang.jit(out_idx=[4], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def chunk_state_fwd(
    batch,
    seqlen,
    chunk_size,
    ngroups,
    nheads,
    headdim,
    dstate,
    block_M=64,
    block_N=64,
    block_K=64,
    num_stages=2,
    threads=128,
):
    dtype = T.float16
    accum_dtype = T.float32
    nchunks = T.ceildiv(seqlen, chunk_size)
    p = 1.44269504

    @T.prim_func
    def main(
        B: T.Tensor((batch, seqlen, ngroups, dstate), dtype),
        x: T.Tensor((batch, seqlen, nheads, headdim), dtype),
        dt: T.Tensor((batch, nheads, nchunks, chunk_size), dtype),
        dA_cumsum: T.Tensor((batch, nheads, nchunks, chunk_size), dtype),
        Output: T.Tensor((batch, nchunks, nheads, headdim, dstate), dtype),
    ):
        with T.Kernel(
            nheads, T.ceildiv(headdim, block_M) * T.ceildiv(dstate, block_N), batch * nchunks, threads=threads
        ) as (bz, bx, by):
            x_shared = T.alloc_shared((block_K, block_M), dtype)
            x_local = T.alloc_fragment((block_K, block_M), dtype)
            xt_local = T.alloc_fragment((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            dt_shared = T.alloc_shared((block_K), dtype)
            dA_cumsum_shared = T.alloc_shared((block_K), dtype)
            acc_o = T.alloc_fragment((block_M, block_N), accum_dtype)
            acc_o_shared = T.alloc_shared((block_M, block_N), dtype)
            scale = T.alloc_fragment((block_K), accum_dtype)
            dA_cs_last = T.alloc_fragment((1), accum_dtype)
            dA_cumsum_local = T.alloc_fragment((block_K), accum_dtype)
            dt_local = T.alloc_fragment((block_K), accum_dtype)
            loop_range = T.ceildiv(chunk_size, block_K)
            batch_idx = by % batch
            chunk_idx = by // batch
            m_idx = bx // T.ceildiv(dstate, block_N)
            n_idx = bx % T.ceildiv(dstate, block_N)
            T.annotate_layout(
                {
                    x_shared: tilelang.layout.make_swizzled_layout(x_shared),
                    acc_o_shared: tilelang.layout.make_swizzled_layout(acc_o_shared),
                }
            )
            dA_cs_last[0] = dA_cumsum[batch_idx, bz, chunk_idx, chunk_size - 1]
            T.clear(acc_o)
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    x[
                        batch_idx,
                        chunk_idx * chunk_size + k * block_K : chunk_idx * chunk_size + (k + 1) * block_K,
                        bz,
                        m_idx * block_M : (m_idx + 1) * block_M,
                    ],
                    x_shared,
                )
                T.copy(dA_cumsum[batch_idx, bz, chunk_idx, k * block_K : (k + 1) * block_K], dA_cumsum_shared)
                T.copy(dt[batch_idx, bz, chunk_idx, k * block_K : (k + 1) * block_K], dt_shared)
                T.copy(dA_cumsum_shared, dA_cumsum_local)
                T.copy(dt_shared, dt_local)
                for i in T.Parallel(block_K):
                    scale[i] = T.exp2(dA_cs_last[0] * p - dA_cumsum_local[i] * p) * dt_local[i]
                T.copy(x_shared, x_local)
                for i, j in T.Parallel(block_M, block_K):
                    xt_local[i, j] = x_local[j, i] * scale[j]
                T.copy(
                    B[
                        batch_idx,
                        chunk_idx * chunk_size + k * block_K : chunk_idx * chunk_size + (k + 1) * block_K,
                        bz // (nheads // ngroups),
                        n_idx * block_N : (n_idx + 1) * block_N,
                    ],
                    B_shared,
                )
                T.gemm(xt_local, B_shared, acc_o)
            T.copy(acc_o, acc_o_shared)
            T.copy(
                acc_o_shared,
                Output[
                    batch_idx,
                    chunk_idx,
                    bz,
                    m_idx * block_M : (m_idx + 1) * block_M,
                    n_idx * block_N : (n_idx + 1) * block_N,
                ],
            )

    return main


REAL_SIZES = [
    (
        "chunk_state",
        lambda: chunk_state_fwd(8, 4096, 256, 1, 80, 64, 128, block_M=64, block_N=128, block_K=64, num_stages=4),
    )
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    args, _ = parser.parse_known_args()
    batch, heads, groups, seq, chunk, dim, dstate = 1, 2, 1, 128, 64, 64, 64
    if args.tune:
        kernel = chunk_state_fwd(batch, seq, chunk, groups, heads, dim, dstate)
        print(kernel.latency, kernel.config)
    else:
        kernel = chunk_state_fwd(
            batch, seq, chunk, groups, heads, dim, dstate, block_M=64, block_N=64, block_K=32, num_stages=2, threads=128
        )
    x = torch.randn(batch, seq, heads, dim, device=dev).half() * 0.3
    Bm = torch.randn(batch, seq, groups, dstate, device=dev).half() * 0.3
    dt = torch.rand(batch, heads, seq // chunk, chunk, device=dev).half()
    dA = -torch.rand(batch, heads, seq // chunk, chunk, device=dev).cumsum(-1).half() * 0.1
    out = kernel(Bm, x, dt, dA)
    torch.testing.assert_close(out.float(), chunk_state_ref(Bm, x, dt, dA), rtol=2e-2, atol=2e-2)
    print("ok")
