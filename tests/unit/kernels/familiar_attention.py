"""Attention as its authors write it: decoding from latent and paged caches, sequences of any length."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, begin, drawn, nan, softmax, statistics, weigh

import tilewright.language as T

bf = ml_dtypes.bfloat16


def latent_decode(num_split=2):
    """Parts of the latent cache by the first kernel, put together by the second; two products make the scores."""
    normal, _ = drawn(0)
    batch, heads, kv_head_num, seqlen_kv, dim, pe_dim, block_N, block_H = 2, 32, 1, 200, 128, 64, 64, 32
    scale = (1.0 / (dim + pe_dim)) ** 0.5 * 1.44269504
    dtype, accum_dtype = "float16", "float32"
    kv_group_num = heads // kv_head_num
    VALID_BLOCK_H = min(block_H, kv_group_num)

    @T.macro
    def flash_split(Q, Q_pe, KV, K_pe, glse, Output_partial):
        with T.Kernel(batch, heads // min(block_H, kv_group_num), num_split, threads=256) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_H, dim], dtype)
            S_shared = T.alloc_shared([block_H, block_N], dtype)
            Q_pe_shared = T.alloc_shared([block_H, pe_dim], dtype)
            KV_shared = T.alloc_shared([block_N, dim], dtype)
            K_pe_shared = T.alloc_shared([block_N, pe_dim], dtype)
            O_shared = T.alloc_shared([block_H, dim], dtype)
            acc_s = T.alloc_fragment([block_H, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_H, block_N], dtype)
            acc_o = T.alloc_fragment([block_H, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_H], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_H], accum_dtype)
            scores_scale = T.alloc_fragment([block_H], accum_dtype)
            scores_sum = T.alloc_fragment([block_H], accum_dtype)
            logsum = T.alloc_fragment([block_H], accum_dtype)
            cur_kv_head = by // (kv_group_num // min(block_H, kv_group_num))
            T.use_swizzle(10)
            T.copy(Q[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, :], Q_shared[0:VALID_BLOCK_H, :])
            T.copy(Q_pe[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, :], Q_pe_shared[0:VALID_BLOCK_H, :])
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            loop_range = T.ceildiv((seqlen_kv // num_split), block_N)
            for k in T.Pipelined(loop_range, num_stages=2):
                kv_start = (seqlen_kv // num_split) * bz + k * block_N
                kv_end = (seqlen_kv // num_split) * bz + (k + 1) * block_N
                T.copy(KV[bx, kv_start:kv_end, cur_kv_head, :], KV_shared)
                T.copy(K_pe[bx, kv_start:kv_end, cur_kv_head, :], K_pe_shared)
                T.clear(acc_s)
                T.gemm(Q_shared, KV_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.gemm(Q_pe_shared, K_pe_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.if_then_else(
                        k * block_N + j < seqlen_kv // num_split, acc_s[i, j], -T.infinity(accum_dtype)
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
                T.copy(acc_s, S_shared)
                T.copy(S_shared, acc_s_cast)
                for i in T.Parallel(block_H):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.gemm(acc_s_cast, KV_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(block_H, dim):
                acc_o[i, j] /= logsum[i]
            for i in T.Parallel(block_H):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            for i in T.Parallel(block_H):
                if i < VALID_BLOCK_H:
                    glse[bx, by * VALID_BLOCK_H + i, bz] = logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(
                O_shared[0:VALID_BLOCK_H, :], Output_partial[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, bz, :]
            )

    @T.macro
    def combine(glse, Output_partial, Output):
        with T.Kernel(heads, batch, threads=128) as (by, bz):
            po_local = T.alloc_fragment([dim], dtype)
            o_accum_local = T.alloc_fragment([dim], accum_dtype)
            lse_local_split = T.alloc_var(accum_dtype)
            lse_logsum_local = T.alloc_var(accum_dtype)
            lse_max_local = T.alloc_var(accum_dtype)
            scale_local = T.alloc_var(accum_dtype)
            T.clear(o_accum_local)
            lse_logsum_local = 0.0
            lse_max_local = -T.infinity(accum_dtype)
            for k in T.serial(num_split):
                lse_max_local = T.max(lse_max_local, glse[bz, by, k])
            for k in T.Pipelined(num_split, num_stages=1):
                lse_local_split = glse[bz, by, k]
                lse_logsum_local += T.exp2(lse_local_split - lse_max_local)
            lse_logsum_local = T.log2(lse_logsum_local) + lse_max_local
            for k in T.serial(num_split):
                for i in T.Parallel(dim):
                    po_local[i] = Output_partial[bz, by, k, i]
                lse_local_split = glse[bz, by, k]
                scale_local = T.exp2(lse_local_split - lse_logsum_local)
                for i in T.Parallel(dim):
                    o_accum_local[i] += po_local[i] * scale_local
            for i in T.Parallel(dim):
                Output[bz, by, i] = o_accum_local[i]

    @T.prim_func
    def main(
        Q: T.Tensor([batch, heads, dim], dtype),
        Q_pe: T.Tensor([batch, heads, pe_dim], dtype),
        KV: T.Tensor([batch, seqlen_kv, kv_head_num, dim], dtype),
        K_pe: T.Tensor([batch, seqlen_kv, kv_head_num, pe_dim], dtype),
        glse: T.Tensor([batch, heads, num_split], dtype),
        Output_partial: T.Tensor([batch, heads, num_split, dim], dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        flash_split(Q, Q_pe, KV, K_pe, glse, Output_partial)
        combine(glse, Output_partial, Output)

    q, qp = normal(batch, heads, dim), normal(batch, heads, pe_dim)
    kv, kp = normal(batch, seqlen_kv, 1, dim), normal(batch, seqlen_kv, 1, pe_dim)
    s = (
        np.einsum("bhd,bsd->bhs", q.astype(float), kv[:, :, 0].astype(float))
        + np.einsum("bhd,bsd->bhs", qp.astype(float), kp[:, :, 0].astype(float))
    ) / np.sqrt(dim + pe_dim)
    o = np.einsum("bhs,bsd->bhd", softmax(s), kv[:, :, 0].astype(float))
    return Familiar(
        main,
        (
            q,
            qp,
            kv,
            kp,
            nan(batch, heads, num_split, dtype=np.float16),
            nan(batch, heads, num_split, dim, dtype=np.float16),
            nan(batch, heads, dim, dtype=np.float16),
        ),
        {6: o},
        6e-3,
    )


def paged_decode():
    """Varlen decode with a block table."""
    normal, rng = drawn(1)
    batch, heads, kvh, dim, page, pages_max, num_pages = 2, 16, 2, 64, 16, 6, 16
    g = heads // kvh
    block_H, block_N = 16, 16

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, dim), "bfloat16"),
        K: T.Tensor((num_pages, page, kvh, dim), "bfloat16"),
        V: T.Tensor((num_pages, page, kvh, dim), "bfloat16"),
        block_table: T.Tensor((batch, pages_max), "int32"),
        cache_seqlens: T.Tensor((batch,), "int32"),
        O: T.Tensor((batch, heads, dim), "bfloat16"),
    ):
        with T.Kernel(batch, kvh, threads=128) as (b, h):
            Qs = T.alloc_shared((block_H, dim), "bfloat16")
            Ks = T.alloc_shared((block_N, dim), "bfloat16")
            Vs = T.alloc_shared((block_N, dim), "bfloat16")
            acc_s = T.alloc_fragment((block_H, block_N), "float32")
            p = T.alloc_fragment((block_H, block_N), "bfloat16")
            acc_o = T.alloc_fragment((block_H, dim), "float32")
            m = T.alloc_fragment((block_H,), "float32")
            m0 = T.alloc_fragment((block_H,), "float32")
            sc = T.alloc_fragment((block_H,), "float32")
            l = T.alloc_fragment((block_H,), "float32")
            ls = T.alloc_fragment((block_H,), "float32")
            for i, j in T.Parallel(block_H, dim):
                Qs[i, j] = T.if_then_else(i < g, Q[b, h * g + i, j], 0)
            T.clear(acc_o)
            T.clear(l)
            T.fill(m, -T.infinity("float32"))
            n = cache_seqlens[b]
            for k in T.Pipelined(T.ceildiv(n, block_N), num_stages=2):
                blk = block_table[b, k]
                T.copy(K[blk, :, h, :], Ks)
                T.copy(V[blk, :, h, :], Vs)
                T.clear(acc_s)
                T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.if_then_else(k * block_N + j < n, acc_s[i, j] * 0.125, -T.infinity("float32"))
                T.copy(m, m0)
                T.reduce_max(acc_s, m, dim=1, clear=False)
                for i in T.Parallel(block_H):
                    sc[i] = T.exp(m0[i] - m[i])
                for i, j in T.Parallel(block_H, block_N):
                    acc_s[i, j] = T.exp(acc_s[i, j] - m[i])
                T.reduce_sum(acc_s, ls, dim=1)
                for i in T.Parallel(block_H):
                    l[i] = l[i] * sc[i] + ls[i]
                T.copy(acc_s, p)
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] *= sc[i]
                T.gemm(p, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_H, dim):
                if i < g:
                    O[b, h * g + i, j] = acc_o[i, j] / l[i]

    bf = ml_dtypes.bfloat16
    q, k, v = (
        normal(batch, heads, dim, dtype=bf),
        normal(num_pages, page, kvh, dim, dtype=bf),
        normal(num_pages, page, kvh, dim, dtype=bf),
    )
    table = rng.permutation(num_pages)[: batch * pages_max].reshape(batch, pages_max).astype(np.int32)
    lens = np.array([90, 37], np.int32)
    out = np.zeros((batch, heads, dim))
    for b in range(batch):
        kk, vv = (x[table[b]].reshape(-1, kvh, dim)[: lens[b]].astype(float) for x in (k, v))
        for h in range(heads):
            s = kk[:, h // g] @ q[b, h].astype(float) * 0.125
            out[b, h] = softmax(s) @ vv[:, h // g]
    return Familiar(main, (q, k, v, table, lens, nan(batch, heads, dim, dtype=bf)), {5: out}, 2e-2)


def ragged_sequences():
    """cu_seqlens forward, causal."""
    normal, _ = drawn(2)
    heads, dim, BM, BN = 2, 64, 64, 64
    batch = 3
    total = T.dynamic("total")

    @T.prim_func
    def main(
        Q: T.Tensor((total, heads, dim), "float16"),
        K: T.Tensor((total, heads, dim), "float16"),
        V: T.Tensor((total, heads, dim), "float16"),
        cu: T.Tensor((batch + 1,), "int32"),
        max_len: T.int32,
        O: T.Tensor((total, heads, dim), "float16"),
    ):
        with T.Kernel(T.ceildiv(max_len, BM), heads, batch, threads=128) as (bx, by, bz):
            Qs = T.alloc_shared([BM, dim], "float16")
            Ks = T.alloc_shared([BN, dim], "float16")
            Vs = T.alloc_shared([BN, dim], "float16")
            Os = T.alloc_shared([BM, dim], "float16")
            acc_s = T.alloc_fragment([BM, BN], "float32")
            p = T.alloc_fragment([BM, BN], "float16")
            acc_o = T.alloc_fragment([BM, dim], "float32")
            rows = statistics(BM)
            start = cu[bz]
            end = cu[bz + 1]
            n = end - start
            for i, d in T.Parallel(BM, dim):
                if bx * BM + i < n:
                    Qs[i, d] = Q[start + bx * BM + i, by, d]
                else:
                    Qs[i, d] = 0
            begin(acc_o, *rows)
            loop_range = T.min(T.ceildiv(n, BN), T.ceildiv((bx + 1) * BM, BN))
            for k in T.Pipelined(loop_range, num_stages=1):
                for i, d in T.Parallel(BN, dim):
                    if k * BN + i < n:
                        Ks[i, d] = K[start + k * BN + i, by, d]
                    else:
                        Ks[i, d] = 0
                for i, j in T.Parallel(BM, BN):
                    acc_s[i, j] = T.if_then_else(
                        (bx * BM + i >= k * BN + j) and (bx * BM + i < n and k * BN + j < n), 0, -1e9
                    )
                T.gemm(Qs, Ks, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                weigh(acc_s, p, acc_o, *rows, 0.125 * 1.44269504)
                for i, d in T.Parallel(BN, dim):
                    if k * BN + i < n:
                        Vs[i, d] = V[start + k * BN + i, by, d]
                    else:
                        Vs[i, d] = 0
                T.gemm(p, Vs, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, dim):
                acc_o[i, j] /= rows[-1][i]
            T.copy(acc_o, Os)
            for i, d in T.Parallel(BM, dim):
                if bx * BM + i < n:
                    O[start + bx * BM + i, by, d] = Os[i, d]

    lens = [70, 5, 130]
    cus = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    tot = cus[-1]
    q, k, v = (normal(tot, heads, dim) for _ in range(3))
    out = np.zeros((tot, heads, dim))
    for b in range(3):
        s = slice(cus[b], cus[b + 1])
        for h in range(heads):
            sc = q[s, h].astype(float) @ k[s, h].astype(float).T / 8
            sc[np.triu_indices(lens[b], 1)] = -np.inf
            out[s, h] = softmax(sc) @ v[s, h].astype(float)
    return Familiar(main, (q, k, v, cus, 130, nan(tot, heads, dim, dtype=np.float16)), {5: out}, 5e-3)
