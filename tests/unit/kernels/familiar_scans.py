"""Linear attention and state spaces in chunks: a state in registers from chunk to chunk, decays within one."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16


def retention():
    """Linear attention chunk scan with state in registers and decays."""
    normal, _ = drawn(0)
    B, H, S, D, C = 1, 2, 200, 64, 64

    @T.prim_func
    def main(
        Q: T.Tensor([B, S, H, D], "bfloat16"),
        K: T.Tensor([B, S, H, D], "bfloat16"),
        V: T.Tensor([B, S, H, D], "bfloat16"),
        O: T.Tensor([B, S, H, D], "float32"),
        final: T.Tensor([B, H, D, D], "float32"),
    ):
        with T.Kernel(2, H, B, threads=128) as (iv, ih, ib):
            q = T.alloc_shared([C, D], "bfloat16")
            k = T.alloc_shared([C, D], "bfloat16")
            v = T.alloc_shared([C, D // 2], "bfloat16")
            s = T.alloc_fragment([C, C], "float32")
            s_shared = T.alloc_shared([C, C], "bfloat16")
            o = T.alloc_fragment([C, D // 2], "float32")
            o_shared = T.alloc_shared([C, D // 2], "float32")
            h = T.alloc_fragment([D, D // 2], "float32")
            h_shared = T.alloc_shared([D, D // 2], "bfloat16")
            T.annotate_layout({o_shared: T.Layout((C, D // 2), lambda i, j: i * (D // 2) + (j ^ (i % 4 * 8)))})
            T.clear(h)
            decay = T.alloc_var("float32")
            decay = T.log2(1 - T.exp2(-5 - 1.0 * ih))
            for n in T.Pipelined(T.ceildiv(S, C), num_stages=1):
                T.copy(Q[ib, n * C : (n + 1) * C, ih, :], q)
                T.copy(K[ib, n * C : (n + 1) * C, ih, :], k)
                T.copy(V[ib, n * C : (n + 1) * C, ih, iv * (D // 2) : (iv + 1) * (D // 2)], v)
                T.gemm(q, k, s, clear_accum=True, transpose_B=True)
                for i, j in T.Parallel(C, C):
                    s_shared[i, j] = T.if_then_else(i >= j, s[i, j] * T.exp2((i - j) * decay), 0)
                T.copy(h, h_shared)
                T.gemm(q, h_shared, o, clear_accum=True)
                for i, j in T.Parallel(C, D // 2):
                    o[i, j] *= T.exp2((i + 1) * decay)
                T.gemm(s_shared, v, o)
                T.copy(o, o_shared)
                T.copy(o_shared, O[ib, n * C : (n + 1) * C, ih, iv * (D // 2) : (iv + 1) * (D // 2)])
                for i, j in T.Parallel(C, D // 2):
                    v[i, j] = v[i, j] * T.exp2((C - 1 - i) * decay)
                for i, j in T.Parallel(D, D // 2):
                    h[i, j] = h[i, j] * T.exp2(C * decay)
                T.gemm(k, v, h, transpose_A=True)
            T.copy(h, final[ib, ih, :, iv * (D // 2) : (iv + 1) * (D // 2)])

    bf = ml_dtypes.bfloat16
    q, k, v = (normal(B, S, H, D, dtype=bf, scale=0.3) for _ in range(3))
    out = np.zeros((B, S, H, D))
    st = np.zeros((B, H, D, D))
    for h in range(H):
        g = 1 - 2.0 ** (-5 - h)
        i = np.arange(S)
        m = np.where(i[:, None] >= i, g ** np.maximum(i[:, None] - i, 0).astype(float), 0)
        a = q[0, :, h].astype(float) @ k[0, :, h].astype(float).T * m
        out[0, :, h] = a @ v[0, :, h].astype(float)
        st[0, h] = (k[0, :, h].astype(float) * (g ** (255.0 - i))[:, None]).T @ v[0, :, h].astype(float)
    return Familiar(main, (q, k, v, nan(B, S, H, D), nan(B, H, D, D)), {3: out, 4: st}, 3e-2)


def chunk_scan():
    """What a chunk's states and its own steps give."""
    normal, rng = drawn(1)
    batch, seqlen, nheads, ngroups, chunk, headdim, dstate = 1, 256, 2, 1, 128, 64, 64
    BM, BN, BK = 64, 64, 64
    nchunks = seqlen // chunk
    p = 1.44269504

    @T.prim_func
    def main(
        cb: T.Tensor((batch, nchunks, ngroups, chunk, chunk), "float16"),
        x: T.Tensor((batch, seqlen, nheads, headdim), "float16"),
        dt: T.Tensor((batch, nheads, nchunks, chunk), "float16"),
        dA_cumsum: T.Tensor((batch, nheads, nchunks, chunk), "float16"),
        C: T.Tensor((batch, seqlen, ngroups, dstate), "float16"),
        prev: T.Tensor((batch, nchunks, nheads, headdim, dstate), "float16"),
        D: T.Tensor((nheads,), "float16"),
        Output: T.Tensor((batch, seqlen, nheads, headdim), "float16"),
    ):
        with T.Kernel(nheads, T.ceildiv(chunk, BM) * T.ceildiv(headdim, BN), batch * nchunks, threads=128) as (
            bz,
            bx,
            by,
        ):
            acc_o = T.alloc_fragment((BM, BN), "float32")
            acc_o_shared = T.alloc_shared((BM, BN), "float16")
            cb_shared = T.alloc_shared((BM, BK), "float16")
            cb_local = T.alloc_fragment((BM, BK), "float16")
            dA_cs_k_shared = T.alloc_shared((BK,), "float16")
            dA_cs_k_local = T.alloc_fragment((BK,), "float32")
            dA_cs_m_local = T.alloc_fragment((BM,), "float32")
            dt_shared = T.alloc_shared((BK,), "float16")
            dt_local = T.alloc_fragment((BK,), "float32")
            x_shared = T.alloc_shared((BK, BN), "float16")
            dA_cs_m_shared = T.alloc_shared((BM,), "float16")
            scale_m_local = T.alloc_fragment((BM,), "float32")
            C_shared = T.alloc_shared((BM, dstate), "float16")
            prev_state_shared = T.alloc_shared((BN, dstate), "float16")
            D_local = T.alloc_fragment((1,), "float32")
            x_residual_shared = T.alloc_shared((BM, BN), "float16")
            x_residual_local = T.alloc_fragment((BM, BN), "float32")
            batch_idx = by % batch
            chunk_idx = by // batch
            m_idx = bx // T.ceildiv(headdim, BN)
            n_idx = bx % T.ceildiv(headdim, BN)
            T.no_set_max_nreg()
            T.copy(dA_cumsum[batch_idx, bz, chunk_idx, m_idx * BM : (m_idx + 1) * BM], dA_cs_m_shared)
            T.copy(dA_cs_m_shared, dA_cs_m_local)
            T.clear(acc_o)
            for i in T.Parallel(BM):
                scale_m_local[i] = T.exp2(dA_cs_m_local[i] * p)
            T.copy(
                C[
                    batch_idx,
                    chunk_idx * chunk + m_idx * BM : chunk_idx * chunk + (m_idx + 1) * BM,
                    bz // (nheads // ngroups),
                    0:dstate,
                ],
                C_shared,
            )
            T.copy(prev[batch_idx, chunk_idx, bz, n_idx * BN : (n_idx + 1) * BN, 0:dstate], prev_state_shared)
            T.gemm(C_shared, prev_state_shared, acc_o, transpose_B=True)
            for i, j in T.Parallel(BM, BN):
                acc_o[i, j] *= scale_m_local[i]
            loop_range = T.ceildiv((m_idx + 1) * BM, BK)
            for k in T.Pipelined(loop_range, num_stages=2):
                T.copy(
                    cb[
                        batch_idx,
                        chunk_idx,
                        bz // (nheads // ngroups),
                        m_idx * BM : (m_idx + 1) * BM,
                        k * BK : (k + 1) * BK,
                    ],
                    cb_shared,
                )
                T.copy(cb_shared, cb_local)
                T.copy(dA_cumsum[batch_idx, bz, chunk_idx, k * BK : (k + 1) * BK], dA_cs_k_shared)
                T.copy(dA_cs_k_shared, dA_cs_k_local)
                for i, j in T.Parallel(BM, BK):
                    cb_local[i, j] = cb_local[i, j] * T.exp2(dA_cs_m_local[i] * p - dA_cs_k_local[j] * p)
                T.copy(dt[batch_idx, bz, chunk_idx, k * BK : (k + 1) * BK], dt_shared)
                T.copy(dt_shared, dt_local)
                for i, j in T.Parallel(BM, BK):
                    cb_local[i, j] *= dt_local[j]
                for i, j in T.Parallel(BM, BK):
                    cb_local[i, j] = T.if_then_else(m_idx * BM + i >= k * BK + j, cb_local[i, j], 0)
                T.copy(
                    x[
                        batch_idx,
                        chunk_idx * chunk + k * BK : chunk_idx * chunk + (k + 1) * BK,
                        bz,
                        n_idx * BN : (n_idx + 1) * BN,
                    ],
                    x_shared,
                )
                T.gemm(cb_local, x_shared, acc_o)
            D_local[0] = D[bz]
            T.copy(
                x[
                    batch_idx,
                    chunk_idx * chunk + m_idx * BM : chunk_idx * chunk + (m_idx + 1) * BM,
                    bz,
                    n_idx * BN : (n_idx + 1) * BN,
                ],
                x_residual_shared,
            )
            T.copy(x_residual_shared, x_residual_local)
            for i, j in T.Parallel(BM, BN):
                acc_o[i, j] += x_residual_local[i, j] * D_local[0]
            T.copy(acc_o, acc_o_shared)
            T.copy(
                acc_o_shared,
                Output[
                    batch_idx,
                    chunk_idx * chunk + m_idx * BM : chunk_idx * chunk + (m_idx + 1) * BM,
                    bz,
                    n_idx * BN : (n_idx + 1) * BN,
                ],
            )

    cb = normal(batch, nchunks, ngroups, chunk, chunk, scale=0.3)
    x = normal(batch, seqlen, nheads, headdim)
    dt = np.abs(normal(batch, nheads, nchunks, chunk, scale=0.3))
    cs = np.cumsum(-np.abs(rng.standard_normal((batch, nheads, nchunks, chunk)) * 0.02), -1).astype(np.float16)
    Cm = normal(batch, seqlen, ngroups, dstate, scale=0.3)
    pv = normal(batch, nchunks, nheads, headdim, dstate, scale=0.3)
    Dm = normal(nheads)
    out = np.zeros((batch, seqlen, nheads, headdim))
    for c in range(nchunks):
        for h in range(nheads):
            s = slice(c * chunk, c * chunk + chunk)
            a = cs[0, h, c].astype(float)
            w = cb[0, c, 0].astype(float) * np.exp(a[:, None] - a) * dt[0, h, c].astype(float)
            w = np.tril(w)
            out[0, s, h] = (
                w @ x[0, s, h].astype(float)
                + np.exp(a)[:, None] * (Cm[0, s, 0].astype(float) @ pv[0, c, h].astype(float).T)
                + x[0, s, h].astype(float) * float(Dm[h])
            )
    return Familiar(
        main, (cb, x, dt, cs, Cm, pv, Dm, nan(batch, seqlen, nheads, headdim, dtype=np.float16)), {7: out}, 2e-2
    )


def chunk_state():
    """What a chunk adds to the state: one operand transposed and scaled in registers."""
    normal, rng = drawn(2)
    batch, seqlen, nheads, ngroups, chunk, headdim, dstate = 1, 256, 2, 1, 128, 64, 64
    BM, BN, BK = 64, 64, 32
    nchunks = seqlen // chunk
    p = 1.44269504

    @T.prim_func
    def main(
        Bm: T.Tensor((batch, seqlen, ngroups, dstate), "float16"),
        x: T.Tensor((batch, seqlen, nheads, headdim), "float16"),
        dt: T.Tensor((batch, nheads, nchunks, chunk), "float16"),
        dA_cumsum: T.Tensor((batch, nheads, nchunks, chunk), "float16"),
        Output: T.Tensor((batch, nchunks, nheads, headdim, dstate), "float16"),
    ):
        with T.Kernel(nheads, T.ceildiv(headdim, BM) * T.ceildiv(dstate, BN), batch * nchunks, threads=128) as (
            bz,
            bx,
            by,
        ):
            x_shared = T.alloc_shared((BK, BM), "float16")
            x_local = T.alloc_fragment((BK, BM), "float16")
            xt_local = T.alloc_fragment((BM, BK), "float16")
            B_shared = T.alloc_shared((BK, BN), "float16")
            dt_shared = T.alloc_shared((BK,), "float16")
            dA_shared = T.alloc_shared((BK,), "float16")
            acc_o = T.alloc_fragment((BM, BN), "float32")
            acc_o_shared = T.alloc_shared((BM, BN), "float16")
            scale = T.alloc_fragment((BK,), "float32")
            dA_cs_last = T.alloc_fragment((1,), "float32")
            dA = T.alloc_fragment((BK,), "float32")
            dt_local = T.alloc_fragment((BK,), "float32")
            batch_idx = by % batch
            chunk_idx = by // batch
            m_idx = bx // T.ceildiv(dstate, BN)
            n_idx = bx % T.ceildiv(dstate, BN)
            dA_cs_last[0] = dA_cumsum[batch_idx, bz, chunk_idx, chunk - 1]
            T.clear(acc_o)
            for k in T.Pipelined(T.ceildiv(chunk, BK), num_stages=4):
                T.copy(
                    x[
                        batch_idx,
                        chunk_idx * chunk + k * BK : chunk_idx * chunk + (k + 1) * BK,
                        bz,
                        m_idx * BM : (m_idx + 1) * BM,
                    ],
                    x_shared,
                )
                T.copy(dA_cumsum[batch_idx, bz, chunk_idx, k * BK : (k + 1) * BK], dA_shared)
                T.copy(dt[batch_idx, bz, chunk_idx, k * BK : (k + 1) * BK], dt_shared)
                T.copy(dA_shared, dA)
                T.copy(dt_shared, dt_local)
                for i in T.Parallel(BK):
                    scale[i] = T.exp2(dA_cs_last[0] * p - dA[i] * p) * dt_local[i]
                T.copy(x_shared, x_local)
                for i, j in T.Parallel(BM, BK):
                    xt_local[i, j] = x_local[j, i] * scale[j]
                T.copy(
                    Bm[
                        batch_idx,
                        chunk_idx * chunk + k * BK : chunk_idx * chunk + (k + 1) * BK,
                        bz // (nheads // ngroups),
                        n_idx * BN : (n_idx + 1) * BN,
                    ],
                    B_shared,
                )
                T.gemm(xt_local, B_shared, acc_o)
            T.copy(acc_o, acc_o_shared)
            T.copy(
                acc_o_shared,
                Output[batch_idx, chunk_idx, bz, m_idx * BM : (m_idx + 1) * BM, n_idx * BN : (n_idx + 1) * BN],
            )

    x = normal(batch, seqlen, nheads, headdim, scale=0.5)
    Bm = normal(batch, seqlen, ngroups, dstate, scale=0.5)
    dt = np.abs(normal(batch, nheads, nchunks, chunk, scale=0.3))
    cs = np.cumsum(-np.abs(rng.standard_normal((batch, nheads, nchunks, chunk)) * 0.02), -1).astype(np.float16)
    out = np.zeros((batch, nchunks, nheads, headdim, dstate))
    for c in range(nchunks):
        for h in range(nheads):
            s = slice(c * chunk, c * chunk + chunk)
            a = cs[0, h, c].astype(float)
            w = np.exp(a[-1] - a) * dt[0, h, c].astype(float)
            out[0, c, h] = (x[0, s, h].astype(float) * w[:, None]).T @ Bm[0, s, 0].astype(float)
    return Familiar(main, (Bm, x, dt, cs, nan(*out.shape, dtype=np.float16)), {4: out}, 1e-2)
