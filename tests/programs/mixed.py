"""Per-token casts, top-k, hadamard, MoE with shared experts, grouped products, mamba, flags, persistent."""

import math

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[1, 2])
def per_token_cast(M, N, blk_m=8, group_size=128):
    fp8_min, fp8_max = -448.0, 448.0

    @T.prim_func
    def main(
        X: T.Tensor((M, N), "float"),
        X_fp8: T.Tensor((M, N), "float8_e4m3fn"),
        X_amax: T.Tensor((M, T.ceildiv(N, group_size)), "float"),
    ):
        with T.Kernel(T.ceildiv(M, blk_m), T.ceildiv(N, group_size), threads=128) as (bx, by):
            row, row_g_id = bx, by
            y_local = T.alloc_fragment((blk_m, group_size), "float")
            y_amax_local = T.alloc_fragment((blk_m,), "float")
            y_s_local = T.alloc_fragment((blk_m,), "float")
            y_q_local = T.alloc_fragment((blk_m, group_size), "float")
            y_q_local_fp8 = T.alloc_fragment((blk_m, group_size), "float8_e4m3fn")
            T.annotate_layout(
                {y_local: T.Fragment(y_local.shape, forward_thread_fn=lambda i, j: (i // (blk_m // 4)) * 32 + j % 32)}
            )
            T.copy(X[row * blk_m : (row + 1) * blk_m, row_g_id * group_size : (row_g_id + 1) * group_size], y_local)
            T.reduce_absmax(y_local, y_amax_local, dim=1)
            for i in T.Parallel(blk_m):
                y_amax_local[i] = T.max(y_amax_local[i], 1e-4)
                y_s_local[i] = y_amax_local[i] / fp8_max
            for i, j in T.Parallel(blk_m, group_size):
                y_q_local[i, j] = T.clamp(y_local[i, j] / y_s_local[i], fp8_min, fp8_max)
            T.copy(y_q_local, y_q_local_fp8)
            for i in T.Parallel(blk_m):
                X_amax[row * blk_m + i, row_g_id] = y_s_local[i]
            T.copy(
                y_q_local_fp8,
                X_fp8[row * blk_m : (row + 1) * blk_m, row_g_id * group_size : (row_g_id + 1) * group_size],
            )

    return main


@tilelang.jit(out_idx=[1, 2])
def topk_gating(M, N, topk, blk_m, threads=128):
    dtype = "float32"

    @T.prim_func
    def topk_kernel(
        logits: T.Tensor([M, N], dtype),
        topk_gates: T.Tensor([M, topk], dtype),
        topk_indices: T.Tensor([M, topk], "int32"),
    ):
        with T.Kernel(T.ceildiv(M, blk_m), threads=threads) as bx:
            logits_frag = T.alloc_fragment([blk_m, N], dtype=dtype)
            max_val = T.alloc_fragment([blk_m], dtype=dtype)
            expand_max_idx = T.alloc_fragment([blk_m, N], "int32")
            max_idx = T.alloc_fragment([blk_m], "int32")
            T.copy(logits[bx * blk_m, 0], logits_frag)
            for k in T.serial(topk):
                T.fill(expand_max_idx, -1)
                T.reduce_max(logits_frag, max_val, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, N):
                    expand_max_idx[i, j] = T.if_then_else(max_val[i] == logits_frag[i, j], j, expand_max_idx[i, j])
                T.reduce_max(expand_max_idx, max_idx, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, N):
                    logits_frag[i, j] = T.if_then_else(max_val[i] == logits_frag[i, j], -10000.0, logits_frag[i, j])
                for i in T.Parallel(blk_m):
                    topk_gates[bx * blk_m + i, k] = max_val[i]
                    topk_indices[bx * blk_m + i, k] = max_idx[i]

    return topk_kernel


def is_pow_of_2(n):
    return isinstance(n, int) and n > 0 and (n & (n - 1)) == 0


@tilelang.jit(out_idx=[1])
def hadamard(b, n, dtype="float32"):
    assert is_pow_of_2(n)
    logN = int(math.log2(n))
    threads = [0, 1, 1, 1, 2, 4, 8, 16, 32, 32, 128, 256, 256, 256, 256, 256][logN]
    thread_elem = n // threads
    thread_round = int(math.log2(thread_elem))
    warps = 1 if threads <= 32 else threads // 32
    warp_round = int(math.log2(threads / warps))
    warp_size = threads // warps
    block_round = int(math.log2(warps))
    exchange_round = n * 4 // 32768 if n * 4 > 32768 else 1
    thread_elem_in_smem = thread_elem // exchange_round if exchange_round > 1 else thread_elem

    @T.macro
    def warp_shfl(local, buf, rnd):
        tx = T.get_thread_binding(0)
        for i in T.serial(thread_elem):
            buf[i] = T.shfl_xor(local[i], 1 << rnd)
        for i in T.serial(thread_elem):
            sign = (tx >> rnd) & 1
            local[i] = T.if_then_else(sign == 0, local[i] + buf[i], buf[i] - local[i])

    @T.prim_func
    def main(A: T.Tensor((b, n), dtype), B: T.Tensor((b, n), dtype)):
        with T.Kernel(b, threads=threads) as bx:
            local = T.alloc_local((thread_elem,), dtype)
            shared = T.alloc_shared((threads, thread_elem_in_smem), dtype)
            tx = T.get_thread_binding(0)
            for i in T.vectorized(thread_elem):
                local[i] = A[bx, tx * thread_elem + i]
            for i in T.serial(thread_round):
                chunksize = 1 << (i + 1)
                chunknum = thread_elem // chunksize
                for j in T.serial(chunknum):
                    chunkbase = j * chunksize
                    for k in T.serial(chunksize // 2):
                        local[chunkbase + k] = local[chunkbase + k] + local[chunkbase + k + chunksize // 2]
                        local[chunkbase + k + chunksize // 2] = (
                            local[chunkbase + k] - 2 * local[chunkbase + k + chunksize // 2]
                        )
            another = T.alloc_local((thread_elem,), dtype)
            for r in T.serial(warp_round):
                warp_shfl(local, another, r)
            if block_round > 0:
                warp_id = tx // warp_size
                lane_id = tx % warp_size
                src_tx = warp_id * warp_size + lane_id
                tgt_warp_id = tx % warps
                tgt_lane_id = tx // warps
                tgt_tx = tgt_warp_id * warp_size + tgt_lane_id
                for cur_round in T.serial(exchange_round):
                    exchange_base = thread_elem_in_smem * cur_round
                    for j in T.vectorized(thread_elem_in_smem):
                        shared[src_tx, j] = local[exchange_base + j]
                    for j in T.vectorized(thread_elem_in_smem):
                        local[exchange_base + j] = shared[tgt_tx, j]
                for r in T.serial(block_round):
                    warp_shfl(local, another, r)
                for cur_round in T.serial(exchange_round):
                    exchange_base = thread_elem_in_smem * cur_round
                    for j in T.vectorized(thread_elem_in_smem):
                        shared[tgt_tx, j] = local[exchange_base + j]
                    for j in T.vectorized(thread_elem_in_smem):
                        local[exchange_base + j] = shared[src_tx, j]
            for i in T.vectorized(thread_elem):
                B[bx, tx * thread_elem + i] = local[i]

    return main


@tilelang.jit
def moe_shared(
    d_hidden,
    d_expert,
    n_shared,
    dtype,
    num_tokens,
    block_token=128,
    block_dhidden=128,
    block_dexpert=128,
    threads=256,
    num_stages=1,
):
    scale = 1.44269504
    dhidden, dexpert = d_hidden, d_expert * n_shared
    accum_type = "float32"

    @T.prim_func
    def kernel_shared(
        input: T.Tensor((num_tokens, dhidden), dtype),
        shared_W_gate: T.Tensor((dexpert, dhidden), dtype),
        shared_W_up: T.Tensor((dexpert, dhidden), dtype),
        shared_W_down: T.Tensor((dhidden, dexpert), dtype),
        up_logits: T.Tensor((num_tokens, dexpert), dtype),
        output: T.Tensor((num_tokens, dhidden), dtype),
    ):
        with T.Kernel(T.ceildiv(num_tokens, block_token), T.ceildiv(dexpert, block_dexpert), threads=threads) as (
            bx,
            by,
        ):
            input_shared = T.alloc_fragment((block_token, block_dhidden), dtype=dtype)
            W_gate_shared = T.alloc_shared((block_dexpert, block_dhidden), dtype=dtype)
            W_up_shared = T.alloc_shared((block_dexpert, block_dhidden), dtype=dtype)
            gate_logits_local = T.alloc_fragment((block_token, block_dexpert), dtype=accum_type)
            up_logits_local = T.alloc_fragment((block_token, block_dexpert), dtype=accum_type)
            T.use_swizzle(10)
            T.clear(gate_logits_local)
            T.clear(up_logits_local)
            for k in T.Pipelined(T.ceildiv(dhidden, block_dhidden), num_stages=num_stages):
                T.copy(input[bx * block_token, k * block_dhidden], input_shared)
                T.copy(shared_W_gate[by * block_dexpert, k * block_dhidden], W_gate_shared)
                T.copy(shared_W_up[by * block_dexpert, k * block_dhidden], W_up_shared)
                T.gemm(input_shared, W_gate_shared, gate_logits_local, transpose_B=True)
                T.gemm(input_shared, W_up_shared, up_logits_local, transpose_B=True)
            for i, j in T.Parallel(block_token, block_dexpert):
                gate_logits_local[i, j] = gate_logits_local[i, j] * (
                    1.0 / (1.0 + T.exp2(-gate_logits_local[i, j] * scale))
                )
                up_logits_local[i, j] = up_logits_local[i, j] * gate_logits_local[i, j]
            T.copy(up_logits_local, up_logits[bx * block_token, by * block_dexpert])
        with T.Kernel(T.ceildiv(num_tokens, block_token), T.ceildiv(dhidden, block_dhidden), threads=threads) as (
            bx,
            by,
        ):
            up_logits_shared = T.alloc_fragment((block_token, block_dexpert), dtype=dtype)
            W_down_shared = T.alloc_shared((block_dhidden, block_dexpert), dtype=dtype)
            output_local = T.alloc_fragment((block_token, block_dhidden), dtype=accum_type)
            T.use_swizzle(10)
            T.clear(output_local)
            for k in T.Pipelined(T.ceildiv(dexpert, block_dexpert), num_stages=num_stages):
                T.copy(up_logits[bx * block_token, k * block_dexpert], up_logits_shared)
                T.copy(shared_W_down[by * block_dhidden, k * block_dexpert], W_down_shared)
                T.gemm(up_logits_shared, W_down_shared, output_local, transpose_B=True)
            T.copy(output_local, output[bx * block_token, by * block_dhidden])

    return kernel_shared


@tilelang.jit(out_idx=[2])
def grouped_gemm(batch_sizes_list, K, N, block_M, block_N, block_K, num_stages=2, threads=128, dtype="float16"):
    batch_sum, batch_count = sum(batch_sizes_list), len(batch_sizes_list)
    accum_dtype = "float32"
    total_m_blocks = sum((size + block_M - 1) // block_M for size in batch_sizes_list)

    @T.prim_func
    def kernel(
        A: T.Tensor([batch_sum, K], dtype),
        B: T.Tensor([batch_count, K, N], dtype),
        C: T.Tensor([batch_sum, N], dtype),
        batch_sizes: T.Tensor([batch_count], "int32"),
        batch_offsets: T.Tensor([batch_count], "int32"),
        batch_padded_offsets: T.Tensor([batch_count], "int32"),
    ):
        with T.Kernel(total_m_blocks, T.ceildiv(N, block_N), threads=threads) as (bx, by):
            A_shared = T.alloc_shared([block_M, block_K], dtype)
            B_shared = T.alloc_shared([block_K, block_N], dtype)
            C_local = T.alloc_fragment([block_M, block_N], accum_dtype)
            cur_batch_idx = T.alloc_local([1], "int32")
            cur_batch_size = T.alloc_local([1], "int32")
            cur_batch_idx[0] = 0
            m_start_padded = bx * block_M
            for i in range(batch_count):
                in_cur_batch_idx = m_start_padded >= batch_padded_offsets[i]
                cur_batch_idx[0] = T.if_then_else(in_cur_batch_idx, i, cur_batch_idx[0])
            cur_batch_size[0] = batch_sizes[cur_batch_idx[0]]
            m_start = m_start_padded - batch_padded_offsets[cur_batch_idx[0]] + batch_offsets[cur_batch_idx[0]]
            actual_rows = T.max(
                0, T.min(block_M, cur_batch_size[0] + batch_padded_offsets[cur_batch_idx[0]] - m_start_padded)
            )
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[m_start : m_start + block_M, k * block_K : (k + 1) * block_K], A_shared)
                T.copy(
                    B[cur_batch_idx[0], k * block_K : (k + 1) * block_K, by * block_N : (by + 1) * block_N], B_shared
                )
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                with T.If(i < actual_rows), T.Then():
                    C[m_start + i, by * block_N + j] = C_local[i, j]

    return kernel


@tilelang.jit(out_idx=[7])
def chunk_scan(
    batch,
    seqlen,
    chunk_size,
    ngroups,
    nheads,
    headdim,
    dstate,
    block_M=64,
    block_N=64,
    block_K=64,
    block_Dstate=128,
    num_stages=2,
    threads=128,
):
    dtype, accum_dtype = "float16", "float"
    nchunks = T.ceildiv(seqlen, chunk_size)
    p = 1.44269504

    @T.prim_func
    def main(
        cb: T.Tensor((batch, nchunks, ngroups, chunk_size, chunk_size), dtype),
        x: T.Tensor((batch, seqlen, nheads, headdim), dtype),
        dt: T.Tensor((batch, nheads, nchunks, chunk_size), dtype),
        dA_cumsum: T.Tensor((batch, nheads, nchunks, chunk_size), dtype),
        C: T.Tensor((batch, seqlen, ngroups, dstate), dtype),
        prev_states: T.Tensor((batch, nchunks, nheads, headdim, dstate), dtype),
        D: T.Tensor((nheads), dtype),
        Output: T.Tensor((batch, seqlen, nheads, headdim), dtype),
    ):
        with T.Kernel(
            nheads, T.ceildiv(chunk_size, block_M) * T.ceildiv(headdim, block_N), batch * nchunks, threads=threads
        ) as (bz, bx, by):
            acc_o = T.alloc_fragment((block_M, block_N), accum_dtype)
            cb_shared = T.alloc_shared((block_M, block_K), dtype, scope="shared.dyn")
            cb_local = T.alloc_fragment((block_M, block_K), dtype)
            dA_cs_k_shared = T.alloc_shared((block_K,), dtype, scope="shared")
            dA_cs_k_local = T.alloc_fragment((block_K,), accum_dtype)
            dA_cs_m_local = T.alloc_fragment((block_M,), accum_dtype)
            dt_shared = T.alloc_shared((block_K,), dtype, scope="shared")
            dt_local = T.alloc_fragment((block_K,), accum_dtype)
            x_shared = T.alloc_shared((block_K, block_N), dtype, scope="shared.dyn")
            dA_cs_m_shared = T.alloc_shared((block_M,), dtype, scope="shared")
            scale_m_local = T.alloc_fragment((block_M,), accum_dtype)
            C_shared = T.alloc_shared((block_M, block_Dstate), dtype)
            prev_state_shared = T.alloc_shared((block_N, block_Dstate), dtype)
            D_local = T.alloc_fragment((1,), accum_dtype)
            x_residual_shared = T.alloc_shared((block_M, block_N), dtype, scope="shared.dyn")
            x_residual_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            batch_idx = by % batch
            chunk_idx = by // batch
            m_idx = bx // T.ceildiv(headdim, block_N)
            n_idx = bx % T.ceildiv(headdim, block_N)
            T.annotate_layout(
                {
                    cb_shared: tilelang.layout.make_swizzled_layout(cb_shared),
                    x_residual_shared: tilelang.layout.make_swizzled_layout(x_residual_shared),
                }
            )
            T.no_set_max_nreg()
            T.copy(dA_cumsum[batch_idx, bz, chunk_idx, m_idx * block_M : (m_idx + 1) * block_M], dA_cs_m_shared)
            T.copy(dA_cs_m_shared, dA_cs_m_local)
            T.clear(acc_o)
            for i in T.Parallel(block_M):
                scale_m_local[i] = T.exp2(dA_cs_m_local[i] * p)
            T.copy(
                C[
                    batch_idx,
                    chunk_idx * chunk_size + m_idx * block_M : chunk_idx * chunk_size + (m_idx + 1) * block_M,
                    bz // (nheads // ngroups),
                    0:block_Dstate,
                ],
                C_shared,
            )
            T.copy(
                prev_states[batch_idx, chunk_idx, bz, n_idx * block_N : (n_idx + 1) * block_N, 0:block_Dstate],
                prev_state_shared,
            )
            T.gemm(C_shared, prev_state_shared, acc_o, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                acc_o[i, j] *= scale_m_local[i]
            loop_range = T.ceildiv((m_idx + 1) * block_M, block_K)
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    cb[
                        batch_idx,
                        chunk_idx,
                        bz // (nheads // ngroups),
                        m_idx * block_M : (m_idx + 1) * block_M,
                        k * block_K : (k + 1) * block_K,
                    ],
                    cb_shared,
                )
                T.copy(cb_shared, cb_local)
                T.copy(dA_cumsum[batch_idx, bz, chunk_idx, k * block_K : (k + 1) * block_K], dA_cs_k_shared)
                T.copy(dA_cs_k_shared, dA_cs_k_local)
                for i, j in T.Parallel(block_M, block_K):
                    cb_local[i, j] = cb_local[i, j] * T.exp2(dA_cs_m_local[i] * p - dA_cs_k_local[j] * p)
                T.copy(dt[batch_idx, bz, chunk_idx, k * block_K : (k + 1) * block_K], dt_shared)
                T.copy(dt_shared, dt_local)
                for i, j in T.Parallel(block_M, block_K):
                    cb_local[i, j] *= dt_local[j]
                for i, j in T.Parallel(block_M, block_K):
                    cb_local[i, j] = T.if_then_else(m_idx * block_M + i >= k * block_K + j, cb_local[i, j], 0)
                T.copy(
                    x[
                        batch_idx,
                        chunk_idx * chunk_size + k * block_K : chunk_idx * chunk_size + (k + 1) * block_K,
                        bz,
                        n_idx * block_N : (n_idx + 1) * block_N,
                    ],
                    x_shared,
                )
                T.gemm(cb_local, x_shared, acc_o)
            D_local[0] = D[bz]
            T.copy(
                x[
                    batch_idx,
                    chunk_idx * chunk_size + m_idx * block_M : chunk_idx * chunk_size + (m_idx + 1) * block_M,
                    bz,
                    n_idx * block_N : (n_idx + 1) * block_N,
                ],
                x_residual_shared,
            )
            T.copy(x_residual_shared, x_residual_local)
            for i, j in T.Parallel(block_M, block_N):
                acc_o[i, j] += x_residual_local[i, j] * D_local[0]
            T.copy(
                acc_o,
                Output[
                    batch_idx,
                    chunk_idx * chunk_size + m_idx * block_M : chunk_idx * chunk_size + (m_idx + 1) * block_M,
                    bz,
                    n_idx * block_N : (n_idx + 1) * block_N,
                ],
            )

    return main


@tilelang.jit(out_idx=[-1])
def persistent(
    M,
    N,
    K,
    block_M,
    block_N,
    block_K,
    threads=256,
    num_stages=3,
    sm_num=132,
    use_persistent_primitive=True,
    dtype="float16",
):
    m_blocks, n_blocks = T.ceildiv(M, block_M), T.ceildiv(N, block_N)
    waves = T.ceildiv(m_blocks * n_blocks, sm_num)
    group_size = min(8, n_blocks)

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(sm_num, threads=threads) as (block_id):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float")
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            if use_persistent_primitive:
                for bx, by in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], sm_num, block_id):
                    T.clear(C_local)
                    for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                        T.copy(A[bx * block_M, k * block_K], A_shared)
                        T.copy(B[k * block_K, by * block_N], B_shared)
                        T.gemm(A_shared, B_shared, C_local)
                    T.copy(C_local, C_shared)
                    T.copy(C_shared, C[bx * block_M, by * block_N])
            else:
                for w in T.serial(waves):
                    tile_id = sm_num * w + block_id
                    bx = (tile_id // group_size) % m_blocks
                    by = (tile_id % group_size) + (tile_id // group_size) // m_blocks * group_size
                    if bx * block_M < M and by * block_N < N:
                        T.clear(C_local)
                        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                            T.copy(A[bx * block_M, k * block_K], A_shared)
                            T.copy(B[k * block_K, by * block_N], B_shared)
                            T.gemm(A_shared, B_shared, C_local)
                        T.copy(C_local, C_shared)
                        T.copy(C_shared, C[bx * block_M, by * block_N])

    return main


@tilelang.jit(out_idx=[2])
def conv(N, C, H, W, F, K, S, D, P, block_M, block_N, block_K, num_stages, threads, dtype="float16"):
    KH, KW = K, K
    OH = (H + 2 * P - D * (K - 1) - 1) // S + 1
    OW = (W + 2 * P - D * (K - 1) - 1) // S + 1

    @T.prim_func
    def main(
        data: T.Tensor((N, H, W, C), dtype),
        kernel: T.Tensor((KH, KW, C, F), dtype),
        out: T.Tensor((N, OH, OW, F), dtype),
    ):
        with T.Kernel(T.ceildiv(F, block_N), T.ceildiv(N * OH * OW, block_M), threads=threads) as (bx, by):
            data_shared = T.alloc_shared((block_M, block_K), dtype)
            kernel_shared = T.alloc_shared((block_K, block_N), dtype)
            out_local = T.alloc_fragment((block_M, block_N), "float")
            out_shared = T.alloc_shared((block_M, block_N), dtype)
            kernel_flat = T.Tensor((KH * KW * C, F), dtype, kernel.data)
            out_flat = T.Tensor((N * OH * OW, F), dtype, out.data)
            T.clear(out_local)
            for k_iter in T.Pipelined(T.ceildiv(KH * KW * C, block_K), num_stages=num_stages):
                T.c2d_im2col(data, data_shared, by, k_iter, KH, S, D, P)
                T.copy(kernel_flat[k_iter * block_K, bx * block_N], kernel_shared)
                T.gemm(data_shared, kernel_shared, out_local)
            T.copy(out_local, out_shared)
            T.copy(out_shared, out_flat[by * block_M, bx * block_N])

    return main


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return persistent(a.shape[0], b.shape[1], a.shape[1], 64, 64, 32, 128, 2, 3)(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        ga = persistent(g.shape[0], b.shape[0], g.shape[1], 64, 64, 32, 128, 2, 3, False)(
            g.contiguous(), b.T.contiguous()
        )
        gb = persistent(a.shape[1], g.shape[1], a.shape[0], 64, 64, 32, 128, 0, 3)(a.T.contiguous(), g.contiguous())
        return ga, gb


REAL_SIZES = [
    ("cast", lambda: per_token_cast(8192, 8192)),
    ("topk", lambda: topk_gating(320, 128, 6, 64)),
    ("hadamard", lambda: hadamard(64, 32768)),
    ("hadamard 512", lambda: hadamard(64, 512)),
    ("moe", lambda: moe_shared(7168, 2048, 1, "float16", 8192)),
    ("grouped", lambda: grouped_gemm([64, 128, 200, 1, 90], 8192, 8192, 64, 128, 64)),
    ("chunk_scan", lambda: chunk_scan(8, 4096, 256, 1, 80, 64, 128)),
    ("chunk_scan 128", lambda: chunk_scan(8, 4096, 256, 1, 80, 64, 128, 128, 64, 128, 128, 2, 256)),
    ("persistent", lambda: persistent(8192, 8192, 8192, 128, 256, 64)),
    ("persistent by hand", lambda: persistent(8192, 8192, 8192, 128, 256, 64, use_persistent_primitive=False)),
    ("conv", lambda: conv(128, 128, 64, 64, 128, 3, 1, 1, 1, 64, 128, 32, 3, 256)),
]

if __name__ == "__main__":
    x = torch.randn(24, 256, device=dev)
    y, s = per_token_cast(24, 256)(x)
    want = x.double().view(24, 2, 128).abs().amax(-1).clamp(min=1e-4) / 448
    torch.testing.assert_close(s.double(), want, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(
        y.float().double().view(24, 2, 128) * want[..., None], x.double().view(24, 2, 128), rtol=0.07, atol=1e-2
    )
    lo = torch.randn(64, 64, device=dev)
    g, i = topk_gating(64, 64, 4, 32)(lo)
    v, j = lo.topk(4)
    assert torch.equal(g, v) and torch.equal(i.long(), j)
    for n in (64, 512, 2048):
        a = torch.randn(2, n, device=dev)
        h = torch.ones(1, 1, dtype=torch.float64, device=dev)
        while len(h) < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
        torch.testing.assert_close(hadamard(2, n)(a).double(), a.double() @ h, rtol=1e-3, atol=1e-3)
    inp, wg, wu, wd = (torch.randn(*z, device=dev).half() * 0.2 for z in ((64, 64), (128, 64), (128, 64), (64, 128)))
    up, out = torch.empty(64, 128, device=dev).half(), torch.empty(64, 64, device=dev).half()
    moe_shared(64, 128, 1, "float16", 64, 32, 32, 64, 128)(inp, wg, wu, wd, up, out)
    gate = inp.double() @ wg.double().T
    mid = gate * gate.sigmoid() * (inp.double() @ wu.double().T)
    torch.testing.assert_close(out.double(), mid @ wd.double().T, rtol=2e-2, atol=2e-2)
    sizes = [20, 64, 1, 70]
    A, B = torch.randn(sum(sizes), 64, device=dev).half(), torch.randn(4, 64, 96, device=dev).half()
    off = torch.tensor([0, *sizes[:-1]]).cumsum(0).int().to(dev)
    pad = torch.tensor([0, *[(z + 31) // 32 * 32 for z in sizes[:-1]]]).cumsum(0).int().to(dev)
    c = grouped_gemm(sizes, 64, 96, 32, 32, 32)(A, B, torch.tensor(sizes, dtype=torch.int32, device=dev), off, pad)
    want = torch.cat([a.double() @ b.double() for a, b in zip(A.split(sizes), B)])
    torch.testing.assert_close(c.double(), want, rtol=1e-2, atol=5e-2)
    b, S, cs, gr, nh, hd, ds = 1, 128, 64, 1, 2, 32, 32
    nc = S // cs
    cb = torch.randn(b, nc, gr, cs, cs, device=dev).half() * 0.3
    xx, dt = torch.randn(b, S, nh, hd, device=dev).half(), torch.rand(b, nh, nc, cs, device=dev).half()
    dA = -torch.rand(b, nh, nc, cs, device=dev).half().cumsum(-1) * 0.05
    Cm, ps, Dv = (
        torch.randn(b, S, gr, ds, device=dev).half() * 0.3,
        torch.randn(b, nc, nh, hd, ds, device=dev).half() * 0.3,
        torch.randn(nh, device=dev).half(),
    )
    o = chunk_scan(b, S, cs, gr, nh, hd, ds, 32, 32, 32, ds)(cb, xx, dt, dA, Cm, ps, Dv)
    xc = xx.double().view(b, nc, cs, nh, hd)
    dec = (dA.double()[..., :, None] - dA.double()[..., None, :]).exp()
    wts = (cb.double()[:, :, 0][:, None] * dec * dt.double()[..., None, :]).tril()
    ref = (
        torch.einsum("bhcij,bcjhd->bcihd", wts, xc)
        + torch.einsum("bcis,bchds,bhci->bcihd", Cm.double().view(b, nc, cs, ds), ps.double(), dA.double().exp())
        + xc * Dv.double()[:, None]
    )
    torch.testing.assert_close(o.double(), ref.reshape(b, S, nh, hd), rtol=2e-2, atol=5e-2)
    a1, b1 = (
        torch.randn(192, 64, device=dev).half().requires_grad_(),
        torch.randn(64, 128, device=dev).half().requires_grad_(),
    )
    Linear.apply(a1, b1).sum().backward()
    torch.testing.assert_close(a1.grad.double(), b1.detach().double().sum(1).expand(192, 64), rtol=1e-2, atol=5e-2)
    torch.testing.assert_close(
        b1.grad.double(), a1.detach().double().sum(0)[:, None].expand(64, 128), rtol=1e-2, atol=5e-2
    )
    im, ke = torch.randn(2, 9, 9, 16, device=dev).half(), torch.randn(3, 3, 16, 32, device=dev).half() * 0.2
    o = conv(2, 16, 9, 9, 32, 3, 2, 1, 1, 32, 32, 16, 2, 128)(im, ke)
    ref = torch.nn.functional.conv2d(
        im.double().permute(0, 3, 1, 2), ke.double().permute(3, 2, 0, 1), stride=2, padding=1
    ).permute(0, 2, 3, 1)
    torch.testing.assert_close(o.double(), ref, rtol=1e-2, atol=2e-2)
    print("ok")
