"""The backward pass of attention with grouped heads: sums that blocks share are added atomically."""

import numpy as np
from familiar_program import Familiar, drawn, gradient_tiles, log2_sums, nan, softmax

import tilewright.language as T


def backward(causal=True):
    """GQA backward: prep kernel, dK dV with accumulators and dQ by atomics, all in one function."""
    normal, _ = drawn(0)
    B, H, HK, S, D, BM, BN = 1, 4, 2, 130, 64, 64, 64
    groups = H // HK
    sm = 1 / 8
    scale = sm * 1.44269504

    @T.prim_func
    def main(
        Q: T.Tensor([B, S, H, D], "float16"),
        K: T.Tensor([B, S, HK, D], "float16"),
        V: T.Tensor([B, S, HK, D], "float16"),
        dO: T.Tensor([B, S, H, D], "float16"),
        O: T.Tensor([B, S, H, D], "float16"),
        lse: T.Tensor([B, H, S], "float32"),
        Delta: T.Tensor([B, H, S], "float32"),
        dQ: T.Tensor([B, S, H, D], "float32"),
        dK: T.Tensor([B, S, HK, D], "float32"),
        dV: T.Tensor([B, S, HK, D], "float32"),
    ):
        with T.Kernel(H, T.ceildiv(S, 32), B, threads=128) as (bx, by, bz):
            o = T.alloc_fragment([32, 32], "float16")
            do = T.alloc_fragment([32, 32], "float16")
            acc = T.alloc_fragment([32, 32], "float32")
            delta = T.alloc_fragment([32], "float32")
            T.clear(acc)
            for k in range(T.ceildiv(D, 32)):
                T.copy(O[bz, by * 32 : (by + 1) * 32, bx, k * 32 : (k + 1) * 32], o)
                T.copy(dO[bz, by * 32 : (by + 1) * 32, bx, k * 32 : (k + 1) * 32], do)
                for i, j in T.Parallel(32, 32):
                    acc[i, j] += o[i, j] * do[i, j]
            T.reduce_sum(acc, delta, 1)
            T.copy(delta, Delta[bz, bx, by * 32 : (by + 1) * 32])
        with T.Kernel(H, T.ceildiv(S, BM), B, threads=128) as (bx, by, bz):
            K_shared, V_shared, q, do, lse_shared, delta, qkT, dsT, dv, dk = gradient_tiles(BM, BN, D, "float16")
            dsT_shared = T.alloc_shared([BM, BN], "float16")
            qkT_cast = T.alloc_fragment([BM, BN], "float16")
            dsT_cast = T.alloc_fragment([BM, BN], "float16")
            dq = T.alloc_fragment([BN, D], "float32")
            T.copy(K[bz, by * BM : (by + 1) * BM, bx // groups, :], K_shared)
            T.copy(V[bz, by * BM : (by + 1) * BM, bx // groups, :], V_shared)
            T.clear(dv)
            T.clear(dk)
            loop_st = T.floordiv(by * BM, BN) if causal else 0
            loop_ed = T.ceildiv(S, BN)
            for k in T.Pipelined(loop_st, loop_ed, num_stages=2):
                T.copy(Q[bz, k * BN : (k + 1) * BN, bx, :], q)
                T.clear(qkT)
                T.gemm(K_shared, q, qkT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(lse[bz, bx, k * BN : (k + 1) * BN], lse_shared)
                for i, j in T.Parallel(BM, BN):
                    qkT[i, j] = T.exp2(qkT[i, j] * scale - lse_shared[j])
                if causal:
                    for i, j in T.Parallel(BM, BN):
                        qkT[i, j] = T.if_then_else(by * BM + i <= k * BN + j and k * BN + j < S, qkT[i, j], 0)
                T.copy(dO[bz, k * BN : (k + 1) * BN, bx, :], do)
                T.clear(dsT)
                T.gemm(V_shared, do, dsT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(qkT, qkT_cast)
                T.gemm(qkT_cast, do, dv, policy=T.GemmWarpPolicy.FullRow)
                T.copy(Delta[bz, bx, k * BN : (k + 1) * BN], delta)
                for i, j in T.Parallel(BM, BN):
                    dsT_cast[i, j] = qkT[i, j] * (dsT[i, j] - delta[j]) * sm
                T.gemm(dsT_cast, q, dk, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dsT_cast, dsT_shared)
                T.clear(dq)
                T.gemm(dsT_shared, K_shared, dq, transpose_A=True)
                for i, j in T.Parallel(BN, D):
                    if k * BN + i < S:
                        T.atomic_add(dQ[bz, k * BN + i, bx, j], dq[i, j])
            for i, j in T.Parallel(BM, D):
                T.atomic_add(dV[bz, by * BM + i, bx // groups, j], dv[i, j])
                T.atomic_add(dK[bz, by * BM + i, bx // groups, j], dk[i, j])

    q, do = normal(B, S, H, D), normal(B, S, H, D)
    k, v = normal(B, S, HK, D), normal(B, S, HK, D)
    qq, dd = (x.astype(float).transpose(0, 2, 1, 3) for x in (q, do))
    kk, vv = (np.repeat(x.astype(float).transpose(0, 2, 1, 3), groups, 1) for x in (k, v))
    s = qq @ kk.swapaxes(2, 3) * sm
    s[..., np.triu(np.ones((S, S), bool), 1)] = -np.inf
    p = softmax(s)
    o = p @ vv
    lse = log2_sums(s).astype(np.float32)
    dp = dd @ vv.swapaxes(2, 3)
    delta = (o * dd).sum(-1, keepdims=True)
    ds = p * (dp - delta) * sm
    dq, dk, dv = ds @ kk, ds.swapaxes(2, 3) @ qq, p.swapaxes(2, 3) @ dd

    def back(x):
        return x.transpose(0, 2, 1, 3)

    def red(x):
        return x.reshape(B, HK, groups, S, D).sum(2)

    return Familiar(
        main,
        (
            q,
            k,
            v,
            do,
            back(o).astype(np.float16, order="C"),
            lse,
            nan(B, H, S),
            np.zeros((B, S, H, D), np.float32),
            np.zeros((B, S, HK, D), np.float32),
            np.zeros((B, S, HK, D), np.float32),
        ),
        {7: back(dq), 8: back(red(dk)), 9: back(red(dv))},
        1.5e-2,
    )
