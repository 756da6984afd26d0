"""Backward passes without atomic additions: of attention, of attention to chosen blocks, of retention."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, gradient_tiles, log2_sums, nan, softmax

import tilewright.language as T

bf = ml_dtypes.bfloat16


def bwd_no_atomics():
    """One kernel for dK and dV, one for dQ."""
    draw, _ = drawn(4)
    B, H, S, D, BM, BN = 1, 1, 150, 128, 64, 32
    sm = D**-0.5
    scale = sm * 1.44269504
    shape = [B, S, H, D]

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "bfloat16"),
        K: T.Tensor(shape, "bfloat16"),
        V: T.Tensor(shape, "bfloat16"),
        dO: T.Tensor(shape, "bfloat16"),
        lse: T.Tensor([B, H, S], "float32"),
        Delta: T.Tensor([B, H, S], "float32"),
        dQ: T.Tensor(shape, "bfloat16"),
        dK: T.Tensor(shape, "bfloat16"),
        dV: T.Tensor(shape, "bfloat16"),
    ):
        with T.Kernel(H, T.ceildiv(S, BM), B, threads=256) as (bx, by, bz):
            Ks, Vs, q, do, lse_s, delta, qkT, dsT, dv, dk = gradient_tiles(BM, BN, D, "bfloat16")
            dst = T.alloc_shared([BM, BN], "bfloat16")
            pst = T.alloc_shared([BM, BN], "bfloat16")
            dvs = T.alloc_shared([BM, D], "bfloat16")
            T.annotate_layout({dvs: T.Layout((BM, D), lambda i, j: i * D + (j ^ ((i % 8) * 8)))})
            T.copy(K[bz, by * BM : (by + 1) * BM, bx, :], Ks)
            T.copy(V[bz, by * BM : (by + 1) * BM, bx, :], Vs)
            T.clear(dv)
            T.clear(dk)
            for k in T.Pipelined(T.ceildiv(S, BN), num_stages=2):
                T.copy(Q[bz, k * BN : (k + 1) * BN, bx, :], q)
                T.copy(dO[bz, k * BN : (k + 1) * BN, bx, :], do)
                T.copy(lse[bz, bx, k * BN : (k + 1) * BN], lse_s)
                T.copy(Delta[bz, bx, k * BN : (k + 1) * BN], delta)
                T.gemm(Ks, q, qkT, transpose_B=True, clear_accum=True)
                T.gemm(Vs, do, dsT, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(BM, BN):
                    if k * BN + j < S:
                        qkT[i, j] = T.exp2(qkT[i, j] * scale - lse_s[j])
                    else:
                        qkT[i, j] = 0
                for i, j in T.Parallel(BM, BN):
                    pst[i, j] = qkT[i, j]
                    dst[i, j] = qkT[i, j] * (dsT[i, j] - delta[j]) * sm
                T.gemm(pst, do, dv)
                T.gemm(dst, q, dk)
            T.copy(dv, dvs)
            T.copy(dvs, dV[bz, by * BM : (by + 1) * BM, bx, :])
            T.copy(dk, dvs)
            T.copy(dvs, dK[bz, by * BM : (by + 1) * BM, bx, :])
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (by, bx, bz):
            q = T.alloc_shared([BM, D], "bfloat16")
            do = T.alloc_shared([BM, D], "bfloat16")
            Ks = T.alloc_shared([BN, D], "bfloat16")
            Vs = T.alloc_shared([BN, D], "bfloat16")
            s = T.alloc_fragment([BM, BN], "float32")
            dp = T.alloc_fragment([BM, BN], "float32")
            ds = T.alloc_fragment([BM, BN], "bfloat16")
            dq = T.alloc_fragment([BM, D], "float32")
            l = T.alloc_fragment([BM], "float32")
            de = T.alloc_fragment([BM], "float32")
            T.copy(Q[bz, by * BM : (by + 1) * BM, bx, :], q)
            T.copy(dO[bz, by * BM : (by + 1) * BM, bx, :], do)
            T.copy(lse[bz, bx, by * BM : (by + 1) * BM], l)
            T.copy(Delta[bz, bx, by * BM : (by + 1) * BM], de)
            T.clear(dq)
            for k in T.Pipelined(T.ceildiv(S, BN), num_stages=3):
                T.copy(K[bz, k * BN : (k + 1) * BN, bx, :], Ks)
                T.copy(V[bz, k * BN : (k + 1) * BN, bx, :], Vs)
                T.clear(s)
                T.gemm(q, Ks, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.clear(dp)
                T.gemm(do, Vs, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BM, BN):
                    ds[i, j] = T.exp2(s[i, j] * scale - l[i]) * (dp[i, j] - de[i]) * sm
                T.gemm(ds, Ks, dq, policy=T.GemmWarpPolicy.FullRow)
            T.copy(dq, dQ[bz, by * BM : (by + 1) * BM, bx, :])

    q, k, v, do = (draw(*shape, dtype=bf) for _ in range(4))
    Q, K, V, DO = (x[0, :, 0].astype(float) for x in (q, k, v, do))
    s = Q @ K.T * sm
    p = softmax(s)
    l = log2_sums(s)
    de = (p @ V * DO).sum(-1)
    ds = p * (DO @ V.T - de[:, None]) * sm

    def w(x):
        return x[None, :, None]

    return Familiar(
        main,
        (
            q,
            k,
            v,
            do,
            l[None, None].astype(np.float32),
            de[None, None].astype(np.float32),
            *(nan(*shape, dtype=bf) for _ in range(3)),
        ),
        {6: w(ds @ K), 7: w(ds.T @ Q), 8: w(p.T @ DO)},
        3e-2,
    )


def nsa_backward():
    """Chosen blocks (NSA): dK and dV by a mask of queries, dQ by the list of blocks."""
    draw, rng = drawn(1)
    S, HQ, D, BS, SEL = 64, 16, 64, 32, 2
    NB = S // BS
    scale = 0.125

    @T.prim_func
    def main(
        Q: T.Tensor([1, S, HQ, D], "float16"),
        K: T.Tensor([1, S, 1, D], "float16"),
        V: T.Tensor([1, S, 1, D], "float16"),
        lse: T.Tensor([1, S, HQ], "float32"),
        delta: T.Tensor([1, S, HQ], "float32"),
        dO: T.Tensor([1, S, HQ, D], "float16"),
        BMask: T.Tensor([1, S, 1, NB], "int32"),
        Idx: T.Tensor([1, S, 1, SEL], "int32"),
        dQ: T.Tensor([1, S, HQ, D], "float16"),
        dK: T.Tensor([1, S, 1, D], "float32"),
        dV: T.Tensor([1, S, 1, D], "float32"),
    ):
        with T.Kernel(1, NB, 1, threads=32) as (_i_v, i_s, _i_bh):
            Ks = T.alloc_shared([BS, D], "float16")
            Vs = T.alloc_shared([BS, D], "float16")
            Qs = T.alloc_shared([HQ, D], "float16")
            dOs = T.alloc_shared([HQ, D], "float16")
            qkT = T.alloc_fragment([BS, HQ], "float32")
            qkTc = T.alloc_fragment([BS, HQ], "float16")
            dsT = T.alloc_fragment([BS, HQ], "float32")
            dsTc = T.alloc_fragment([BS, HQ], "float16")
            lse_s = T.alloc_shared([HQ], "float32")
            del_s = T.alloc_shared([HQ], "float32")
            dk = T.alloc_fragment([BS, D], "float32")
            dv = T.alloc_fragment([BS, D], "float32")
            T.copy(K[0, i_s * BS : (i_s + 1) * BS, 0, :], Ks)
            T.copy(V[0, i_s * BS : (i_s + 1) * BS, 0, :], Vs)
            T.clear(dk)
            T.clear(dv)
            loop_st = i_s * BS
            for i in T.Pipelined(start=loop_st, stop=S, num_stages=0):
                if BMask[0, i, 0, i_s] != 0:
                    T.copy(Q[0, i, 0:HQ, :], Qs)
                    T.clear(qkT)
                    T.gemm(Ks, Qs, qkT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(lse[0, i, 0:HQ], lse_s)
                    for a, b in T.Parallel(BS, HQ):
                        qkT[a, b] = T.exp2(qkT[a, b] * (scale * 1.44269504) - lse_s[b])
                    for a, b in T.Parallel(BS, HQ):
                        qkT[a, b] = T.if_then_else(i >= i_s * BS + a, qkT[a, b], 0)
                    T.copy(dO[0, i, 0:HQ, :], dOs)
                    T.clear(dsT)
                    T.gemm(Vs, dOs, dsT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(qkT, qkTc)
                    T.gemm(qkTc, dOs, dv, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(delta[0, i, 0:HQ], del_s)
                    for a, b in T.Parallel(BS, HQ):
                        dsTc[a, b] = qkT[a, b] * (dsT[a, b] - del_s[b]) * scale
                    T.gemm(dsTc, Qs, dk, policy=T.GemmWarpPolicy.FullRow)
            T.copy(dv, dV[0, i_s * BS : (i_s + 1) * BS, 0, :])
            T.copy(dk, dK[0, i_s * BS : (i_s + 1) * BS, 0, :])
        with T.Kernel(S, 1, threads=32) as (t, _):
            Qs = T.alloc_shared([HQ, D], "float16")
            dOs = T.alloc_shared([HQ, D], "float16")
            Ks = T.alloc_shared([BS, D], "float16")
            Vs = T.alloc_shared([BS, D], "float16")
            p = T.alloc_fragment([HQ, BS], "float32")
            dp = T.alloc_fragment([HQ, BS], "float32")
            ds = T.alloc_fragment([HQ, BS], "float16")
            dq = T.alloc_fragment([HQ, D], "float32")
            T.copy(Q[0, t, :, :], Qs)
            T.copy(dO[0, t, :, :], dOs)
            T.clear(dq)
            for i in T.Pipelined(SEL, num_stages=1):
                st = Idx[0, t, 0, i] * BS
                if st >= 0 and st <= t:
                    T.copy(K[0, st : st + BS, 0, :], Ks)
                    T.copy(V[0, st : st + BS, 0, :], Vs)
                    T.clear(p)
                    T.gemm(Qs, Ks, p, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                    T.clear(dp)
                    T.gemm(dOs, Vs, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                    for a, b in T.Parallel(HQ, BS):
                        if st + b <= t:
                            p[a, b] = T.exp2(p[a, b] * (scale * 1.44269504) - lse[0, t, a])
                        else:
                            p[a, b] = 0.0
                    for a, b in T.Parallel(HQ, BS):
                        ds[a, b] = p[a, b] * (dp[a, b] - delta[0, t, a]) * scale
                    T.gemm(ds, Ks, dq)
            T.copy(dq, dQ[0, t, :, :])

    q, do, k, v = draw(1, S, HQ, D), draw(1, S, HQ, D), draw(1, S, 1, D), draw(1, S, 1, D)
    idx = np.full((1, S, 1, SEL), -1, np.int32)
    mask = np.zeros((1, S, 1, NB), np.int32)
    for t in range(S):
        idx[0, t, 0, 0] = t // BS
        if t // BS and rng.random() < 0.6:
            idx[0, t, 0, 1] = 0
        for b in idx[0, t, 0]:
            if b >= 0:
                mask[0, t, 0, b] = 1
    allowed = np.repeat(mask[0, :, 0, :] > 0, BS, 1) & np.tril(np.ones((S, S), bool))
    Q, K, V, DO = q[0].astype(float), k[0, :, 0].astype(float), v[0, :, 0].astype(float), do[0].astype(float)
    s = np.where(allowed[:, None], np.einsum("thd,sd->ths", Q, K) * scale, -np.inf)
    p = softmax(s)
    l = log2_sums(s)
    o = p @ V
    de = (o * DO).sum(-1)
    dp = np.einsum("thd,sd->ths", DO, V)
    ds = p * (dp - de[..., None]) * scale
    return Familiar(
        main,
        (
            q,
            k,
            v,
            l[None].astype(np.float32),
            de[None].astype(np.float32),
            do,
            mask,
            idx,
            nan(1, S, HQ, D, dtype=np.float16),
            nan(1, S, 1, D),
            nan(1, S, 1, D),
        ),
        {
            8: (ds @ K)[None],
            9: np.einsum("ths,thd->sd", ds, Q)[None, :, None],
            10: np.einsum("ths,thd->sd", p, DO)[None, :, None],
        },
        2e-2,
    )


def retnet_backward():
    """Two loops in one kernel: over the queries behind a block of keys, over the keys before a block of queries."""
    draw, _ = drawn(2)
    B, S, H, D, BT = 1, 96, 2, 64, 32

    @T.prim_func
    def main(
        Q: T.Tensor([B, H, S, D], "float16"),
        K: T.Tensor([B, H, S, D], "float16"),
        V: T.Tensor([B, H, S, D], "float16"),
        dO: T.Tensor([B, H, S, D], "float16"),
        dQ: T.Tensor([B, H, S, D], "float32"),
        dK: T.Tensor([B, H, S, D], "float32"),
        dV: T.Tensor([B, H, S, D], "float32"),
    ):
        with T.Kernel(T.ceildiv(S, BT), H, B, threads=64) as (bx, by, bz):
            kk = T.alloc_shared([BT, D], "float16")
            vv = T.alloc_shared([BT, D], "float16")
            qq = T.alloc_shared([BT, D], "float16")
            do = T.alloc_shared([BT, D], "float16")
            p = T.alloc_fragment([BT, BT], "float32")
            dp = T.alloc_fragment([BT, BT], "float32")
            ph = T.alloc_shared([BT, BT], "float16")
            dph = T.alloc_shared([BT, BT], "float16")
            dk = T.alloc_fragment([BT, D], "float32")
            dv = T.alloc_fragment([BT, D], "float32")
            dq = T.alloc_fragment([BT, D], "float32")
            log_decay = T.alloc_var("float32")
            log_decay = T.log2(1 - T.exp2(-5 - 1.0 * by))
            T.copy(K[bz, by, bx * BT, 0], kk)
            T.copy(V[bz, by, bx * BT, 0], vv)
            T.clear(dk)
            T.clear(dv)
            for i in T.Pipelined(bx, T.ceildiv(S, BT), num_stages=2):
                T.copy(Q[bz, by, i * BT, 0], qq)
                T.copy(dO[bz, by, i * BT, 0], do)
                T.gemm(qq, kk, p, transpose_B=True, clear_accum=True)
                T.gemm(do, vv, dp, transpose_B=True, clear_accum=True)
                for r, c in T.Parallel(BT, BT):
                    d = T.if_then_else(i * BT + r >= bx * BT + c, T.exp2((i * BT + r - bx * BT - c) * log_decay), 0.0)
                    ph[r, c] = p[r, c] * d
                    dph[r, c] = dp[r, c] * d
                T.gemm(ph, do, dv, transpose_A=True)
                T.gemm(dph, qq, dk, transpose_A=True)
            T.copy(dk, dK[bz, by, bx * BT, 0])
            T.copy(dv, dV[bz, by, bx * BT, 0])
            T.clear(dq)
            T.copy(dO[bz, by, bx * BT, 0], do)
            for i in T.Pipelined(bx + 1, num_stages=1):
                T.copy(K[bz, by, i * BT, 0], kk)
                T.copy(V[bz, by, i * BT, 0], vv)
                T.gemm(do, vv, dp, transpose_B=True, clear_accum=True)
                for r, c in T.Parallel(BT, BT):
                    dph[r, c] = T.if_then_else(
                        bx * BT + r >= i * BT + c, dp[r, c] * T.exp2((bx * BT + r - i * BT - c) * log_decay), 0
                    )
                T.gemm(dph, kk, dq)
            T.copy(dq, dQ[bz, by, bx * BT, 0])

    q, k, v, do = (draw(B, H, S, D, scale=0.3) for _ in range(4))
    i, j = np.indices((S, S))
    de = np.stack([np.where(i >= j, (1 - 2.0 ** (-5 - h)) ** (i - j), 0) for h in range(H)])[None]
    Q, K, V, DO = (x.astype(float) for x in (q, k, v, do))
    p = Q @ K.swapaxes(2, 3) * de
    dp = DO @ V.swapaxes(2, 3) * de
    return Familiar(
        main,
        (q, k, v, do, *(nan(B, H, S, D) for _ in range(3))),
        {4: dp @ K, 5: dp.swapaxes(2, 3) @ Q, 6: p.swapaxes(2, 3) @ DO},
        1e-2,
    )
