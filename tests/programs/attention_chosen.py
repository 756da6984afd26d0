"""Native sparse attention (forward, decode), block-sparse, vertical-slash, seer."""

import tilelang
import tilelang.language as T
import tilelang.math
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[-1], pass_configs={"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True})
def native_sparse_attention(
    batch,
    heads,
    seq_len,
    dim,
    is_causal,
    scale=None,
    block_size=64,
    groups=1,
    selected_blocks=16,
    num_stages=2,
    threads=32,
):
    if scale is None:
        scale = (1.0 / dim) ** 0.5 * 1.44269504
    else:
        scale = scale * 1.44269504
    head_kv = heads // groups
    q_shape = [batch, seq_len, heads, dim]
    kv_shape = [batch, seq_len, head_kv, dim]
    block_indices_shape = [batch, seq_len, head_kv, selected_blocks]
    block_indices_dtype, dtype, accum_dtype = T.int32, T.float16, T.float32
    block_S = block_size
    block_T = min(128, tilelang.math.next_power_of_2(dim))
    NK, NV = tilelang.cdiv(dim, block_T), tilelang.cdiv(dim, block_T)
    assert NK == 1
    S = selected_blocks
    BS = block_S
    BK = BV = block_T
    G = groups

    @T.prim_func
    def kernel(
        Q: T.Tensor(q_shape, dtype),
        K: T.Tensor(kv_shape, dtype),
        V: T.Tensor(kv_shape, dtype),
        BlockIndices: T.Tensor(block_indices_shape, block_indices_dtype),
        Output: T.Tensor(q_shape, dtype),
    ):
        with T.Kernel(seq_len, NV, batch * head_kv, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([G, BK], dtype)
            K_shared = T.alloc_shared([BS, BK], dtype)
            V_shared = T.alloc_shared([BS, BV], dtype)
            O_shared = T.alloc_shared([G, BV], dtype)
            acc_s = T.alloc_fragment([G, BS], accum_dtype)
            acc_s_cast = T.alloc_fragment([G, BS], dtype)
            acc_o = T.alloc_fragment([G, BV], accum_dtype)
            scores_max = T.alloc_fragment([G], accum_dtype)
            scores_max_prev = T.alloc_fragment([G], accum_dtype)
            scores_scale = T.alloc_fragment([G], accum_dtype)
            scores_sum = T.alloc_fragment([G], accum_dtype)
            logsum = T.alloc_fragment([G], accum_dtype)
            i_t, i_v, i_bh = bx, by, bz
            i_b, i_h = i_bh // head_kv, i_bh % head_kv
            NS = S
            T.copy(Q[i_b, i_t, i_h * G : (i_h + 1) * G, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            for i in T.Pipelined(NS, num_stages=num_stages):
                i_s = BlockIndices[i_b, i_t, i_h, i] * BS
                if i_s <= i_t and i_s >= 0:
                    T.copy(K[i_b, i_s : i_s + BS, i_h, :], K_shared)
                    if is_causal:
                        for i, j in T.Parallel(G, BS):
                            acc_s[i, j] = T.if_then_else(i_t >= (i_s + j), 0, -T.infinity(acc_s.dtype))
                    else:
                        T.clear(acc_s)
                    T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(scores_max, scores_max_prev)
                    T.fill(scores_max, -T.infinity(accum_dtype))
                    T.reduce_max(acc_s, scores_max, dim=1, clear=True)
                    for i in T.Parallel(G):
                        scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                    for i in T.Parallel(G):
                        scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                    for i, j in T.Parallel(G, BS):
                        acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                    T.reduce_sum(acc_s, scores_sum, dim=1)
                    for i in T.Parallel(G):
                        logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                    T.copy(acc_s, acc_s_cast)
                    for i, j in T.Parallel(G, BV):
                        acc_o[i, j] *= scores_scale[i]
                    T.copy(V[i_b, i_s : i_s + BS, i_h, i_v * BV : (i_v + 1) * BV], V_shared)
                    T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(G, BV):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[i_b, i_t, i_h * G : (i_h + 1) * G, i_v * BV : (i_v + 1) * BV])

    return kernel


@tilelang.jit(out_idx=[4], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def blocksparse_flashattn(
    batch, heads, seq_q, seq_kv, dim, downsample_len, is_causal, block_M=64, block_N=64, num_stages=1, threads=128
):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype, block_mask_dtype = T.float16, T.float32, T.bool
    q_shape, kv_shape = [batch, heads, seq_q, dim], [batch, heads, seq_kv, dim]
    past_len = seq_kv - seq_q

    @T.macro
    def Softmax(acc_s, acc_s_cast, scores_max, scores_max_prev, scores_scale, scores_sum, logsum):
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

    @T.prim_func
    def main(
        Q: T.Tensor(q_shape, dtype),
        K: T.Tensor(kv_shape, dtype),
        V: T.Tensor(kv_shape, dtype),
        BlockSparseMask: T.Tensor([batch, heads, downsample_len, downsample_len], block_mask_dtype),
        Output: T.Tensor(q_shape, dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            block_mask = T.alloc_local([downsample_len], block_mask_dtype)
            T.copy(Q[bz, by, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            for vj in T.serial(downsample_len):
                block_mask[vj] = BlockSparseMask[bz, by, bx, vj]
            loop_range = (
                T.min(T.ceildiv((bx + 1) * block_M + past_len, block_N), T.ceildiv(seq_kv, block_N))
                if is_causal
                else T.ceildiv(seq_kv, block_N)
            )
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                if block_mask[k] != 0:
                    T.copy(K[bz, by, k * block_N : (k + 1) * block_N, :], K_shared)
                    if is_causal:
                        for i, j in T.Parallel(block_M, block_N):
                            q_idx = bx * block_M + i + past_len
                            k_idx = k * block_N + j
                            acc_s[i, j] = T.if_then_else(q_idx >= k_idx, 0, -T.infinity(acc_s.dtype))
                    else:
                        T.clear(acc_s)
                    T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    Softmax(acc_s, acc_s_cast, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                    for i, j in T.Parallel(block_M, dim):
                        acc_o[i, j] *= scores_scale[i]
                    T.copy(V[bz, by, k * block_N : (k + 1) * block_N, :], V_shared)
                    T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bz, by, bx * block_M : (bx + 1) * block_M, :])

    return main


@tilelang.jit(out_idx=[3])
def vs_sparse(batch, heads, seq_len, dim, vertical_size, slash_size, block_M=64, block_N=64, threads=128):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    dtype, accum_dtype, int_dtype = "float16", "float32", "int32"
    shape = [batch, heads, seq_len, dim]
    num_blocks = (seq_len + block_M - 1) // block_M
    vs_rounded = tilelang.cdiv(vertical_size, block_N) * block_N

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Output: T.Tensor(shape, dtype),
        BlockCount: T.Tensor([batch, heads, num_blocks], int_dtype),
        BlockOffset: T.Tensor([batch, heads, num_blocks, slash_size], int_dtype),
        ColumnCount: T.Tensor([batch, heads, num_blocks], int_dtype),
        ColumnIndex: T.Tensor([batch, heads, num_blocks, vertical_size], int_dtype),
    ):
        with T.Kernel(num_blocks, heads, batch, threads=threads) as (bc, by, bz):
            bx = num_blocks - 1 - bc
            Q_shared = T.alloc_shared([block_M, dim], dtype)
            K_shared = T.alloc_shared([2, block_N, dim], dtype)
            V_shared = T.alloc_shared([2, block_N, dim], dtype)
            K_shared_1 = T.alloc_shared([block_N, dim], dtype)
            V_shared_1 = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            block_count = T.alloc_local([1], int_dtype)
            block_offset = T.alloc_shared([slash_size], int_dtype, scope="shared")
            column_count = T.alloc_local([1], int_dtype)
            column_index = T.alloc_shared([vs_rounded], int_dtype, scope="shared")
            mask = T.alloc_fragment([block_N], "bool")

            block_count[0] = BlockCount[bz, by, bx]
            column_count[0] = ColumnCount[bz, by, bx]
            for vi in T.Parallel(slash_size):
                if vi < slash_size:
                    block_offset[vi] = BlockOffset[bz, by, bx, vi]
            for vi in T.serial(vs_rounded // threads + 1):
                if vi * threads + T.get_thread_binding() < vs_rounded:
                    column_index[vi * threads + T.get_thread_binding()] = T.if_then_else(
                        vi * threads + T.get_thread_binding() < column_count[0],
                        ColumnIndex[bz, by, bx, vi * threads + T.get_thread_binding()],
                        0,
                    )
            T.copy(Q[bz, by, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))

            for bi in T.serial(block_count[0]):
                k = block_offset[bi]
                T.copy(K[bz, by, k : k + block_N, :], K_shared[0, :, :])
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.if_then_else(bx * block_M + i >= k + j, 0, -T.infinity(acc_s.dtype))
                T.gemm(Q_shared, K_shared[0, :, :], acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
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
                T.copy(V[bz, by, k : k + block_N, :], V_shared[0, :, :])
                T.gemm(acc_s_cast, V_shared[0, :, :], acc_o, policy=T.GemmWarpPolicy.FullRow)

            if column_count[0] != 0:
                for bi in T.serial(T.ceildiv(column_count[0], block_N)):
                    for i, j in T.Parallel(block_N, dim):
                        K_shared_1[i, j] = T.if_then_else(
                            bi * block_N + i < column_count[0], K[bz, by, column_index[bi * block_N + i], j], 0
                        )
                        V_shared_1[i, j] = T.if_then_else(
                            bi * block_N + i < column_count[0], V[bz, by, column_index[bi * block_N + i], j], 0
                        )
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(bi * block_N + j < column_count[0], 0, -T.infinity(acc_s.dtype))
                    T.gemm(Q_shared, K_shared_1, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    T.copy(scores_max, scores_max_prev)
                    T.reduce_max(acc_s, scores_max, dim=1, clear=False)
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
                    T.gemm(acc_s_cast, V_shared_1, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bz, by, bx * block_M : (bx + 1) * block_M, :])

    return main


REAL_SIZES = [
    ("nsa", lambda: native_sparse_attention(2, 64, 4096, 128, True, groups=16, selected_blocks=16)),
    (
        "nsa s0 64t",
        lambda: native_sparse_attention(2, 64, 4096, 64, True, groups=64, selected_blocks=16, num_stages=0, threads=64),
    ),
    ("nsa 128t", lambda: native_sparse_attention(2, 64, 4096, 128, False, groups=64, num_stages=2, threads=128)),
    ("blocksparse", lambda: blocksparse_flashattn(1, 32, 4096, 4096, 128, 64, True)),
    ("blocksparse s2", lambda: blocksparse_flashattn(1, 32, 4096, 4096, 128, 64, True, 128, 128, 2, 256)),
    ("vs", lambda: vs_sparse(1, 32, 8192, 64, 1000, 200)),
    ("vs 128", lambda: vs_sparse(1, 32, 8192, 128, 1000, 200, threads=256)),
]

if __name__ == "__main__":
    # nsa
    B, S, H, D, G, sel, bs = 1, 96, 16, 32, 16, 2, 32
    q, k, v = (
        torch.randn(B, S, H, D, device=dev).half(),
        torch.randn(B, S, H // G, D, device=dev).half(),
        torch.randn(B, S, H // G, D, device=dev).half(),
    )
    ind = torch.full((B, S, H // G, sel), -1, dtype=torch.int32, device=dev)
    for t in range(S):
        n = t // bs + 1
        ind[0, t, 0, : min(n, sel)] = torch.randperm(n)[:sel].int()
    for t in range(S):
        ind[0, t, 0, 0] = 0
    out = native_sparse_attention(B, H, S, D, True, block_size=bs, groups=G, selected_blocks=sel)(q, k, v, ind)
    ok = torch.zeros(S, S, device=dev)
    for t in range(S):
        for b in ind[0, t, 0].tolist():
            if b >= 0 and b * bs <= t:
                ok[t, b * bs : min((b + 1) * bs, t + 1)] += 1
    sc = torch.einsum("thd,sd->ths", q[0].double(), k[0, :, 0].double()) * D**-0.5
    e = sc.exp() * ok[:, None]
    torch.testing.assert_close(
        out[0].double(), (e / e.sum(-1, keepdim=True)) @ v[0, :, 0].double(), rtol=1e-2, atol=1e-2
    )
    # block sparse
    B, H, S, D = 1, 2, 256, 32
    q, k, v = (torch.randn(B, H, S, D, device=dev).half() for _ in range(3))
    nb = S // 64
    mask = torch.rand(B, H, nb, nb, device=dev) > 0.5
    mask |= torch.eye(nb, dtype=torch.bool, device=dev)
    out = blocksparse_flashattn(B, H, S, S, D, nb, True)(q, k, v, mask)
    full = (
        mask.repeat_interleave(64, 2).repeat_interleave(64, 3) & torch.ones(S, S, dtype=torch.bool, device=dev).tril()
    )
    w = (
        (torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * D**-0.5)
        .masked_fill(~full, float("-inf"))
        .softmax(-1)
    )
    torch.testing.assert_close(out.double(), w @ v.double(), rtol=1e-2, atol=1e-2)
    # vertical and slash
    bm = 64
    bc = torch.ones(B, H, nb, dtype=torch.int32, device=dev)
    bo = torch.zeros(B, H, nb, 4, dtype=torch.int32, device=dev)
    cc = torch.zeros(B, H, nb, dtype=torch.int32, device=dev)
    ci = torch.zeros(B, H, nb, 100, dtype=torch.int32, device=dev)
    full = torch.zeros(H, S, S, dtype=torch.bool, device=dev)
    for h in range(H):
        for n in range(nb):
            bo[0, h, n, 0] = n * bm
            full[h, n * bm : (n + 1) * bm, n * bm : (n + 1) * bm] = torch.ones(bm, bm, dtype=torch.bool).tril()
            if n:
                cols = torch.randperm(n * bm)[: 70 if n > 1 else 50].sort().values.int()
                cc[0, h, n] = len(cols)
                ci[0, h, n, : len(cols)] = cols.to(dev)
                full[h, n * bm : (n + 1) * bm, cols.long()] = True
    out = vs_sparse(B, H, S, D, 100, 4)(q, k, v, bc, bo, cc, ci)
    w = (
        (torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * D**-0.5)
        .masked_fill(~full, float("-inf"))
        .softmax(-1)
    )
    torch.testing.assert_close(out.double(), w @ v.double(), rtol=1e-2, atol=1e-2)
    print("ok")
