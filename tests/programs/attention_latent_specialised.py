"""MLA decode, warp specialised by hand: two consumers share one query tile; each keeps half of the values' columns."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def flash_mla_ws(batch, heads, kv_ctx, dim, pe_dim, block_N, block_H, softmax_scale):
    scale = float(softmax_scale * 1.44269504)
    dtype, accum_dtype = "bfloat16", "float"
    h_dim = dim // 2
    NI = kv_ctx // block_N

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        Q_pe: T.Tensor([batch, heads, pe_dim], dtype),
        KV: T.Tensor([batch, kv_ctx, 1, dim], dtype),
        K_pe: T.Tensor([batch, kv_ctx, 1, pe_dim], dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(heads // block_H, batch, threads=384) as (hid, bid):
            Q_shared_l = T.alloc_shared([block_H, h_dim], dtype)
            Q_shared_r = T.alloc_shared([block_H, h_dim], dtype)
            Q_tail_shared = T.alloc_shared([block_H, pe_dim], dtype)
            KV_shared_0_l = T.alloc_shared([block_N, h_dim], dtype)
            KV_shared_0_r = T.alloc_shared([block_N, h_dim], dtype)
            KV_shared_1_l = T.alloc_shared([block_N, h_dim], dtype)
            KV_shared_1_r = T.alloc_shared([block_N, h_dim], dtype)
            K_tail_shared_0 = T.alloc_shared([block_N, pe_dim], dtype)
            K_tail_shared_1 = T.alloc_shared([block_N, pe_dim], dtype)
            O_shared_l = Q_shared_l
            O_shared_r = Q_shared_r

            acc_o_l = T.alloc_fragment([block_H, h_dim], accum_dtype)
            acc_o_r = T.alloc_fragment([block_H, h_dim], accum_dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            S_shared = T.alloc_shared([block_H, block_N], dtype)
            sumexp = T.alloc_fragment([block_H], accum_dtype)
            sum_exp_shared = T.alloc_shared([block_H], accum_dtype)
            sumexp_i = T.alloc_fragment([block_H], accum_dtype)
            alpha_shared = T.alloc_shared([block_H], accum_dtype, scope="shared")
            alpha_local = T.alloc_fragment([block_H], accum_dtype)
            m_i = T.alloc_fragment([block_H], accum_dtype)
            m_i_prev = T.alloc_fragment([block_H], accum_dtype)

            bar_q = T.alloc_barrier(arrive_count=384)
            bar_k_0_ready = T.alloc_barrier(arrive_count=128)
            bar_k_1_ready = T.alloc_barrier(arrive_count=128)
            bar_k_0_free = T.alloc_barrier(arrive_count=256)
            bar_k_1_free = T.alloc_barrier(arrive_count=256)
            bar_sScale_and_sS_ready = T.alloc_barrier(arrive_count=256)
            bar_sScale_and_sS_free = T.alloc_barrier(arrive_count=256)

            tx = T.get_thread_binding()

            T.copy(Q[bid, hid * block_H : (hid + 1) * block_H, 0:h_dim], Q_shared_l)
            T.copy(Q[bid, hid * block_H : (hid + 1) * block_H, h_dim:dim], Q_shared_r)
            T.copy(Q_pe[bid, hid * block_H : (hid + 1) * block_H, :], Q_tail_shared)
            T.barrier_arrive(bar_q)

            if tx < 128:
                T.set_max_nreg(240, 1)
                T.fill(sumexp, 0)
                T.fill(m_i, -(2**30))
                T.fill(acc_o_l, 0)
                T.barrier_wait(bar_q, 0)

                for i_i in T.serial(T.ceildiv(NI, 2)):
                    # Buffer 0
                    T.barrier_wait(bar_k_0_ready[0], (i_i & 1))
                    T.clear(acc_s)
                    T.gemm(Q_shared_l, KV_shared_0_l, acc_s, transpose_B=True, wg_wait=-1)
                    T.gemm(Q_shared_r, KV_shared_0_r, acc_s, transpose_B=True, wg_wait=-1)
                    T.gemm(Q_tail_shared, K_tail_shared_0, acc_s, transpose_B=True, wg_wait=-1)
                    T.wait_wgmma(0)

                    if i_i != 0:
                        T.barrier_arrive(bar_sScale_and_sS_free)
                        T.barrier_wait(bar_sScale_and_sS_free, ((i_i * 2) & 1) ^ 1)

                    T.copy(m_i, m_i_prev)
                    T.reduce_max(acc_s, m_i, dim=1, clear=False)
                    for h_i in T.Parallel(block_H):
                        m_i[h_i] = T.max(m_i[h_i], m_i_prev[h_i])
                    for h_i in T.Parallel(block_H):
                        alpha_local[h_i] = T.exp2((m_i_prev[h_i] - m_i[h_i]) * scale)
                    for h_i, bi_i in T.Parallel(block_H, block_N):
                        acc_s[h_i, bi_i] = T.exp2(acc_s[h_i, bi_i] * scale - m_i[h_i] * scale)
                    T.reduce_sum(acc_s, sumexp_i, dim=1)
                    for h_i in T.Parallel(block_H):
                        sumexp[h_i] = sumexp[h_i] * alpha_local[h_i] + sumexp_i[h_i]
                    for h_i, d_i in T.Parallel(block_H, h_dim):
                        acc_o_l[h_i, d_i] *= alpha_local[h_i]
                    T.copy(alpha_local, alpha_shared)

                    T.copy(acc_s, S_shared)
                    T.gemm(S_shared, KV_shared_0_l, acc_o_l)

                    T.barrier_arrive(bar_sScale_and_sS_ready)
                    T.barrier_arrive(bar_k_0_free[0])

                    # Buffer 1
                    T.barrier_wait(bar_k_1_ready[0], (i_i & 1))
                    T.clear(acc_s)
                    T.gemm(Q_shared_l, KV_shared_1_l, acc_s, transpose_B=True, wg_wait=-1)
                    T.gemm(Q_shared_r, KV_shared_1_r, acc_s, transpose_B=True, wg_wait=-1)
                    T.gemm(Q_tail_shared, K_tail_shared_1, acc_s, transpose_B=True, wg_wait=-1)
                    T.wait_wgmma(0)

                    T.barrier_arrive(bar_sScale_and_sS_free)
                    T.barrier_wait(bar_sScale_and_sS_free, ((i_i * 2 + 1) & 1) ^ 1)

                    T.copy(m_i, m_i_prev)
                    T.reduce_max(acc_s, m_i, dim=1, clear=False)
                    for h_i in T.Parallel(block_H):
                        m_i[h_i] = T.max(m_i[h_i], m_i_prev[h_i])
                    for h_i in T.Parallel(block_H):
                        alpha_local[h_i] = T.exp2((m_i_prev[h_i] - m_i[h_i]) * scale)
                    for h_i, bi_i in T.Parallel(block_H, block_N):
                        acc_s[h_i, bi_i] = T.exp2(acc_s[h_i, bi_i] * scale - m_i[h_i] * scale)
                    T.reduce_sum(acc_s, sumexp_i, dim=1)
                    for h_i in T.Parallel(block_H):
                        sumexp[h_i] = sumexp[h_i] * alpha_local[h_i] + sumexp_i[h_i]
                    for h_i, d_i in T.Parallel(block_H, h_dim):
                        acc_o_l[h_i, d_i] *= alpha_local[h_i]
                    T.copy(alpha_local, alpha_shared)

                    T.copy(acc_s, S_shared)
                    T.gemm(S_shared, KV_shared_1_l, acc_o_l)

                    T.barrier_arrive(bar_sScale_and_sS_ready)
                    T.barrier_arrive(bar_k_1_free[0])

                for h_i in T.Parallel(block_H):
                    sum_exp_shared[h_i] = sumexp[h_i]
                T.barrier_arrive(bar_sScale_and_sS_free)
                T.barrier_wait(bar_sScale_and_sS_free, 1)
                for h_i, d_i in T.Parallel(block_H, h_dim):
                    acc_o_l[h_i, d_i] /= sumexp[h_i]
                T.copy(acc_o_l, O_shared_l)
                T.copy(O_shared_l, Output[bid, hid * block_H : (hid + 1) * block_H, 0:h_dim])
            elif tx >= 128 and tx < 256:
                T.set_max_nreg(168, 1)
                T.fill(acc_o_r, 0)
                for i_i in T.serial(T.ceildiv(NI, 2)):
                    # Buffer 0
                    T.barrier_arrive(bar_sScale_and_sS_ready)
                    T.barrier_wait(bar_sScale_and_sS_ready, ((i_i * 2) & 1))
                    for h_i, d_i in T.Parallel(block_H, h_dim):
                        acc_o_r[h_i, d_i] *= alpha_shared[h_i]
                    T.gemm(S_shared, KV_shared_0_r, acc_o_r)
                    T.barrier_arrive(bar_k_0_free[0])
                    T.barrier_arrive(bar_sScale_and_sS_free)

                    # Buffer 1
                    T.barrier_arrive(bar_sScale_and_sS_ready)
                    T.barrier_wait(bar_sScale_and_sS_ready, ((i_i * 2 + 1) & 1))
                    for h_i, d_i in T.Parallel(block_H, h_dim):
                        acc_o_r[h_i, d_i] *= alpha_shared[h_i]
                    T.gemm(S_shared, KV_shared_1_r, acc_o_r)
                    T.barrier_arrive(bar_k_1_free[0])
                    if i_i != T.ceildiv(NI, 2) - 1:
                        T.barrier_arrive(bar_sScale_and_sS_free)

                T.barrier_arrive(bar_sScale_and_sS_free)
                T.barrier_wait(bar_sScale_and_sS_free, 1)
                for h_i, d_i in T.Parallel(block_H, h_dim):
                    acc_o_r[h_i, d_i] /= sum_exp_shared[h_i]
                T.copy(acc_o_r, O_shared_r)
                T.copy(O_shared_r, Output[bid, hid * block_H : (hid + 1) * block_H, h_dim:dim])
            elif tx >= 256:
                T.set_max_nreg(80, 0)
                for i_i in T.serial(T.ceildiv(NI, 2)):
                    T.barrier_wait(bar_k_0_free[0], ((i_i & 1) ^ 1))
                    for r in T.serial(block_N // 16):
                        for u in T.serial(h_dim // 64):
                            for v in T.vectorized(8):
                                KV_shared_0_l[r * 16 + (tx - 256) // 8, 64 * u + (tx - 256) % 8 * 8 + v] = KV[
                                    bid,
                                    (i_i * 2) * block_N + r * 16 + (tx - 256) // 8,
                                    0,
                                    64 * u + (tx - 256) % 8 * 8 + v,
                                ]
                                KV_shared_0_r[r * 16 + (tx - 256) // 8, 64 * u + (tx - 256) % 8 * 8 + v] = KV[
                                    bid,
                                    (i_i * 2) * block_N + r * 16 + (tx - 256) // 8,
                                    0,
                                    h_dim + 64 * u + (tx - 256) % 8 * 8 + v,
                                ]
                        for v in T.vectorized(8):
                            K_tail_shared_0[r * 16 + (tx - 256) // 8, (tx - 256) % 8 * 8 + v] = K_pe[
                                bid, (i_i * 2) * block_N + r * 16 + (tx - 256) // 8, 0, (tx - 256) % 8 * 8 + v
                            ]
                    T.cp_async_barrier_noinc(bar_k_0_ready[0])

                    T.barrier_wait(bar_k_1_free[0], ((i_i & 1) ^ 1))
                    for r in T.serial(block_N // 16):
                        for u in T.serial(h_dim // 64):
                            for v in T.vectorized(8):
                                KV_shared_1_l[r * 16 + (tx - 256) // 8, 64 * u + (tx - 256) % 8 * 8 + v] = KV[
                                    bid,
                                    (i_i * 2 + 1) * block_N + r * 16 + (tx - 256) // 8,
                                    0,
                                    64 * u + (tx - 256) % 8 * 8 + v,
                                ]
                                KV_shared_1_r[r * 16 + (tx - 256) // 8, 64 * u + (tx - 256) % 8 * 8 + v] = KV[
                                    bid,
                                    (i_i * 2 + 1) * block_N + r * 16 + (tx - 256) // 8,
                                    0,
                                    h_dim + 64 * u + (tx - 256) % 8 * 8 + v,
                                ]
                        for v in T.vectorized(8):
                            K_tail_shared_1[r * 16 + (tx - 256) // 8, (tx - 256) % 8 * 8 + v] = K_pe[
                                bid, (i_i * 2 + 1) * block_N + r * 16 + (tx - 256) // 8, 0, (tx - 256) % 8 * 8 + v
                            ]
                    T.cp_async_barrier_noinc(bar_k_1_ready[0])

    return main


REAL_SIZES = [("mla_ws", lambda: tilelang.compile(flash_mla_ws(1, 128, 8192, 512, 64, 64, 64, 0.04), out_idx=[4]))]

if __name__ == "__main__":
    B, H, S, D, P = 1, 64, 256, 128, 64
    q, qp = torch.randn(B, H, D, device=dev).bfloat16(), torch.randn(B, H, P, device=dev).bfloat16()
    kv, kp = torch.randn(B, S, 1, D, device=dev).bfloat16(), torch.randn(B, S, 1, P, device=dev).bfloat16()
    scale = (D + P) ** -0.5
    out = tilelang.compile(flash_mla_ws(B, H, S, D, P, 64, 64, scale), out_idx=[4])(q, qp, kv, kp)
    Q, K = torch.cat([q, qp], -1).double(), torch.cat([kv, kp], -1).double()[:, :, 0]
    w = (torch.einsum("bhd,bnd->bhn", Q, K) * scale).softmax(-1)
    ref = torch.einsum("bhn,bnd->bhd", w, kv.double()[:, :, 0])
    torch.testing.assert_close(out.double(), ref, rtol=2e-2, atol=2e-2)
    print("ok")
