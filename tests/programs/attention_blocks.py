"""Attention that skips blocks: by a mask of blocks, by windows with a sink, and by a list of chosen blocks for each query."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def make(batch, heads, seq, dim, block, window=None):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    shape, dtype, accum = [batch, heads, seq, dim], "float16", "float"
    blocks = seq // block

    @T.macro
    def softmax(s, p, top, before, factor, part, total):
        T.copy(top, before)
        T.fill(top, -T.infinity(accum))
        T.reduce_max(s, top, dim=1, clear=False)
        for i in T.Parallel(block):
            top[i] = T.max(top[i], before[i])
            before[i] = T.if_then_else(top[i] == -T.infinity(accum), 0, before[i] - top[i])
            factor[i] = T.exp2(before[i] * scale)
        for i, j in T.Parallel(block, block):
            s[i, j] = T.if_then_else(top[i] == -T.infinity(accum), 0, T.exp2(s[i, j] * scale - top[i] * scale))
        T.reduce_sum(s, part, dim=1)
        for i in T.Parallel(block):
            total[i] = total[i] * factor[i] + part[i]
        T.copy(s, p)

    @T.prim_func
    def by_mask(
        Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype),
        Mask: T.Tensor([batch, heads, blocks, blocks], "bool"), Sinks: T.Tensor([heads], "float32"), Out: T.Tensor(shape, dtype),
    ):  # fmt: skip
        with T.Kernel(blocks, heads, batch, threads=64) as (bx, by, bz):
            q, k, v = (T.alloc_shared([block, dim], dtype) for _ in range(3))
            s, p, o = (
                T.alloc_fragment([block, block], accum),
                T.alloc_fragment([block, block], dtype),
                T.alloc_fragment([block, dim], accum),
            )
            top, before, factor, part, total = (T.alloc_fragment([block], accum) for _ in range(5))
            block_mask = T.alloc_local([blocks], "bool")
            T.copy(Q[bz, by, bx * block : (bx + 1) * block, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity(accum))
            for vj in T.serial(blocks):
                block_mask[vj] = Mask[bz, by, bx, vj]
            first = T.max(0, (bx * block - window) // block) if window is not None else 0
            for n in T.Pipelined(first, bx + 1, num_stages=1):
                if block_mask[n] != 0:
                    T.copy(K[bz, by, n * block : (n + 1) * block, :], k)
                    for i, j in T.Parallel(block, block):
                        row, column = bx * block + i, n * block + j
                        if window is not None:
                            s[i, j] = T.if_then_else(row >= column and column > row - window, 0, -T.infinity(accum))
                        else:
                            s[i, j] = T.if_then_else(row >= column, 0, -T.infinity(accum))
                    T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    softmax(s, p, top, before, factor, part, total)
                    for i, j in T.Parallel(block, dim):
                        o[i, j] *= factor[i]
                    T.copy(V[bz, by, n * block : (n + 1) * block, :], v)
                    T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(block):
                total[i] += T.exp2(Sinks[by] * 1.44269504 - top[i] * scale)
            for i, j in T.Parallel(block, dim):
                o[i, j] /= total[i]
            T.copy(o, Out[bz, by, bx * block : (bx + 1) * block, :])

    return by_mask


@tilelang.jit(out_idx=[4])
def selected(heads, dim, block, chosen, group=16):
    batch, seq = 1, T.dynamic("seq")
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum = T.float16, T.float32

    @T.prim_func
    def main(
        Q: T.Tensor([batch, seq, heads, dim], dtype), K: T.Tensor([batch, seq, heads // group, dim], dtype),
        V: T.Tensor([batch, seq, heads // group, dim], dtype), Blocks: T.Tensor([batch, seq, heads // group, chosen], T.int32),
        Out: T.Tensor([batch, seq, heads, dim], dtype),
    ):  # fmt: skip
        with T.Kernel(seq, 1, batch * (heads // group), threads=32) as (bx, _, bz):
            q, kv = T.alloc_shared([group, dim], dtype), T.alloc_shared([block, dim], dtype)
            s, p, o = (
                T.alloc_fragment([group, block], accum),
                T.alloc_fragment([group, block], dtype),
                T.alloc_fragment([group, dim], accum),
            )
            top, before, factor, part, total = (T.alloc_fragment([group], accum) for _ in range(5))
            i_t, i_b, i_h = bx, bz // (heads // group), bz % (heads // group)
            T.copy(Q[i_b, i_t, i_h * group : (i_h + 1) * group, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity(accum))
            for i in T.Pipelined(chosen, num_stages=0):
                start = Blocks[i_b, i_t, i_h, i] * block
                if start <= i_t and start >= 0:
                    T.copy(K[i_b, start : start + block, i_h, :], kv)
                    for g, j in T.Parallel(group, block):
                        s[g, j] = T.if_then_else(i_t >= start + j, 0, -T.infinity(s.dtype))
                    T.gemm(q, kv, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(top, before)
                    T.reduce_max(s, top, dim=1, clear=False)
                    for g in T.Parallel(group):
                        factor[g] = T.exp2(before[g] * scale - top[g] * scale)
                    for g, j in T.Parallel(group, block):
                        s[g, j] = T.exp2(s[g, j] * scale - top[g] * scale)
                    T.reduce_sum(s, part, dim=1)
                    for g in T.Parallel(group):
                        total[g] = total[g] * factor[g] + part[g]
                    T.copy(s, p)
                    for g, j in T.Parallel(group, dim):
                        o[g, j] *= factor[g]
                    T.copy(V[i_b, start : start + block, i_h, :], kv)
                    T.gemm(p, kv, o, policy=T.GemmWarpPolicy.FullRow)
            for g, j in T.Parallel(group, dim):
                o[g, j] /= total[g]
            T.copy(o, Out[i_b, i_t, i_h * group : (i_h + 1) * group, :])

    return main


B, H, S, D, block = 1, 2, 96, 32, 16
q, k, v = (torch.randn(B, H, S, D, device=device).half() for _ in range(3))
mask = torch.rand(B, H, S // block, S // block, device=device) > 0.4
mask |= torch.eye(S // block, device=device, dtype=torch.bool)
sinks = torch.randn(H, device=device)
rows, columns = torch.arange(S, device=device)[:, None], torch.arange(S, device=device)[None]
for window in (None, 24):
    kernel = tilelang.compile(make(B, H, S, D, block, window), out_idx=[-1])
    seen = (
        mask.repeat_interleave(block, 2).repeat_interleave(block, 3)
        & (rows >= columns)
        & ((columns > rows - window) if window else True)
    )
    scores = (q.float() @ k.float().transpose(2, 3) / D**0.5).masked_fill(~seen, float("-inf"))
    scores = torch.cat([scores, sinks[None, :, None, None].expand(B, H, S, 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(kernel(q, k, v, mask, sinks).float(), scores @ v.float(), rtol=2e-2, atol=2e-2)

q = torch.randn(1, 48, 16, 32, device=device).half()
k, v = (torch.randn(1, 48, 1, 32, device=device).half() for _ in range(2))
index = torch.full((1, 48, 1, 3), 48, dtype=torch.int32)
for t in range(48):
    some = torch.randperm(t // 16 + 1)[:3].int()
    index[0, t, 0, : len(some)] = some
    if t // 16 not in some:
        index[0, t, 0, 0] = t // 16
found = selected(16, 32, 16, 3)(q, k, v, index.to(device))
for t in range(48):
    keys = sorted({j for b in index[0, t, 0].tolist() if b < 3 for j in range(b * 16, b * 16 + 16) if j <= t})
    weights = (q[0, t].float() @ k[0, keys, 0].float().T / 32**0.5).softmax(-1)
    torch.testing.assert_close(found[0, t].float(), weights @ v[0, keys, 0].float(), rtol=2e-2, atol=2e-2)
