"""Linear attention in chunks: gates, the delta rule, states that blocks leave to the next kernel."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16


def gla_chunk():
    """Gates of each channel add up within a chunk; the state goes from chunk to chunk in a fragment."""
    draw, rng = drawn(0)
    B, S, H, DK, DV, BT, BV = 1, 128, 2, 64, 64, 32, 32

    @T.prim_func
    def main(
        Q: T.Tensor([B, S, H, DK], "float16"),
        K: T.Tensor([B, S, H, DK], "float16"),
        V: T.Tensor([B, S, H, DV], "float16"),
        G: T.Tensor([B, S, H, DK], "float32"),
        O: T.Tensor([B, S, H, DV], "float32"),
        HT: T.Tensor([B, H, DK, DV], "float32"),
    ):
        with T.Kernel(T.ceildiv(DV, BV), H, B, threads=128) as (bv, bh, bb):
            g = T.alloc_shared([BT, DK], "float32")
            q = T.alloc_shared([BT, DK], "float16")
            k = T.alloc_shared([BT, DK], "float16")
            v = T.alloc_shared([BT, BV], "float16")
            qg = T.alloc_shared([BT, DK], "float16")
            kg = T.alloc_shared([BT, DK], "float16")
            kd = T.alloc_shared([BT, DK], "float16")
            hs = T.alloc_shared([DK, BV], "float16")
            h = T.alloc_fragment([DK, BV], "float32")
            s = T.alloc_fragment([BT, BT], "float32")
            ss = T.alloc_shared([BT, BT], "float16")
            o = T.alloc_fragment([BT, BV], "float32")
            T.clear(h)
            for t in T.Pipelined(T.ceildiv(S, BT), num_stages=1):
                T.copy(Q[bb, t * BT : (t + 1) * BT, bh, :], q)
                T.copy(K[bb, t * BT : (t + 1) * BT, bh, :], k)
                T.copy(V[bb, t * BT : (t + 1) * BT, bh, bv * BV : (bv + 1) * BV], v)
                T.copy(G[bb, t * BT : (t + 1) * BT, bh, :], g)
                T.cumsum(g, dim=0)
                for i, j in T.Parallel(BT, DK):
                    qg[i, j] = q[i, j] * T.exp(g[i, j])
                    kg[i, j] = k[i, j] * T.exp(-g[i, j])
                    kd[i, j] = k[i, j] * T.exp(g[BT - 1, j] - g[i, j])
                T.copy(h, hs)
                T.clear(s)
                T.gemm(qg, kg, s, transpose_B=True)
                for i, j in T.Parallel(BT, BT):
                    ss[i, j] = T.if_then_else(i >= j, s[i, j], 0)
                T.clear(o)
                T.gemm(qg, hs, o)
                T.gemm(ss, v, o)
                T.copy(o, O[bb, t * BT : (t + 1) * BT, bh, bv * BV : (bv + 1) * BV])
                for i, j in T.Parallel(DK, BV):
                    h[i, j] *= T.exp(g[BT - 1, i])
                T.gemm(kd, v, h, transpose_A=True)
            T.copy(h, HT[bb, bh, :, bv * BV : (bv + 1) * BV])

    q, k, v = draw(B, S, H, DK, scale=0.3), draw(B, S, H, DK, scale=0.3), draw(B, S, H, DV)
    g = -rng.random((B, S, H, DK)).astype(np.float32) * 0.1
    o = np.zeros((B, S, H, DV))
    ht = np.zeros((B, H, DK, DV))
    for hh in range(H):
        st = np.zeros((DK, DV))
        for t in range(S):
            st = st * np.exp(g[0, t, hh].astype(float))[:, None] + np.outer(
                k[0, t, hh].astype(float), v[0, t, hh].astype(float)
            )
            o[0, t, hh] = q[0, t, hh].astype(float) @ st
        ht[0, hh] = st
    return Familiar(main, (q, k, v, g, nan(B, S, H, DV), nan(B, H, DK, DV)), {4: o, 5: ht}, 2e-2)


def delta_wy():
    """The inverse of a triangular matrix by substitution, row by row, and its products."""
    draw, rng = drawn(1)
    S, D, BT = 128, 64, 32

    @T.prim_func
    def main(
        K: T.Tensor([S, D], "bfloat16"),
        V: T.Tensor([S, D], "bfloat16"),
        beta: T.Tensor([S], "float32"),
        Ainv: T.Tensor([S, BT], "float32"),
        W: T.Tensor([S, D], "float32"),
        U: T.Tensor([S, D], "float32"),
    ):
        with T.Kernel(S // BT, threads=128) as bt:
            k = T.alloc_shared([BT, D], "bfloat16")
            kb = T.alloc_shared([BT, D], "bfloat16")
            vb = T.alloc_shared([BT, D], "bfloat16")
            a = T.alloc_fragment([BT, BT], "float32")
            A = T.alloc_shared([BT, BT], "float32")
            row = T.alloc_fragment([BT, BT], "float32")
            acc = T.alloc_fragment([BT], "float32")
            Ab = T.alloc_shared([BT, BT], "bfloat16")
            w = T.alloc_fragment([BT, D], "float32")
            T.copy(K[bt * BT : (bt + 1) * BT, :], k)
            for i, j in T.Parallel(BT, D):
                kb[i, j] = k[i, j] * beta[bt * BT + i]
                vb[i, j] = V[bt * BT + i, j] * beta[bt * BT + i]
            T.clear(a)
            T.gemm(kb, k, a, transpose_B=True)
            for i, j in T.Parallel(BT, BT):
                A[i, j] = T.if_then_else(i > j, -a[i, j], 0.0)
            for i in T.serial(1, BT):
                for l, j in T.Parallel(BT, BT):
                    row[l, j] = T.if_then_else(l < i, A[i, l] * A[l, j], 0.0)
                T.reduce_sum(row, acc, dim=0)
                for j in T.Parallel(BT):
                    if j < i:
                        A[i, j] = A[i, j] + acc[j]
            for i, j in T.Parallel(BT, BT):
                A[i, j] = A[i, j] + T.if_then_else(i == j, 1.0, 0.0)
            T.copy(A, Ainv[bt * BT, 0])
            T.copy(A, Ab)
            T.clear(w)
            T.gemm(Ab, kb, w)
            T.copy(w, W[bt * BT, 0])
            T.gemm(Ab, vb, w, clear_accum=True)
            T.copy(w, U[bt * BT, 0])

    k, v = draw(S, D, dtype=bf, scale=0.12), draw(S, D, dtype=bf)
    be = rng.random(S).astype(np.float32)
    ai, w, u = [], [], []
    for c in range(S // BT):
        sl = slice(c * BT, (c + 1) * BT)
        kk, vv = k[sl].astype(float), v[sl].astype(float)
        b = be[sl].astype(float)[:, None]
        inv = np.linalg.inv(np.eye(BT) + np.tril((kk * b) @ kk.T, -1))
        ai.append(inv)
        w.append(inv @ (kk * b))
        u.append(inv @ (vv * b))
    return Familiar(
        main,
        (k, v, be, nan(S, BT), nan(S, D), nan(S, D)),
        {3: np.concatenate(ai), 4: np.concatenate(w), 5: np.concatenate(u)},
        3e-2,
    )


def linear_attention_chunks():
    """States of all chunks at once, their running sums by a second kernel, results by a third."""
    draw, _ = drawn(4)
    S, D, C = 192, 64, 64
    NC = S // C

    @T.prim_func
    def main(
        Q: T.Tensor([S, D], "bfloat16"),
        K: T.Tensor([S, D], "bfloat16"),
        V: T.Tensor([S, D], "bfloat16"),
        KV: T.Tensor([NC, D, D], "float32"),
        O: T.Tensor([S, D], "bfloat16"),
    ):
        with T.Kernel(NC, threads=128) as c:
            k = T.alloc_shared([C, D], "bfloat16")
            v = T.alloc_shared([C, D], "bfloat16")
            h = T.alloc_fragment([D, D], "float32")
            T.copy(K[c * C : (c + 1) * C, :], k)
            T.copy(V[c * C : (c + 1) * C, :], v)
            T.clear(h)
            T.gemm(k, v, h, transpose_A=True)
            T.copy(h, KV[c, :, :])
        with T.Kernel(D, threads=64) as d:
            acc = T.alloc_fragment([D], "float32")
            t = T.alloc_fragment([D], "float32")
            T.clear(acc)
            for c in T.serial(NC):
                T.copy(KV[c, d, :], t)
                T.copy(acc, KV[c, d, :])
                for j in T.Parallel(D):
                    acc[j] += t[j]
        with T.Kernel(NC, threads=128) as c:
            q = T.alloc_shared([C, D], "bfloat16")
            k = T.alloc_shared([C, D], "bfloat16")
            v = T.alloc_shared([C, D], "bfloat16")
            hs = T.alloc_shared([D, D], "bfloat16")
            s = T.alloc_fragment([C, C], "float32")
            sb = T.alloc_fragment([C, C], "bfloat16")
            o = T.alloc_fragment([C, D], "float32")
            T.copy(Q[c * C, 0], q)
            T.copy(K[c * C, 0], k)
            T.copy(V[c * C, 0], v)
            T.copy(KV[c, 0:D, 0:D], hs)
            T.clear(s)
            T.gemm(q, k, s, transpose_B=True)
            for i, j in T.Parallel(C, C):
                sb[i, j] = T.if_then_else(i < j, 0, s[i, j])
            T.clear(o)
            T.gemm(sb, v, o)
            T.gemm(q, hs, o)
            T.copy(o, O[c * C, 0])

    q, k, v = (draw(S, D, dtype=bf, scale=0.3) for _ in range(3))
    o = np.tril(q.astype(float) @ k.astype(float).T) @ v.astype(float)
    return Familiar(main, (q, k, v, nan(NC, D, D), nan(S, D, dtype=bf)), {4: o}, 3e-2)
