"""Attention over sequences of unequal lengths that lie one behind the other, and decoding in parts under a mask."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[6])
def varlen(batch_size, UQ, UKV, heads, dim, is_causal, block_M=64, block_N=64, num_stages=1, threads=128, groups=1):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"
    head_kv = heads // groups

    @T.prim_func
    def main(
        Q_unpad: T.Tensor([UQ, heads, dim], dtype),
        K_unpad: T.Tensor([UKV, head_kv, dim], dtype),
        V_unpad: T.Tensor([UKV, head_kv, dim], dtype),
        cu_seqlens_q: T.Tensor([batch_size + 1], "int32"),
        cu_seqlens_k: T.Tensor([batch_size + 1], "int32"),
        max_seqlen_q: T.int32,
        Output_unpad: T.Tensor([UQ, heads, dim], dtype),
    ):
        with T.Kernel(T.ceildiv(max_seqlen_q, block_M), heads, batch_size, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], dtype, "shared")
            K_shared = T.alloc_shared([block_N, dim], dtype, "shared")
            V_shared = T.alloc_shared([block_N, dim], dtype, "shared")
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            batch_idx, head_idx = bz, by
            q_start_idx = cu_seqlens_q[batch_idx]
            k_start_idx = cu_seqlens_k[batch_idx]
            v_start_idx = cu_seqlens_k[batch_idx]
            q_end_idx = cu_seqlens_q[batch_idx + 1]
            k_end_idx = cu_seqlens_k[batch_idx + 1]
            q_current_seqlen = q_end_idx - q_start_idx
            k_current_seqlen = k_end_idx - k_start_idx
            T.copy(Q_unpad[q_start_idx + bx * block_M : q_start_idx + (bx + 1) * block_M, head_idx, :], Q_shared)
            for i, d in T.Parallel(block_M, dim):
                if bx * block_M + i >= q_current_seqlen:
                    Q_shared[i, d] = 0
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            loop_range = (
                T.min(T.ceildiv(k_current_seqlen, block_N), T.ceildiv((bx + 1) * block_M, block_N))
                if is_causal
                else T.ceildiv(k_current_seqlen, block_N)
            )
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    K_unpad[k_start_idx + k * block_N : k_start_idx + (k + 1) * block_N, head_idx // groups, :],
                    K_shared,
                )
                for i, d in T.Parallel(block_N, dim):
                    if k * block_N + i >= k_current_seqlen:
                        K_shared[i, d] = 0
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.if_then_else(
                        ((bx * block_M + i < k * block_N + j) if is_causal else False)
                        or (bx * block_M + i >= q_current_seqlen or k * block_N + j >= k_current_seqlen),
                        -1e9,
                        0,
                    )
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(
                    V_unpad[v_start_idx + k * block_N : v_start_idx + (k + 1) * block_N, head_idx // groups, :],
                    V_shared,
                )
                for i, d in T.Parallel(block_N, dim):
                    if k * block_N + i >= k_current_seqlen:
                        V_shared[i, d] = 0
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            for i, d in T.Parallel(block_M, dim):
                if bx * block_M + i < q_current_seqlen:
                    Output_unpad[q_start_idx + bx * block_M + i, head_idx, d] = O_shared[i, d]

    return main


@tilelang.jit(out_idx=[-1])
def gqa_decode_split(
    batch, heads, groups, seqlen_kv, dim, num_split, block_N=128, block_H=64, num_stages=2, threads=128
):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float"
    kv_group_num = heads // groups
    valid_block_H = min(block_H, kv_group_num)
    part_shape = [batch, heads, num_split, dim]

    @T.macro
    def flash_attn_split(Q, K, V, mask, glse, Output_partial):
        with T.Kernel(batch, heads // valid_block_H, num_split, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_H, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([valid_block_H, dim], dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_H, block_N], dtype)
            mask_local = T.alloc_fragment([block_N], "uint8")
            acc_o = T.alloc_fragment([block_H, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_H], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_H], accum_dtype)
            scores_scale = T.alloc_fragment([block_H], accum_dtype)
            scores_sum = T.alloc_fragment([block_H], accum_dtype)
            logsum = T.alloc_fragment([block_H], accum_dtype)
            bid, hid, sid = bx, by, bz
            cur_kv_head = hid // (kv_group_num // valid_block_H)
            T.copy(Q[bid, hid * valid_block_H : hid * valid_block_H + block_H, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            loop_range = T.ceildiv((seqlen_kv // num_split), block_N)
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(
                    K[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                        :,
                    ],
                    K_shared,
                )
                T.copy(
                    mask[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                    ],
                    mask_local,
                )
                T.clear(acc_s)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.if_then_else(
                        (mask_local[j] != 0) & (j < seqlen_kv // num_split), acc_s[i, j], -T.infinity(accum_dtype)
                    )
                T.copy(scores_max, scores_max_prev)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_H):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(block_H):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_H):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(
                    V[
                        bid,
                        (seqlen_kv // num_split) * sid + k * block_N : (seqlen_kv // num_split) * sid
                        + (k + 1) * block_N,
                        cur_kv_head,
                        :,
                    ],
                    V_shared,
                )
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_H, dim):
                acc_o[i, j] /= logsum[i]
            for i in T.Parallel(block_H):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            for i in T.Parallel(block_H):
                if i < valid_block_H:
                    glse[bid, hid * valid_block_H + i, sid] = logsum[i]
            T.copy(acc_o[:valid_block_H, :], O_shared)
            T.copy(O_shared, Output_partial[bid, hid * valid_block_H : (hid + 1) * valid_block_H, sid, :])

    @T.macro
    def combine(glse, Output_partial, Output):
        with T.Kernel(heads, batch, threads=128) as (by, bz):
            po_local = T.alloc_fragment([dim], dtype)
            o_accum_local = T.alloc_fragment([dim], accum_dtype)
            lse_local = T.alloc_fragment([num_split, 128], dtype)
            lse_local_split = T.alloc_local([1], accum_dtype)
            lse_logsum_local = T.alloc_local([1], accum_dtype)
            lse_max_local = T.alloc_fragment([128], accum_dtype)
            scale_local = T.alloc_local([1], accum_dtype)
            T.annotate_layout(
                {
                    lse_logsum_local: T.Fragment(lse_logsum_local.shape, forward_thread_fn=lambda i: i),
                    lse_max_local: T.Fragment(lse_max_local.shape, forward_thread_fn=lambda i: i),
                    lse_local: T.Fragment(lse_local.shape, forward_thread_fn=lambda i, j: j),
                }
            )
            T.clear(lse_logsum_local)
            T.clear(o_accum_local)
            for k, j in T.Parallel(num_split, 128):
                lse_local[k, j] = glse[bz, by, k]
            T.reduce_max(lse_local, lse_max_local, dim=0, clear=True)
            for k in T.Pipelined(num_split, num_stages=1):
                lse_local_split[0] = glse[bz, by, k]
                lse_logsum_local[0] += T.exp2(lse_local_split[0])
            lse_logsum_local[0] = T.log2(lse_logsum_local[0])
            for k in T.serial(num_split):
                for i in T.Parallel(dim):
                    po_local[i] = Output_partial[bz, by, k, i]
                lse_local_split[0] = glse[bz, by, k]
                scale_local[0] = T.exp2(lse_local_split[0] - lse_logsum_local[0])
                for i in T.Parallel(dim):
                    o_accum_local[i] += po_local[i] * scale_local[0]
            for i in T.Parallel(dim):
                Output[bz, by, i] = o_accum_local[i]

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        K: T.Tensor([batch, seqlen_kv, groups, dim], dtype),
        V: T.Tensor([batch, seqlen_kv, groups, dim], dtype),
        mask: T.Tensor([batch, seqlen_kv, groups], "uint8"),
        glse: T.Tensor([batch, heads, num_split], dtype),
        Output_partial: T.Tensor(part_shape, dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        flash_attn_split(Q, K, V, mask, glse, Output_partial)
        combine(glse, Output_partial, Output)

    return main


REAL_SIZES = [
    ("varlen", lambda: varlen(8, 8192, 8192, 32, 128, True, 128, 128, 2, 256, 4)),
    ("varlen noncausal", lambda: varlen(8, 8192, 8192, 32, 64, False)),
    ("decode", lambda: gqa_decode_split(1, 32, 8, 8192, 128, 16)),
    ("decode 16", lambda: gqa_decode_split(1, 32, 8, 8192, 128, 8, 64, 64, 2, 128)),
]

if __name__ == "__main__":
    # varlen
    lens = [50, 0, 77]
    cu = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32, device=dev)
    U = sum(lens)
    q, k, v = (torch.randn(U, 2, 32, device=dev).half() for _ in range(3))
    o = varlen(3, U, U, 2, 32, True)(q, k, v, cu, cu, max(lens))
    for b in range(3):
        a, e = cu[b].item(), cu[b + 1].item()
        s = torch.einsum("qhd,khd->hqk", q[a:e].double(), k[a:e].double()) * 32**-0.5
        s = s.masked_fill(~torch.ones(e - a, e - a, dtype=torch.bool, device=dev).tril(), float("-inf"))
        torch.testing.assert_close(
            o[a:e].double(), torch.einsum("hqk,khd->qhd", s.softmax(-1), v[a:e].double()), rtol=1e-2, atol=1e-2
        )
    # decode
    B, H, G, S, D, N = 1, 8, 2, 256, 64, 2
    q, k, v = (
        torch.randn(B, H, D, device=dev).half(),
        torch.randn(B, S, G, D, device=dev).half(),
        torch.randn(B, S, G, D, device=dev).half(),
    )
    mask = (torch.rand(B, S, G, device=dev) > 0.3).to(torch.uint8)
    glse, part = torch.empty(B, H, N, device=dev).half(), torch.empty(B, H, N, D, device=dev).half()
    o = gqa_decode_split(B, H, G, S, D, N, 64, 64)(q, k, v, mask, glse, part)
    kk, vv, mm = (x.repeat_interleave(H // G, 2) for x in (k.double(), v.double(), mask))
    s = (torch.einsum("bhd,bshd->bhs", q.double(), kk) * D**-0.5).masked_fill(mm.permute(0, 2, 1) == 0, float("-inf"))
    torch.testing.assert_close(o.double(), torch.einsum("bhs,bshd->bhd", s.softmax(-1), vv), rtol=2e-2, atol=2e-2)
    print("ok")
