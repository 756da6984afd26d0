"""Vertical and slash sparse attention: blocks of keys that a head always sees, and single columns besides."""

import math

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(2)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[3])
def vertical_slash(B, H, N, D, VB, SB, block_m=64, block_n=64, threads=128):
    scale = (1.0 / D) ** 0.5 * 1.44269504
    shape = [B, H, N, D]
    blocks = N // block_m
    dtype, accum = T.float16, T.float32

    @T.macro
    def softmax(
        S: T.FragmentBuffer([block_m, block_n], accum),
        P: T.FragmentBuffer([block_m, block_n], dtype),
        m: T.FragmentBuffer([block_m], accum),
        mp: T.FragmentBuffer([block_m], accum),
        sc: T.FragmentBuffer([block_m], accum),
        ls: T.FragmentBuffer([block_m], accum),
        rs: T.FragmentBuffer([block_m], accum),
    ):
        T.copy(m, mp)
        T.reduce_max(S, m, dim=1, clear=False)
        for i in T.Parallel(block_m):
            sc[i] = T.exp2(mp[i] * scale - m[i] * scale)
        for i, j in T.Parallel(block_m, block_n):
            S[i, j] = T.exp2(S[i, j] * scale - m[i] * scale)
        T.copy(S, P)
        T.reduce_sum(S, rs, dim=1)
        for i in T.Parallel(block_m):
            ls[i] = ls[i] * sc[i] + rs[i]

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        O: T.Tensor(shape, dtype),
        block_count: T.Tensor([B, H, blocks], T.int32),
        block_offset: T.Tensor([B, H, blocks, SB], T.int32),
        column_count: T.Tensor([B, H, blocks], T.int32),
        column_index: T.Tensor([B, H, blocks, VB], T.int32),
    ):
        with T.Kernel(blocks, H, B, threads=threads) as (bc, by, bz):
            bx = blocks - 1 - bc
            Qs = T.alloc_shared([block_m, D], dtype)
            Ks = T.alloc_shared([2, block_n, D], dtype)
            Vs = T.alloc_shared([block_n, D], dtype)
            Os = T.alloc_shared([block_m, D], dtype)
            S = T.alloc_fragment([block_m, block_n], accum)
            P = T.alloc_fragment([block_m, block_n], dtype)
            acc = T.alloc_fragment([block_m, D], accum)
            m, mp, sc, ls, rs = (T.alloc_fragment([block_m], accum) for _ in range(5))
            offsets = T.alloc_shared([SB], T.int32, scope="shared")
            columns = T.alloc_shared([VB], T.int32, scope="shared")
            count = T.alloc_local([1], T.int32)
            ccount = T.alloc_local([1], T.int32)
            count[0] = block_count[bz, by, bx]
            ccount[0] = column_count[bz, by, bx]
            for k in T.Parallel(SB):
                offsets[k] = block_offset[bz, by, bx, k]
            for k in T.Parallel(VB):
                columns[k] = column_index[bz, by, bx, k]
            T.copy(Q[bz, by, bx * block_m : (bx + 1) * block_m, :], Qs)
            T.fill(acc, 0)
            T.fill(ls, 0)
            T.fill(m, -1e30)
            for k in T.Pipelined(count[0], num_stages=1):
                T.copy(K[bz, by, offsets[k] : offsets[k] + block_n, :], Ks[0, :, :])
                T.copy(V[bz, by, offsets[k] : offsets[k] + block_n, :], Vs)
                for i, j in T.Parallel(block_m, block_n):
                    S[i, j] = T.if_then_else(bx * block_m + i >= offsets[k] + j, 0, -T.infinity(accum))
                T.gemm(Qs, Ks[0, :, :], S, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                softmax(S, P, m, mp, sc, ls, rs)
                for i, j in T.Parallel(block_m, D):
                    acc[i, j] *= sc[i]
                T.gemm(P, Vs, acc, policy=T.GemmWarpPolicy.FullRow)
            if ccount[0] != 0:
                for bi in T.serial(T.ceildiv(ccount[0], block_n)):
                    for i, j in T.Parallel(block_n, D):
                        Ks[1, i, j] = T.if_then_else(
                            bi * block_n + i < ccount[0], K[bz, by, columns[T.min(bi * block_n + i, VB - 1)], j], 0
                        )
                    for i, j in T.Parallel(block_n, D):
                        if bi * block_n + i < ccount[0]:
                            Vs[i, j] = V[bz, by, columns[bi * block_n + i], j]
                        else:
                            Vs[i, j] = 0
                    for i, j in T.Parallel(block_m, block_n):
                        S[i, j] = T.if_then_else(bi * block_n + j < ccount[0], 0, -T.infinity(accum))
                    T.gemm(Qs, Ks[1, :, :], S, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    softmax(S, P, m, mp, sc, ls, rs)
                    for i, j in T.Parallel(block_m, D):
                        acc[i, j] *= sc[i]
                    T.gemm(P, Vs, acc, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, D):
                acc[i, j] /= ls[i]
            T.copy(acc, Os)
            T.copy(Os, O[bz, by, bx * block_m : (bx + 1) * block_m, :])

    return main


def main():
    B, H, N, D, VB, SB = 1, 2, 192, 64, 96, 3
    blocks = N // 64
    q, k, v = (torch.randn(B, H, N, D, device=dev, dtype=torch.float16) for _ in range(3))
    bc = torch.zeros(B, H, blocks, dtype=torch.int32)
    bo = torch.zeros(B, H, blocks, SB, dtype=torch.int32)
    cc = torch.zeros(B, H, blocks, dtype=torch.int32)
    ci = torch.zeros(B, H, blocks, VB, dtype=torch.int32)
    mask = torch.zeros(B, H, N, N, dtype=torch.bool)
    for h in range(H):
        for x in range(blocks):
            rows = slice(x * 64, x * 64 + 64)
            chosen = [x] if h else list(range(x + 1))[-2:]
            bc[0, h, x] = len(chosen)
            bo[0, h, x, : len(chosen)] = torch.tensor(chosen) * 64
            for c in chosen:
                mask[0, h, rows, c * 64 : c * 64 + 64] = (
                    torch.arange(64)[:, None] + x * 64 >= torch.arange(64)[None] + c * 64
                )
            before = [c for c in range(0, x * 64, 2) if c // 64 not in chosen][:VB]
            cc[0, h, x] = len(before)
            ci[0, h, x, : len(before)] = torch.tensor(before, dtype=torch.int32)
            mask[0, h, rows, before] = True
    kernel = vertical_slash(B, H, N, D, VB, SB)
    o = kernel(q, k, v, *(one.to(dev) for one in (bc, bo, cc, ci)))
    s = (q.float() @ k.float().transpose(-1, -2)) / math.sqrt(D)
    want = s.masked_fill(~mask.to(dev), -math.inf).softmax(-1) @ v.float()
    torch.testing.assert_close(o.float(), want, rtol=2e-2, atol=2e-2)
    print("right")


REAL_SIZES = [("slashes", lambda: vertical_slash(1, 8, 4096, 128, 1024, 64))]

if __name__ == "__main__":
    main()
