"""Decoding over pages of a cache: a table of blocks for each sequence, lengths that differ, heads in groups, splits combined."""

import math

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[8], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def paged_decode(batch, heads, kv_heads, max_pages, pages, dim, page_size=16, block_H=16, num_split=2, threads=128):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"
    group = heads // kv_heads
    valid_H = min(block_H, group)
    block_N = page_size

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        K: T.Tensor([pages, page_size, kv_heads, dim], dtype),
        V: T.Tensor([pages, page_size, kv_heads, dim], dtype),
        block_table: T.Tensor([batch, max_pages], "int32"),
        cache_seqlens: T.Tensor([batch], "int32"),
        sinks: T.Tensor([heads], "float32"),
        glse: T.Tensor([batch, heads, num_split], accum_dtype),
        Output_partial: T.Tensor([batch, heads, num_split, dim], accum_dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(batch, heads // valid_H, num_split, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_H, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_H, block_N], dtype)
            acc_o = T.alloc_fragment([block_H, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_H], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_H], accum_dtype)
            scores_scale = T.alloc_fragment([block_H], accum_dtype)
            scores_sum = T.alloc_fragment([block_H], accum_dtype)
            logsum = T.alloc_fragment([block_H], accum_dtype)
            cur_kv_head = by // (group // valid_H)
            T.copy(Q[bx, by * valid_H : by * valid_H + block_H, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            total = T.ceildiv(cache_seqlens[bx], block_N)
            per = total // num_split
            rest = total % num_split
            loop_range = per + T.if_then_else(bz < rest, 1, 0)
            start = per * bz + T.min(bz, rest)
            for k in T.Pipelined(loop_range, num_stages=2):
                page = block_table[bx, start + k]
                T.copy(K[page, :, cur_kv_head, :], K_shared)
                T.copy(V[page, :, cur_kv_head, :], V_shared)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.if_then_else(
                        (start + k) * block_N + j >= cache_seqlens[bx], -T.infinity(accum_dtype), acc_s[i, j]
                    )
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_H):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_H):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_H, dim):
                acc_o[i, j] = T.if_then_else(logsum[i] > 0, acc_o[i, j] / logsum[i], 0)
            for i in T.Parallel(block_H):
                logsum[i] = T.if_then_else(
                    logsum[i] > 0, T.log2(logsum[i]) + scores_max[i] * scale, -T.infinity(accum_dtype)
                )
            for i in T.Parallel(block_H):
                if i < valid_H:
                    glse[bx, by * valid_H + i, bz] = logsum[i]
            for i, j in T.Parallel(block_H, dim):
                if i < valid_H:
                    Output_partial[bx, by * valid_H + i, bz, j] = acc_o[i, j]
        with T.Kernel(heads, batch, threads=threads) as (by, bz):
            o = T.alloc_fragment([dim], accum_dtype)
            top = T.alloc_local([1], accum_dtype)
            norm = T.alloc_local([1], accum_dtype)
            T.clear(o)
            top[0] = sinks[by] * 1.44269504
            for k in T.serial(num_split):
                top[0] = T.max(top[0], glse[bz, by, k])
            norm[0] = T.exp2(sinks[by] * 1.44269504 - top[0])
            for k in T.serial(num_split):
                norm[0] += T.exp2(glse[bz, by, k] - top[0])
            for k in T.serial(num_split):
                for i in T.Parallel(dim):
                    o[i] += Output_partial[bz, by, k, i] * T.exp2(glse[bz, by, k] - top[0]) / norm[0]
            for i in T.Parallel(dim):
                Output[bz, by, i] = o[i]

    return main


REAL_SIZES = [("paged", lambda: paged_decode(64, 64, 8, 512, 4096, 128, 64, 64, 4))]

if __name__ == "__main__":
    batch, heads, kv_heads, max_pages, pages, dim, page, splits = 3, 4, 2, 6, 24, 32, 16, 2
    q = torch.randn(batch, heads, dim, device=dev).half()
    k, v = (torch.randn(pages, page, kv_heads, dim, device=dev).half() for _ in range(2))
    table = torch.stack([torch.randperm(pages)[:max_pages] for _ in range(batch)]).int().to(dev)
    lens = torch.tensor([5, 96, 40], dtype=torch.int32, device=dev)
    sinks = torch.randn(heads, device=dev)
    glse = torch.empty(batch, heads, splits, device=dev)
    part = torch.empty(batch, heads, splits, dim, device=dev)
    out = paged_decode(batch, heads, kv_heads, max_pages, pages, dim, page, num_split=splits)(
        q, k, v, table, lens, sinks, glse, part
    )
    for b in range(batch):
        n = int(lens[b])
        kb = k[table[b].long()].reshape(-1, kv_heads, dim)[:n].repeat_interleave(heads // kv_heads, 1).float()
        vb = v[table[b].long()].reshape(-1, kv_heads, dim)[:n].repeat_interleave(heads // kv_heads, 1).float()
        s = torch.einsum("hd,nhd->hn", q[b].float(), kb) / math.sqrt(dim)
        p = torch.cat([s, sinks[:, None]], 1).softmax(-1)[:, :n]
        torch.testing.assert_close(out[b].float(), torch.einsum("hn,nhd->hd", p, vb), rtol=1e-2, atol=1e-2)
    print("paged ok")
