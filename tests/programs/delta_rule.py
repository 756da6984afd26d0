"""Gated delta rule in chunks: sums of gates, products of keys, triangular inverses, states, results; backward."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[-1])
def chunk_local_cumsum(B, S, H, chunk_size=64, threads=128, is_varlen=False, head_first=False, reverse=False):
    @T.prim_func
    def kernel(G: T.Tensor((B, S, H), "float32"), G_new: T.Tensor((B, S, H), "float32")):
        with T.Kernel(T.ceildiv(S, chunk_size), B, H, threads=threads) as (bs, bb, bh):
            G_shared = T.alloc_shared((1, chunk_size), "float32", scope="shared")
            for i in T.Parallel(chunk_size):
                G_shared[0, i] = G[bb, bs * chunk_size + i, bh]
            T.cumsum(G_shared, dim=1, reverse=reverse)
            for i in T.Parallel(chunk_size):
                G_new[bb, bs * chunk_size + i, bh] = G_shared[0, i]

    return kernel


@tilelang.jit(out_idx=[-1], pass_configs={tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
def scaled_dot_kkt(B, S, H, DK, chunk_size=64, block_S=64, block_DK=64, threads=256, num_stages=2, dtype="bfloat16"):
    BS = chunk_size

    @T.prim_func
    def kernel(
        K: T.Tensor((B, S, H, DK), dtype),
        Beta: T.Tensor((B, S, H), dtype),
        G: T.Tensor((B, S, H), "float32"),
        A: T.Tensor((B, S, H, BS), dtype),
    ):
        with T.Kernel(T.ceildiv(S, block_S), B * H, threads=threads) as (bs, bbh):
            bb, bh = bbh // H, bbh % H
            Beta_shared = T.alloc_shared((block_S,), dtype, scope="shared")
            K_shared = T.alloc_shared((block_S, block_DK), dtype)
            A_shared = T.alloc_shared((block_S, block_S), dtype)
            Beta_K_fragment = T.alloc_fragment((block_S, block_DK), dtype)
            A_fragment = T.alloc_fragment((block_S, block_S), "float32")
            G_shared = T.alloc_shared((block_S,), "float32", scope="shared")
            G_diff_local = T.alloc_fragment((block_S, block_S), "float32")
            T.annotate_layout(
                {
                    K_shared: tilelang.layout.make_swizzled_layout(K_shared),
                    A_shared: tilelang.layout.make_swizzled_layout(A_shared),
                }
            )
            T.fill(A_fragment, 0)
            T.disable_warp_group_reg_alloc()
            for i in T.Parallel(block_S):
                Beta_shared[i] = Beta[bb, bs * block_S + i, bh]
            for i_k in T.Pipelined(T.ceildiv(DK, block_DK), num_stages=num_stages):
                T.copy(K[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], K_shared)
                for i_s, i_k2 in T.Parallel(block_S, block_DK):
                    Beta_K_fragment[i_s, i_k2] = K_shared[i_s, i_k2] * Beta_shared[i_s]
                T.gemm(Beta_K_fragment, K_shared, A_fragment, transpose_B=True)
            for i in T.Parallel(block_S):
                G_shared[i] = G[bb, bs * block_S + i, bh]
            for i, j in T.Parallel(block_S, block_S):
                G_diff_local[i, j] = G_shared[i] - G_shared[j]
            for i, j in T.Parallel(block_S, block_S):
                with T.If(G_diff_local[i, j] <= 0 and i > j):
                    with T.Then():
                        A_fragment[i, j] = A_fragment[i, j] * T.exp(G_diff_local[i, j])
                    with T.Else():
                        A_fragment[i, j] = 0
            T.copy(A_fragment, A_shared)
            T.copy(A_shared, A[bb, bs * block_S : (bs + 1) * block_S, bh, :])

    return kernel


@tilelang.jit(out_idx=[-1])
def solve_tril(B, S, H, BT=64, threads=64, dtype="bfloat16"):
    """(1 + A)^-1 by rows, in shared memory."""

    @T.prim_func
    def kernel(A: T.Tensor((B, S, H, BT), dtype), Ai: T.Tensor((B, S, H, BT), dtype)):
        with T.Kernel(T.ceildiv(S, BT), B, H, threads=threads) as (bs, bb, bh):
            X = T.alloc_shared((BT, BT), "float32")
            row = T.alloc_shared((BT,), "float32")
            for i, j in T.Parallel(BT, BT):
                X[i, j] = T.if_then_else(i > j, -T.Cast("float32", A[bb, bs * BT + i, bh, j]), 0.0)
            for i in T.serial(1, BT):
                for j in T.Parallel(BT):
                    row[j] = X[i, j]
                for j in T.Parallel(BT):
                    acc = T.alloc_var("float32", init=0.0)
                    for k in T.serial(BT):
                        acc = acc + T.if_then_else(k < i, row[k] * X[k, j], 0.0)
                    X[i, j] = row[j] + acc
            for i, j in T.Parallel(BT, BT):
                Ai[bb, bs * BT + i, bh, j] = X[i, j] + T.if_then_else(i == j, 1.0, 0.0)

    return kernel


@tilelang.jit(out_idx=[-2, -1])
def recompute_w_u(
    B, S, H, DK, DV, chunk_size=64, block_S=64, block_DK=64, block_DV=64, threads=128, num_stages=3, dtype="bfloat16"
):
    BS = chunk_size

    @T.prim_func
    def kernel(
        K: T.Tensor((B, S, H, DK), dtype),
        V: T.Tensor((B, S, H, DV), dtype),
        Beta: T.Tensor((B, S, H), dtype),
        G: T.Tensor((B, S, H), "float32"),
        A: T.Tensor((B, S, H, BS), dtype),
        W: T.Tensor((B, S, H, DK), dtype),
        U: T.Tensor((B, S, H, DV), dtype),
    ):
        with T.Kernel(T.ceildiv(S, block_S), B * H, threads=threads) as (bs, bbh):
            bb, bh = bbh // H, bbh % H
            Beta_shared = T.alloc_shared((block_S,), dtype, scope="shared")
            K_shared = T.alloc_shared((block_S, block_DK), dtype)
            V_shared = T.alloc_shared((block_S, block_DV), dtype)
            G_shared = T.alloc_shared((block_S,), "float32", scope="shared")
            A_shared = T.alloc_shared((block_S, block_S), dtype)
            W_fragment = T.alloc_fragment((block_S, block_DK), "float32")
            U_fragment = T.alloc_fragment((block_S, block_DV), "float32")
            W_shared = T.alloc_shared((block_S, block_DK), dtype)
            U_shared = T.alloc_shared((block_S, block_DV), dtype)
            W_Beta_shared = T.alloc_shared((block_S, block_DK), dtype)
            U_Beta_shared = T.alloc_shared((block_S, block_DV), dtype)
            T.annotate_layout(
                {
                    K_shared: tilelang.layout.make_swizzled_layout(K_shared),
                    V_shared: tilelang.layout.make_swizzled_layout(V_shared),
                    A_shared: tilelang.layout.make_swizzled_layout(A_shared),
                    W_shared: tilelang.layout.make_swizzled_layout(W_shared),
                    U_shared: tilelang.layout.make_swizzled_layout(U_shared),
                    W_Beta_shared: tilelang.layout.make_swizzled_layout(W_Beta_shared),
                    U_Beta_shared: tilelang.layout.make_swizzled_layout(U_Beta_shared),
                }
            )
            T.disable_warp_group_reg_alloc()
            for i_s in T.Parallel(block_S):
                Beta_shared[i_s] = Beta[bb, bs * block_S + i_s, bh]
                G_shared[i_s] = T.exp(G[bb, bs * block_S + i_s, bh])
            T.copy(A[bb, bs * block_S : (bs + 1) * block_S, bh, :], A_shared)
            for i_v in T.Pipelined(T.ceildiv(DV, block_DV), num_stages=num_stages):
                T.copy(V[bb, bs * block_S : (bs + 1) * block_S, bh, i_v * block_DV : (i_v + 1) * block_DV], V_shared)
                for i_s, i_v2 in T.Parallel(block_S, block_DV):
                    U_Beta_shared[i_s, i_v2] = V_shared[i_s, i_v2] * Beta_shared[i_s]
                T.gemm(A_shared, U_Beta_shared, U_fragment, clear_accum=True)
                T.copy(U_fragment, U_shared)
                T.copy(U_shared, U[bb, bs * block_S : (bs + 1) * block_S, bh, i_v * block_DV : (i_v + 1) * block_DV])
            for i_k in T.Pipelined(T.ceildiv(DK, block_DK), num_stages=num_stages):
                T.copy(K[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], K_shared)
                for i_s, i_k2 in T.Parallel(block_S, block_DK):
                    W_Beta_shared[i_s, i_k2] = K_shared[i_s, i_k2] * Beta_shared[i_s] * G_shared[i_s]
                T.gemm(A_shared, W_Beta_shared, W_fragment, clear_accum=True)
                T.copy(W_fragment, W_shared)
                T.copy(W_shared, W[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK])

    return kernel


@tilelang.jit(out_idx=[-3, -2, -1])
def chunk_delta_h(
    B,
    S,
    H,
    DK,
    DV,
    chunk_size=64,
    use_initial_state=True,
    block_DK=64,
    block_DV=32,
    threads=128,
    num_stages=2,
    dtype="bfloat16",
):
    block_S = chunk_size
    BS = S // block_S

    @T.prim_func
    def kernel(
        K: T.Tensor((B, S, H, DK), dtype),
        W: T.Tensor((B, S, H, DK), dtype),
        U: T.Tensor((B, S, H, DV), dtype),
        G: T.Tensor((B, S, H), "float32"),
        initial_state: T.Tensor((B, H, DK, DV), dtype),
        h: T.Tensor((B, BS, H, DK, DV), dtype),
        final_state: T.Tensor((B, H, DK, DV), "float32"),
        V_new: T.Tensor((B, S, H, DV), dtype),
    ):
        with T.Kernel(T.ceildiv(DV, block_DV), B * H, threads=threads) as (bv, bbh):
            bb, bh = bbh // H, bbh % H
            b_h_shared = T.alloc_shared((DK, block_DV), dtype)
            b_h_fragment = T.alloc_fragment((DK, block_DV), "float32")
            U_shared = T.alloc_shared((block_S, block_DV), dtype)
            U_fragment = T.alloc_fragment((block_S, block_DV), "float32")
            W_shared = T.alloc_shared((block_S, DK), dtype)
            V_new_fragment = T.alloc_fragment((block_S, block_DV), "float32")
            V_new_shared = T.alloc_shared((block_S, block_DV), dtype)
            K_shared = T.alloc_shared((block_S, DK), dtype)
            G_last_local = T.alloc_local((1,), "float32")
            G_shared = T.alloc_shared((block_S, block_DV), "float32")
            G_fragment = T.alloc_fragment((block_S, block_DV), "float32")
            T.annotate_layout(
                {
                    b_h_shared: tilelang.layout.make_swizzled_layout(b_h_shared),
                    U_shared: tilelang.layout.make_swizzled_layout(U_shared),
                    W_shared: tilelang.layout.make_swizzled_layout(W_shared),
                    V_new_shared: tilelang.layout.make_swizzled_layout(V_new_shared),
                    K_shared: tilelang.layout.make_swizzled_layout(K_shared),
                    G_shared: tilelang.layout.make_swizzled_layout(G_shared),
                }
            )
            T.use_swizzle(10)
            if use_initial_state:
                T.copy(initial_state[bb, bh, 0:DK, bv * block_DV : (bv + 1) * block_DV], b_h_shared)
                T.copy(b_h_shared, b_h_fragment)
            else:
                T.clear(b_h_fragment)
            for i_s in T.Pipelined(T.ceildiv(S, block_S), num_stages=num_stages):
                T.copy(b_h_shared, h[bb, i_s, bh, 0:DK, bv * block_DV : (bv + 1) * block_DV])
                T.copy(W[bb, i_s * block_S : (i_s + 1) * block_S, bh, 0:DK], W_shared)
                T.gemm(W_shared, b_h_shared, V_new_fragment, clear_accum=True)
                T.copy(U[bb, i_s * block_S : (i_s + 1) * block_S, bh, bv * block_DV : (bv + 1) * block_DV], U_shared)
                T.copy(U_shared, U_fragment)
                for i_s2, i_v in T.Parallel(block_S, block_DV):
                    V_new_fragment[i_s2, i_v] = -V_new_fragment[i_s2, i_v] + U_fragment[i_s2, i_v]
                T.copy(V_new_fragment, dst=V_new_shared)
                T.copy(
                    V_new_shared,
                    V_new[bb, i_s * block_S : (i_s + 1) * block_S, bh, bv * block_DV : (bv + 1) * block_DV],
                )
                T.copy(K[bb, i_s * block_S : (i_s + 1) * block_S, bh, 0:DK], K_shared)
                G_last_local[0] = G[bb, (i_s + 1) * block_S - 1, bh]
                for i_s2, i_v in T.Parallel(block_S, block_DV):
                    G_shared[i_s2, i_v] = G[bb, i_s * block_S + i_s2, bh]
                T.copy(G_shared, G_fragment)
                for i_s2, i_v in T.Parallel(block_S, block_DV):
                    with T.If(G_last_local[0] - G_fragment[i_s2, i_v] <= 0):
                        with T.Then():
                            V_new_fragment[i_s2, i_v] = V_new_fragment[i_s2, i_v] * T.exp2(
                                (G_last_local[0] - G_fragment[i_s2, i_v]) * 1.442695
                            )
                        with T.Else():
                            V_new_fragment[i_s2, i_v] = 0
                G_last_local[0] = T.exp2(G_last_local[0] * 1.442695)
                for i_k, i_v in T.Parallel(DK, block_DV):
                    b_h_fragment[i_k, i_v] *= G_last_local[0]
                T.copy(V_new_fragment, V_new_shared)
                T.gemm(K_shared, V_new_shared, b_h_fragment, transpose_A=True)
                T.copy(b_h_fragment, b_h_shared)
            T.copy(b_h_fragment, final_state[bb, bh, 0:DK, bv * block_DV : (bv + 1) * block_DV])

    return kernel


@tilelang.jit(out_idx=[-1])
def chunk_o(
    B,
    S,
    H,
    DK,
    DV,
    scale,
    chunk_size=64,
    block_S=64,
    block_DK=64,
    block_DV=64,
    threads=128,
    num_stages=1,
    dtype="bfloat16",
):
    @T.prim_func
    def kernel(
        Q: T.Tensor((B, S, H, DK), dtype),
        K: T.Tensor((B, S, H, DK), dtype),
        V: T.Tensor((B, S, H, DV), dtype),
        HIDDEN: T.Tensor((B, S // chunk_size, H, DK, DV), dtype),
        G: T.Tensor((B, S, H), "float32"),
        O: T.Tensor((B, S, H, DV), dtype),
    ):
        with T.Kernel(T.ceildiv(DV, block_DV), T.ceildiv(S, block_S), B * H, threads=threads) as (bv, bs, bbh):
            bb, bh = bbh // H, bbh % H
            Q_shared = T.alloc_shared((block_S, block_DK), dtype)
            K_shared = T.alloc_shared((block_S, block_DK), dtype)
            V_shared = T.alloc_shared((block_S, block_DV), dtype)
            H_shared = T.alloc_shared((block_DK, block_DV), dtype)
            A_shared = T.alloc_shared((block_S, block_S), dtype)
            O_shared = T.alloc_shared((block_S, block_DV), dtype)
            A_fragment = T.alloc_fragment((block_S, block_S), "float32")
            O_fragment = T.alloc_fragment((block_S, block_DV), "float32")
            G_shared = T.alloc_shared((block_S,), "float32", scope="shared")
            G_diff_local = T.alloc_fragment((block_S, block_S), "float32")
            T.clear(A_fragment)
            T.clear(O_fragment)
            T.disable_warp_group_reg_alloc()
            for i_k in T.Pipelined(T.ceildiv(DK, block_DK), num_stages=num_stages):
                T.copy(Q[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], Q_shared)
                T.copy(K[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], K_shared)
                T.copy(
                    HIDDEN[bb, bs, bh, i_k * block_DK : (i_k + 1) * block_DK, bv * block_DV : (bv + 1) * block_DV],
                    H_shared,
                )
                T.gemm(Q_shared, H_shared, O_fragment)
                T.gemm(Q_shared, K_shared, A_fragment, transpose_B=True)
            for i_s in T.Parallel(block_S):
                G_shared[i_s] = G[bb, bs * block_S + i_s, bh]
            for i_s, i_v in T.Parallel(block_S, block_DV):
                O_fragment[i_s, i_v] = O_fragment[i_s, i_v] * T.exp(G_shared[i_s])
            for i_s1, i_s2 in T.Parallel(block_S, block_S):
                G_diff_local[i_s1, i_s2] = G_shared[i_s1] - G_shared[i_s2]
            for i_s1, i_s2 in T.Parallel(block_S, block_S):
                with T.If(G_diff_local[i_s1, i_s2] <= 0):
                    with T.Then():
                        A_fragment[i_s1, i_s2] = A_fragment[i_s1, i_s2] * T.exp(G_diff_local[i_s1, i_s2])
                    with T.Else():
                        A_fragment[i_s1, i_s2] = 0
            for i_s1, i_s2 in T.Parallel(block_S, block_S):
                with T.If(i_s1 < i_s2), T.Then():
                    A_fragment[i_s1, i_s2] = 0
            T.copy(V[bb, bs * block_S : (bs + 1) * block_S, bh, bv * block_DV : (bv + 1) * block_DV], V_shared)
            T.copy(A_fragment, A_shared)
            T.gemm(A_shared, V_shared, O_fragment)
            for i_s, i_v in T.Parallel(block_S, block_DV):
                O_fragment[i_s, i_v] = O_fragment[i_s, i_v] * scale
            T.copy(O_fragment, O_shared)
            T.copy(O_shared, O[bb, bs * block_S : (bs + 1) * block_S, bh, bv * block_DV : (bv + 1) * block_DV])

    return kernel


@tilelang.jit(out_idx=[-5, -4, -3, -2, -1])
def wy_bwd(B, S, H, DK, DV, block_DK=64, block_DV=64, threads=128, num_stages=1, dtype="bfloat16", block_S=64):
    """Backward of w and u: sums over columns reduced in both directions."""
    BS = block_S

    @T.prim_func
    def kernel(
        K: T.Tensor((B, S, H, DK), dtype),
        V: T.Tensor((B, S, H, DV), dtype),
        Beta: T.Tensor((B, S, H), dtype),
        G: T.Tensor((B, S, H), "float32"),
        A: T.Tensor((B, S, H, BS), dtype),
        dw: T.Tensor((B, S, H, DK), dtype),
        du: T.Tensor((B, S, H, DV), dtype),
        dA: T.Tensor((B, S, H, BS), "float32"),
        dk: T.Tensor((B, S, H, DK), "float32"),
        dv: T.Tensor((B, S, H, DV), "float32"),
        dbeta: T.Tensor((B, S, H), "float32"),
        dg: T.Tensor((B, S, H), "float32"),
    ):
        with T.Kernel(T.ceildiv(S, block_S), B * H, threads=threads) as (bs, bbh):
            bb, bh = bbh // H, bbh % H
            A_shared = T.alloc_shared((block_S, block_S), dtype)
            K_shared = T.alloc_shared((block_S, block_DK), dtype)
            Kbg = T.alloc_shared((block_S, block_DK), dtype)
            V_shared = T.alloc_shared((block_S, block_DV), dtype)
            Vb = T.alloc_shared((block_S, block_DV), dtype)
            dw_shared = T.alloc_shared((block_S, block_DK), dtype)
            du_shared = T.alloc_shared((block_S, block_DV), dtype)
            Beta_shared = T.alloc_shared((block_S,), "float32")
            G_exp = T.alloc_shared((block_S,), "float32")
            dA_f = T.alloc_fragment((block_S, block_S), "float32")
            dk_f = T.alloc_fragment((block_S, block_DK), "float32")
            dk_b = T.alloc_fragment((block_S, block_DK), "float32")
            dv_f = T.alloc_fragment((block_S, block_DV), "float32")
            dv_b = T.alloc_fragment((block_S, block_DV), "float32")
            b1 = T.alloc_fragment((block_S,), "float32")
            b2 = T.alloc_fragment((block_S,), "float32")
            dg_f = T.alloc_fragment((block_S,), "float32")
            g1 = T.alloc_fragment((block_S, block_DK), "float32")
            T.use_swizzle(10)
            T.clear(dA_f)
            T.clear(b1)
            T.clear(b2)
            T.clear(dg_f)
            T.copy(A[bb, bs * block_S : (bs + 1) * block_S, bh, :], A_shared)
            for i in T.Parallel(block_S):
                Beta_shared[i] = Beta[bb, bs * block_S + i, bh]
                G_exp[i] = T.exp(G[bb, bs * block_S + i, bh])
            for i_k in T.Pipelined(T.ceildiv(DK, block_DK), num_stages=num_stages):
                T.copy(K[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], K_shared)
                T.copy(dw[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK], dw_shared)
                for i, j in T.Parallel(block_S, block_DK):
                    Kbg[i, j] = K_shared[i, j] * Beta_shared[i] * G_exp[i]
                T.gemm(dw_shared, Kbg, dA_f, transpose_B=True)
                T.gemm(A_shared, dw_shared, dk_f, transpose_A=True, clear_accum=True)
                for i, j in T.Parallel(block_S, block_DK):
                    dk_b[i, j] = dk_f[i, j] * K_shared[i, j] * G_exp[i]
                    g1[i, j] = dk_f[i, j] * K_shared[i, j] * G_exp[i] * Beta_shared[i]
                T.reduce_sum(dk_b, b1, dim=1, clear=False)
                T.reduce_sum(g1, dg_f, dim=1, clear=False)
                for i, j in T.Parallel(block_S, block_DK):
                    dk_f[i, j] = dk_f[i, j] * Beta_shared[i] * G_exp[i]
                T.copy(dk_f, dk[bb, bs * block_S : (bs + 1) * block_S, bh, i_k * block_DK : (i_k + 1) * block_DK])
            for i_v in T.Pipelined(T.ceildiv(DV, block_DV), num_stages=num_stages):
                T.copy(V[bb, bs * block_S : (bs + 1) * block_S, bh, i_v * block_DV : (i_v + 1) * block_DV], V_shared)
                T.copy(du[bb, bs * block_S : (bs + 1) * block_S, bh, i_v * block_DV : (i_v + 1) * block_DV], du_shared)
                for i, j in T.Parallel(block_S, block_DV):
                    Vb[i, j] = V_shared[i, j] * Beta_shared[i]
                T.gemm(du_shared, Vb, dA_f, transpose_B=True)
                T.gemm(A_shared, du_shared, dv_f, transpose_A=True, clear_accum=True)
                for i, j in T.Parallel(block_S, block_DV):
                    dv_b[i, j] = dv_f[i, j] * V_shared[i, j]
                T.reduce_sum(dv_b, b2, dim=1, clear=False)
                for i, j in T.Parallel(block_S, block_DV):
                    dv_f[i, j] = dv_f[i, j] * Beta_shared[i]
                T.copy(dv_f, dv[bb, bs * block_S : (bs + 1) * block_S, bh, i_v * block_DV : (i_v + 1) * block_DV])
            for i in T.Parallel(block_S):
                dbeta[bb, bs * block_S + i, bh] = b1[i] + b2[i]
            T.copy(dg_f, dg[bb, bs * block_S : (bs + 1) * block_S, bh])
            T.copy(dA_f, dA[bb, bs * block_S : (bs + 1) * block_S, bh, :])

    return kernel


REAL_SIZES = [
    ("cumsum", lambda: chunk_local_cumsum(1, 32768, 32)),
    ("kkt", lambda: scaled_dot_kkt(1, 32768, 32, 128)),
    ("tril", lambda: solve_tril(1, 32768, 32)),
    ("wu", lambda: recompute_w_u(1, 32768, 32, 128, 128)),
    ("delta_h", lambda: chunk_delta_h(1, 32768, 32, 128, 128)),
    ("delta_h 0 stage 256", lambda: chunk_delta_h(1, 32768, 32, 128, 128, num_stages=0, threads=256, block_DV=64)),
    ("chunk_o", lambda: chunk_o(1, 32768, 32, 128, 128, 0.1)),
    (
        "chunk_o s2 256",
        lambda: chunk_o(1, 32768, 32, 128, 128, 0.1, num_stages=2, threads=256, block_DK=128, block_DV=128),
    ),
    ("wy_bwd", lambda: wy_bwd(1, 32768, 32, 128, 128)),
]

if __name__ == "__main__":
    B, S, H, DK, DV = 1, 128, 2, 128, 64
    q, k = (torch.nn.functional.normalize(torch.randn(B, S, H, DK, device=dev), dim=-1).bfloat16() for _ in range(2))
    v = torch.randn(B, S, H, DV, device=dev).bfloat16()
    beta = torch.rand(B, S, H, device=dev).bfloat16()
    g = -torch.rand(B, S, H, device=dev) * 0.1
    G = chunk_local_cumsum(B, S, H)(g)
    torch.testing.assert_close(G.double(), g.double().view(B, 2, 64, H).cumsum(2).view(B, S, H), rtol=1e-5, atol=1e-5)
    A = scaled_dot_kkt(B, S, H, DK)(k, beta, G)
    Ai = solve_tril(B, S, H)(A)
    W, U = recompute_w_u(B, S, H, DK, DV)(k, v, beta, G, Ai)
    h0 = torch.zeros(B, H, DK, DV, device=dev).bfloat16()
    hs, hf, vn = chunk_delta_h(B, S, H, DK, DV)(k, W, U, G, h0)
    o = chunk_o(B, S, H, DK, DV, DK**-0.5)(q, k, vn, hs, G)
    # the recurrence
    st = torch.zeros(B, H, DK, DV, dtype=torch.float64, device=dev)
    ref = []
    for t in range(S):
        st = st * g[:, t].double().exp()[..., None, None]
        kt, vt, bt = k[:, t].double(), v[:, t].double(), beta[:, t].double()
        st = st + torch.einsum("bhk,bhv->bhkv", kt, (vt - torch.einsum("bhk,bhkv->bhv", kt, st)) * bt[..., None])
        ref.append(torch.einsum("bhk,bhkv->bhv", q[:, t].double(), st) * DK**-0.5)
    ref = torch.stack(ref, 1)
    torch.testing.assert_close(o.double(), ref, rtol=5e-2, atol=2e-2)
    torch.testing.assert_close(hf.double(), st, rtol=5e-2, atol=3e-2)
    dw, du = torch.randn_like(W), torch.randn_like(U)
    dA, dk, dv, db, dg = wy_bwd(B, S, H, DK, DV)(k, v, beta, G, Ai, dw, du)
    kd, vd, bd, gd, ad = (x.double().requires_grad_() for x in (k, v, beta, G, Ai))

    def chunks(x):
        return x.view(B, 2, 64, H, -1).permute(0, 1, 3, 2, 4)

    a = chunks(ad)
    w = a @ (chunks(kd) * chunks(bd) * chunks(gd).exp())
    u = a @ (chunks(vd) * chunks(bd))
    ((w * chunks(dw.double())).sum() + (u * chunks(du.double())).sum()).backward()
    for got, want in ((dA, ad), (dk, kd), (dv, vd), (db, bd), (dg, gd)):
        torch.testing.assert_close(got.double(), want.grad, rtol=5e-2, atol=0.3)
    print("ok")
