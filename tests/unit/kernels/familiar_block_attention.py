"""Attention to blocks of keys that masks, lists and windows choose."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, begin, drawn, nan, softmax, statistics, weigh

import tilewright.language as T

bf = ml_dtypes.bfloat16


def seer():
    """A mask of blocks in an array of each thread, one stage, the steps of the softmax as macros (SeerAttention)."""
    draw, rng = drawn(0)
    B, H, S, D, BM, BN = 1, 2, 320, 64, 64, 64
    scale = D**-0.5 * 1.44269504
    nb = S // BM

    def kernel(num_stages=1, threads=128, dtype="bfloat16", accum="float32"):
        @T.macro
        def Softmax(acc_s: T.FragmentBuffer((BM, BN), accum), p, m, m_prev, alpha, rowsum, logsum):
            T.copy(m, m_prev)
            T.fill(m, -T.infinity(accum))
            T.reduce_max(acc_s, m, dim=1, clear=False)
            for i in T.Parallel(BM):
                m[i] = T.max(m[i], m_prev[i])
            for i in T.Parallel(BM):
                alpha[i] = T.exp2(m_prev[i] * scale - m[i] * scale)
            for i, j in T.Parallel(BM, BN):
                acc_s[i, j] = T.exp2(acc_s[i, j] * scale - m[i] * scale)
            T.reduce_sum(acc_s, rowsum, dim=1)
            for i in T.Parallel(BM):
                logsum[i] = logsum[i] * alpha[i] + rowsum[i]
            T.copy(acc_s, p)

        @T.macro
        def Rescale(acc_o, alpha):
            for i, j in T.Parallel(BM, D):
                acc_o[i, j] *= alpha[i]

        @T.prim_func
        def main(
            Q: T.Tensor([B, H, S, D], dtype),
            K: T.Tensor([B, H, S, D], dtype),
            V: T.Tensor([B, H, S, D], dtype),
            Mask: T.Tensor([B, H, nb, nb], "bool"),
            O: T.Tensor([B, H, S, D], dtype),
        ):
            with T.Kernel(T.ceildiv(S, BM), H, B, threads=threads) as (bx, by, bz):
                Qs = T.alloc_shared([BM, D], dtype)
                Ks = T.alloc_shared([BN, D], dtype)
                Vs = T.alloc_shared([BN, D], dtype)
                Os = T.alloc_shared([BM, D], dtype)
                acc_s = T.alloc_fragment([BM, BN], accum)
                p = T.alloc_fragment([BM, BN], dtype)
                acc_o = T.alloc_fragment([BM, D], accum)
                m = T.alloc_fragment([BM], accum)
                m_prev = T.alloc_fragment([BM], accum)
                alpha = T.alloc_fragment([BM], accum)
                rowsum = T.alloc_fragment([BM], accum)
                logsum = T.alloc_fragment([BM], accum)
                block_mask = T.alloc_local([nb], "bool")
                T.copy(Q[bz, by, bx * BM : (bx + 1) * BM, :], Qs)
                T.fill(acc_o, 0)
                T.fill(logsum, 0)
                T.fill(m, -T.infinity(accum))
                for vj in T.serial(nb):
                    block_mask[vj] = Mask[bz, by, bx, vj]
                for k in T.Pipelined(T.ceildiv((bx + 1) * BM, BN), num_stages=num_stages):
                    if block_mask[k]:
                        T.copy(K[bz, by, k * BN : (k + 1) * BN, :], Ks)
                        for i, j in T.Parallel(BM, BN):
                            acc_s[i, j] = T.if_then_else(bx * BM + i >= k * BN + j, 0, -T.infinity(accum))
                        T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                        Softmax(acc_s, p, m, m_prev, alpha, rowsum, logsum)
                        Rescale(acc_o, alpha)
                        T.copy(V[bz, by, k * BN : (k + 1) * BN, :], Vs)
                        T.gemm(p, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BM, D):
                    acc_o[i, j] /= logsum[i]
                T.copy(acc_o, Os)
                T.copy(Os, O[bz, by, bx * BM : (bx + 1) * BM, :])

        return main

    q, k, v = (draw(B, H, S, D, dtype=bf) for _ in range(3))
    mask = rng.random((B, H, nb, nb)) < 0.5
    mask |= np.eye(nb, dtype=bool)
    full = np.kron(mask, np.ones((BM, BN), bool)) & np.tril(np.ones((S, S), bool))
    s = np.einsum("bhqd,bhkd->bhqk", q.astype(float), k.astype(float)) / 8
    o = softmax(np.where(full, s, -np.inf)) @ v.astype(float)
    return Familiar(kernel(), (q, k, v, mask, nan(B, H, S, D, dtype=bf)), {4: o}, 2e-2)


def gqa_ragged_list():
    """Decoding with a list of blocks for each head of keys, lists of any length, parts put together by a second kernel."""
    draw, rng = drawn(2)
    batch, heads, hkv, D, DV, maxlen, BS, MAXSEL, nsplit = 2, 32, 4, 64, 64, 256, 32, 6, 2
    g = heads // hkv
    BH = 64
    scale = D**-0.5 * 1.44269504

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, D), "float16"),
        K: T.Tensor((batch, maxlen, hkv, D), "float16"),
        V: T.Tensor((batch, maxlen, hkv, DV), "float16"),
        block_indices: T.Tensor((batch, hkv, MAXSEL), "int32"),
        cache_seqlens: T.Tensor((batch,), "int32"),
        glse: T.Tensor((batch, heads, nsplit), "float32"),
        Op: T.Tensor((batch, heads, nsplit, DV), "float32"),
        O: T.Tensor((batch, heads, DV), "float16"),
    ):
        with T.Kernel(batch, heads // g, nsplit, threads=128) as (bx, by, bz):
            Qs = T.alloc_shared([BH, D], "float16")
            Ks = T.alloc_shared([BS, D], "float16")
            Vs = T.alloc_shared([BS, DV], "float16")
            acc_s = T.alloc_fragment([BH, BS], "float32")
            acc_sc = T.alloc_fragment([BH, BS], "float16")
            acc_o = T.alloc_fragment([BH, DV], "float32")
            rows = statistics(BH)
            has_valid = T.alloc_var("bool")
            cur_kv_head = by
            T.copy(Q[bx, by * g : by * g + BH, :], Qs)
            begin(acc_o, *rows)
            blocks_per_split = T.floordiv(MAXSEL, nsplit)
            remaining = T.floormod(MAXSEL, nsplit)
            loop_range = blocks_per_split + T.if_then_else(bz < remaining, 1, 0)
            start = blocks_per_split * bz + T.min(bz, remaining)
            has_valid = False
            for k in T.Pipelined(loop_range, num_stages=2):
                i_s = block_indices[bx, by, start + k]
                if i_s >= 0:
                    has_valid = True
                    T.copy(K[bx, i_s * BS : (i_s + 1) * BS, cur_kv_head, :], Ks)
                    T.clear(acc_s)
                    T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    for i, j in T.Parallel(BH, BS):
                        acc_s[i, j] = T.if_then_else(
                            i_s * BS + j >= cache_seqlens[bx], -T.infinity("float32"), acc_s[i, j]
                        )
                    weigh(acc_s, acc_sc, acc_o, *rows, scale)
                    T.copy(V[bx, i_s * BS : (i_s + 1) * BS, cur_kv_head, :], Vs)
                    T.gemm(acc_sc, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
            largest, total = rows[0], rows[-1]
            if has_valid:
                for i, j in T.Parallel(BH, DV):
                    acc_o[i, j] /= total[i]
                for i in T.Parallel(BH):
                    total[i] = T.log2(total[i]) + largest[i] * scale
            else:
                T.fill(total, -T.infinity("float32"))
            for i in T.Parallel(BH):
                if i < g:
                    glse[bx, by * g + i, bz] = total[i]
            for i, v in T.Parallel(BH, DV):
                if i < g:
                    Op[bx, by * g + i, bz, v] = acc_o[i, v]
        with T.Kernel(heads, batch, threads=64) as (by, bz):
            po = T.alloc_fragment([DV], "float32")
            oa = T.alloc_fragment([DV], "float32")
            lmax = T.alloc_fragment([1], "float32")
            lsum = T.alloc_fragment([1], "float32")
            max_split = T.alloc_fragment([1], "int32")
            T.clear(oa)
            lsum[0] = 0.0
            lmax[0] = -T.infinity("float32")
            for k in T.serial(nsplit):
                lmax[0] = T.max(lmax[0], glse[bz, by, k])
                if glse[bz, by, k] != -T.infinity("float32"):
                    max_split[0] = k
            for k in T.Pipelined(nsplit, num_stages=1):
                if k <= max_split[0]:
                    lsum[0] += T.exp2(glse[bz, by, k] - lmax[0])
            lsum[0] = T.log2(lsum[0]) + lmax[0]
            for k in T.serial(nsplit):
                if k <= max_split[0]:
                    for i in T.Parallel(DV):
                        po[i] = Op[bz, by, k, i]
                    for i in T.Parallel(DV):
                        oa[i] += po[i] * T.exp2(glse[bz, by, k] - lsum[0])
            for i in T.Parallel(DV):
                O[bz, by, i] = oa[i]

    q, k, v = draw(batch, heads, D), draw(batch, maxlen, hkv, D), draw(batch, maxlen, hkv, DV)
    lens = np.array([230, 100], np.int32)
    bi = np.full((batch, hkv, MAXSEL), -1, np.int32)
    out = np.zeros((batch, heads, DV))
    for b in range(batch):
        n = -(-lens[b] // BS)
        for h in range(hkv):
            cnt = rng.integers(1, min(n, MAXSEL) + 1)
            chosen = np.sort(rng.permutation(n)[:cnt])[::-1]
            bi[b, h, :cnt] = chosen
            cols = [c for x in chosen for c in range(x * BS, min((x + 1) * BS, lens[b]))]
            s = q[b, h * g : (h + 1) * g].astype(float) @ k[b, cols, h].astype(float).T / 8
            out[b, h * g : (h + 1) * g] = softmax(s) @ v[b, cols, h].astype(float)
    return Familiar(
        main,
        (
            q,
            k,
            v,
            bi,
            lens,
            nan(batch, heads, nsplit),
            nan(batch, heads, nsplit, DV),
            nan(batch, heads, DV, dtype=np.float16),
        ),
        {7: out},
        5e-3,
    )


def sink_window():
    """A sliding window, and a sink for each head that takes part in the sum."""
    draw, _ = drawn(3)
    B, H, G, S, D, BM, BN, W = 1, 4, 2, 200, 64, 64, 64, 70
    HK = H // G
    scale = D**-0.5 * 1.44269504

    @T.prim_func
    def main(
        Q: T.Tensor([B, H, S, D], "bfloat16"),
        K: T.Tensor([B, HK, S, D], "bfloat16"),
        V: T.Tensor([B, HK, S, D], "bfloat16"),
        O: T.Tensor([B, H, S, D], "bfloat16"),
        Sinks: T.Tensor([H], "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (bx, by, bz):
            Qs = T.alloc_shared([BM, D], "bfloat16")
            Ks = T.alloc_shared([BN, D], "bfloat16")
            Vs = T.alloc_shared([BN, D], "bfloat16")
            Os = T.alloc_shared([BM, D], "bfloat16")
            acc_s = T.alloc_fragment([BM, BN], "float32")
            p = T.alloc_fragment([BM, BN], "bfloat16")
            acc_o = T.alloc_fragment([BM, D], "float32")
            rows = m, mp, al, rs, ls = statistics(BM)
            sinks = T.alloc_fragment([BM], "float32")
            T.copy(Q[bz, by, bx * BM : (bx + 1) * BM, :], Qs)
            begin(acc_o, *rows)
            for i in T.Parallel(BM):
                sinks[i] = Sinks[by]
            end = T.min(T.ceildiv(S, BN), T.ceildiv((bx + 1) * BM, BN))
            start = T.max(0, (bx * BM - W) // BN)
            for k in T.Pipelined(start, end, num_stages=2):
                T.copy(K[bz, by // G, k * BN : (k + 1) * BN, :], Ks)
                for i, j in T.Parallel(BM, BN):
                    q_idx = bx * BM + i
                    k_idx = k * BN + j
                    acc_s[i, j] = T.if_then_else(q_idx >= k_idx and q_idx < k_idx + W, 0, -T.infinity("float32"))
                T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(m, mp)
                T.fill(m, -T.infinity("float32"))
                T.reduce_max(acc_s, m, dim=1, clear=False)
                for i in T.Parallel(BM):
                    m[i] = T.max(m[i], mp[i])
                for i in T.Parallel(BM):
                    m[i] = T.if_then_else(m[i] == -T.infinity("float32"), 0, m[i])
                for i in T.Parallel(BM):
                    al[i] = T.exp2(mp[i] * scale - m[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - m[i] * scale)
                T.reduce_sum(acc_s, rs, dim=1)
                for i in T.Parallel(BM):
                    ls[i] = ls[i] * al[i] + rs[i]
                T.copy(acc_s, p)
                for i, j in T.Parallel(BM, D):
                    acc_o[i, j] *= al[i]
                T.copy(V[bz, by // G, k * BN : (k + 1) * BN, :], Vs)
                T.gemm(p, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                ls[i] += T.exp2(sinks[i] * 1.44269504 - m[i] * scale)
            for i, j in T.Parallel(BM, D):
                acc_o[i, j] /= ls[i]
            T.copy(acc_o, Os)
            T.copy(Os, O[bz, by, bx * BM : (bx + 1) * BM, :])

    q, k, v, sk = (
        draw(B, H, S, D, dtype=bf),
        draw(B, HK, S, D, dtype=bf),
        draw(B, HK, S, D, dtype=bf),
        draw(H, dtype=bf),
    )
    s = np.einsum("bhqd,bhkd->bhqk", q.astype(float), np.repeat(k.astype(float), G, 1)) / 8
    i, j = np.indices((S, S))
    s = np.where((i >= j) & (i < j + W), s, -np.inf)
    mx = np.maximum(s.max(-1, keepdims=True), sk.astype(float)[None, :, None, None])
    e = np.exp(s - mx)
    o = (
        e
        / (e.sum(-1, keepdims=True) + np.exp(sk.astype(float)[None, :, None, None] - mx))
        @ np.repeat(v.astype(float), G, 1)
    )
    return Familiar(main, (q, k, v, nan(B, H, S, D, dtype=bf), sk), {3: o}, 2e-2)
