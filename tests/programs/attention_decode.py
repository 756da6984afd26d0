"""Attention of one query for each head over a long cache, in splits that a second kernel combines; heads share keys in groups."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[6], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def decode(batch, heads, groups, seq, dim, block_N=32, block_H=16, num_split=2, num_stages=1, threads=64):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = T.float16, T.float32
    group = heads // groups
    valid_h = min(block_H, group)

    @T.macro
    def part(
        Q: T.Tensor([batch, heads, dim], dtype),
        K: T.Tensor([batch, seq, groups, dim], dtype),
        V: T.Tensor([batch, seq, groups, dim], dtype),
        mask: T.Tensor([batch, seq, groups], "uint8"),
        glse: T.Tensor([batch, heads, num_split], dtype),
        Partial: T.Tensor([batch, heads, num_split, dim], dtype),
    ):
        with T.Kernel(batch, heads // valid_h, num_split, threads=threads) as (bx, by, bz):
            q = T.alloc_shared([block_H, dim], dtype)
            k = T.alloc_shared([block_N, dim], dtype)
            v = T.alloc_shared([block_N, dim], dtype)
            o_shared = T.alloc_shared([valid_h, dim], dtype)
            s = T.alloc_fragment([block_H, block_N], accum_dtype)
            p = T.alloc_fragment([block_H, block_N], dtype)
            m = T.alloc_fragment([block_N], "uint8")
            o = T.alloc_fragment([block_H, dim], accum_dtype)
            top = T.alloc_fragment([block_H], accum_dtype)
            before = T.alloc_fragment([block_H], accum_dtype)
            factor = T.alloc_fragment([block_H], accum_dtype)
            sums = T.alloc_fragment([block_H], accum_dtype)
            total = T.alloc_fragment([block_H], accum_dtype)
            kv = by // (group // valid_h)
            T.copy(Q[bx, by * valid_h : by * valid_h + block_H, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity(accum_dtype))
            first = bz * (seq // num_split)
            for n in T.Pipelined(T.ceildiv(seq // num_split, block_N), num_stages=num_stages):
                T.copy(K[bx, first + n * block_N : first + (n + 1) * block_N, kv, :], k)
                T.copy(mask[bx, first + n * block_N : first + (n + 1) * block_N, kv], m)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_H, block_N):
                    s[i, j] = T.if_then_else(m[j] != 0, s[i, j], -T.infinity(accum_dtype))
                T.copy(top, before)
                T.fill(top, -T.infinity(accum_dtype))
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(block_H):
                    top[i] = T.max(top[i], before[i])
                for i in T.Parallel(block_H):
                    factor[i] = T.exp2(before[i] * scale - top[i] * scale)
                for i, j in T.Parallel(block_H, block_N):
                    s[i, j] = T.exp2(s[i, j] * scale - top[i] * scale)
                T.reduce_sum(s, sums, dim=1)
                for i in T.Parallel(block_H):
                    total[i] = total[i] * factor[i] + sums[i]
                T.copy(s, p)
                for i, j in T.Parallel(block_H, dim):
                    o[i, j] *= factor[i]
                T.copy(V[bx, first + n * block_N : first + (n + 1) * block_N, kv, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_H, dim):
                o[i, j] /= total[i]
            for i in T.Parallel(block_H):
                total[i] = T.log2(total[i]) + top[i] * scale
            for i in T.Parallel(block_H):
                if i < valid_h:
                    glse[bx, by * valid_h + i, bz] = total[i]
            T.copy(o[:valid_h, :], o_shared)
            T.copy(o_shared, Partial[bx, by * valid_h : (by + 1) * valid_h, bz, :])

    @T.macro
    def combine(
        glse: T.Tensor([batch, heads, num_split], dtype),
        Partial: T.Tensor([batch, heads, num_split, dim], dtype),
        Out: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(heads, batch, threads=64) as (by, bz):
            po = T.alloc_fragment([dim], dtype)
            o = T.alloc_fragment([dim], accum_dtype)
            local = T.alloc_local([1], accum_dtype)
            logsum = T.alloc_local([1], accum_dtype)
            largest = T.alloc_local([1], accum_dtype)
            share = T.alloc_local([1], accum_dtype)
            T.clear(logsum)
            T.clear(o)
            largest[0] = -T.infinity(accum_dtype)
            for k in T.serial(num_split):
                largest[0] = T.max(largest[0], glse[bz, by, k])
            for k in T.Pipelined(num_split, num_stages=1):
                local[0] = glse[bz, by, k]
                logsum[0] += T.exp2(local[0] - largest[0])
            logsum[0] = T.log2(logsum[0]) + largest[0]
            for k in T.serial(num_split):
                for i in T.Parallel(dim):
                    po[i] = Partial[bz, by, k, i]
                local[0] = glse[bz, by, k]
                share[0] = T.exp2(local[0] - logsum[0])
                for i in T.Parallel(dim):
                    o[i] += po[i] * share[0]
            for i in T.Parallel(dim):
                Out[bz, by, i] = o[i]

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        K: T.Tensor([batch, seq, groups, dim], dtype),
        V: T.Tensor([batch, seq, groups, dim], dtype),
        mask: T.Tensor([batch, seq, groups], "uint8"),
        glse: T.Tensor([batch, heads, num_split], dtype),
        Partial: T.Tensor([batch, heads, num_split, dim], dtype),
        Out: T.Tensor([batch, heads, dim], dtype),
    ):
        part(Q, K, V, mask, glse, Partial)
        combine(glse, Partial, Out)

    return main


batch, heads, groups, seq, dim = 2, 8, 2, 128, 32
q = torch.randn(batch, heads, dim, device=device).half()
k, v = (torch.randn(batch, seq, groups, dim, device=device).half() for _ in range(2))
mask = torch.randint(0, 2, (batch, seq, groups), device=device, dtype=torch.uint8)
glse = torch.empty(batch, heads, 2, device=device).half()
parts = torch.empty(batch, heads, 2, dim, device=device).half()
found = decode(batch, heads, groups, seq, dim)(q, k, v, mask, glse, parts)
wide_k, wide_v = (x.float().repeat_interleave(heads // groups, 2) for x in (k, v))
scores = torch.einsum("bhd,bnhd->bhn", q.float(), wide_k) / dim**0.5
hidden = mask.repeat_interleave(heads // groups, 2).transpose(1, 2) == 0
wanted = torch.einsum("bhn,bnhd->bhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), wide_v)
torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
