"""Lightning indexer: fp8 logits of a few heads, weighted, over windows of keys; top-k by radix histograms."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit
def mqa_attn_return_logits(heads, index_dim, block_N=256, num_stages=3, threads=512, block_Q=None):
    if block_Q is None:
        block_Q = 128 // heads
    dtype, accum_dtype, index_dtype = "float8_e4m3fn", "float", "int32"
    seq_len, seq_len_kv = T.dynamic("seq_len"), T.dynamic("seq_len_kv")

    @T.prim_func
    def kernel(
        IndexQ: T.Tensor([seq_len * heads, index_dim], dtype),
        IndexK: T.Tensor([seq_len_kv, index_dim], dtype),
        IndexKScale: T.Tensor([seq_len_kv], accum_dtype),
        Logits: T.Tensor([seq_len, seq_len_kv], accum_dtype),
        Weights: T.Tensor([seq_len, heads], accum_dtype),
        CuSeqLenKS: T.Tensor([seq_len], index_dtype),
        CuSeqLenKE: T.Tensor([seq_len], index_dtype),
    ):
        with T.Kernel(T.ceildiv(seq_len, block_Q), threads=threads) as bx:
            index_q_shared = T.alloc_shared([block_Q * heads, index_dim], dtype)
            index_k_shared = T.alloc_shared([block_N, index_dim], dtype)
            index_k_scale_fragment = T.alloc_fragment([block_N], accum_dtype)
            s = T.alloc_fragment([block_N, block_Q * heads], accum_dtype)
            s_reshaped = T.reshape(s, (block_N, block_Q, heads))
            logits = T.alloc_fragment([block_N, block_Q], accum_dtype)
            weights = T.alloc_fragment([block_Q, heads], accum_dtype)
            seq_len_i = bx * block_Q
            cu_k_s_min = T.alloc_local([1], index_dtype)
            cu_k_e_max = T.alloc_local([1], index_dtype)
            cu_k_s_min[0] = 2147483647
            cu_k_e_max[0] = -2147483648
            for bq_i in T.serial(block_Q):
                cu_k_s_min[0] = T.min(cu_k_s_min[0], T.min(CuSeqLenKS[seq_len_i + bq_i], seq_len_kv))
            for bq_i in T.serial(block_Q):
                cu_k_e_max[0] = T.max(cu_k_e_max[0], T.min(CuSeqLenKE[seq_len_i + bq_i], seq_len_kv))
            T.copy(IndexQ[seq_len_i * heads, 0], index_q_shared)
            T.copy(Weights[seq_len_i, 0], weights)
            for nbn_i in T.Pipelined(T.ceildiv(cu_k_e_max[0] - cu_k_s_min[0], block_N), num_stages=num_stages):
                T.copy(IndexK[cu_k_s_min[0] + nbn_i * block_N, 0], index_k_shared)
                T.copy(IndexKScale[cu_k_s_min[0] + nbn_i * block_N], index_k_scale_fragment)
                T.gemm(
                    index_k_shared,
                    index_q_shared,
                    s,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullCol,
                )
                for bn_i, bq_i, h_i in T.Parallel(block_N, block_Q, heads):
                    s_reshaped[bn_i, bq_i, h_i] = (
                        T.max(s_reshaped[bn_i, bq_i, h_i], 0) * weights[bq_i, h_i]
                    ) * index_k_scale_fragment[bn_i]
                T.reduce_sum(s_reshaped, logits, dim=-1, clear=True)
                for bq_i, bn_i in T.Parallel(block_Q, block_N):
                    Logits[seq_len_i + bq_i, cu_k_s_min[0] + nbn_i * block_N + bn_i] = logits[bn_i, bq_i]

    return kernel


@tilelang.jit
def clean_logits(threads=512, block_K=4096):
    seq_len, seq_len_kv = T.dynamic("seq_len"), T.dynamic("seq_len_kv")
    dtype, indices_dtype = "float", "int32"

    @T.prim_func
    def clean_logits_kernel(
        Logits: T.Tensor([seq_len, seq_len_kv], dtype),
        CuSeqLenKS: T.Tensor([seq_len], indices_dtype),
        CuSeqLenKE: T.Tensor([seq_len], indices_dtype),
    ):
        with T.Kernel(seq_len, threads=threads) as bx:
            tx = T.get_thread_binding()
            cu_k_s = CuSeqLenKS[bx]
            cu_k_e = CuSeqLenKE[bx]
            for n_i in T.Pipelined(T.ceildiv(seq_len_kv, block_K)):
                for k_i in T.serial(block_K // threads):
                    idx = n_i * block_K + k_i * threads + tx
                    if idx < cu_k_s or idx >= cu_k_e:
                        Logits[bx, idx] = -T.infinity(dtype)

    return clean_logits_kernel


def convert_to_uint16(x):
    hval = T.Cast("float16", x)
    bits_uint = T.reinterpret("uint16", hval)
    bits_uint = T.if_then_else(x < 0, ~bits_uint & (0xFFFF), bits_uint | (0x8000))
    return bits_uint >> 8


def convert_to_uint32(x):
    bits_uint = T.reinterpret("uint32", x)
    bits_uint = T.if_then_else(
        x < 0, ~bits_uint & T.Cast("uint32", (0xFFFFFFFF)), bits_uint | T.Cast("uint32", (0x80000000))
    )
    return bits_uint


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_THREAD_STORAGE_SYNC: True})
def tl_topk_impl(topk, in_dtype="float32", out_dtype="int32"):
    batch, seq_len = T.dynamic("batch"), T.dynamic("seq_len")
    RADIX = 1 << 8
    BLOCK_SIZE = 1024
    SMEM_INPUT_SIZE = 4096

    @T.prim_func
    def tl_topk_kernel(
        input: T.Tensor[(batch, seq_len), in_dtype],
        index: T.Tensor[(batch, topk), out_dtype],
        starts: T.Tensor[(batch), out_dtype],
        ends: T.Tensor[(batch), out_dtype],
    ):
        with T.Kernel(batch, threads=BLOCK_SIZE) as (bx):
            tx = T.get_thread_binding()
            s_threshold_bin_id = T.alloc_shared([1], "int32")
            s_histogram = T.alloc_shared([RADIX + 1], "int32")
            s_num_input = T.alloc_shared([2], "int32")
            s_input_idx = T.alloc_shared([2, SMEM_INPUT_SIZE], "int32")

            l_threshold_bin_id = T.alloc_var("int32")
            l_new_topk = T.alloc_var("int32")
            l_num_input = T.alloc_var("int32")
            l_bin_id32 = T.alloc_var("int32")
            l_val = T.alloc_var("int32")
            l_start_pos = T.alloc_var("int32")
            l_start_idx = T.alloc_var("int32")
            l_end_idx = T.alloc_var("int32")
            l_out_pos = T.alloc_var("int32")

            l_new_topk = topk
            l_start_idx = starts[bx]
            l_end_idx = ends[bx]

            T.fill(s_histogram, 0)
            T.fill(s_num_input[0], 0)

            T.sync_threads()
            for s in T.serial(T.ceildiv(seq_len, BLOCK_SIZE)):
                input_idx = s * BLOCK_SIZE + tx
                if input_idx < l_end_idx and input_idx >= l_start_idx and input_idx < seq_len:
                    inval_int16 = convert_to_uint16(input[bx, input_idx])
                    T.atomic_add(s_histogram[inval_int16], 1)
            T.sync_threads()

            if tx < RADIX:
                for i in T.serial(8):
                    offset = 1 << i
                    T.sync_threads(3, RADIX)
                    if tx < RADIX - offset:
                        l_val = s_histogram[tx] + s_histogram[tx + offset]
                    T.sync_threads(3, RADIX)
                    if tx < RADIX - offset:
                        s_histogram[tx] = l_val
                T.sync_threads(3, RADIX)
                if s_histogram[tx] > l_new_topk and s_histogram[tx + 1] <= l_new_topk:
                    s_threshold_bin_id[0] = tx
            T.sync_threads()
            l_threshold_bin_id = s_threshold_bin_id[0]
            l_new_topk = l_new_topk - s_histogram[l_threshold_bin_id + 1]
            T.sync_threads()

            for s in T.serial(T.ceildiv(seq_len, BLOCK_SIZE)):
                T.sync_threads()
                input_idx = s * BLOCK_SIZE + tx
                if input_idx < l_end_idx and input_idx >= l_start_idx and input_idx < seq_len:
                    bin_id = convert_to_uint16(input[bx, input_idx])
                    l_bin_id32 = T.Cast("int32", bin_id)
                    if l_bin_id32 > l_threshold_bin_id:
                        pos = T.atomic_add(s_histogram[l_bin_id32 + 1], 1, return_prev=True)
                        index[bx, pos] = input_idx
                    elif l_bin_id32 == l_threshold_bin_id and l_new_topk > 0:
                        pos = T.atomic_add(s_num_input[0], 1, return_prev=True)
                        s_input_idx[0, pos] = input_idx

            for round in T.serial(4):
                if l_new_topk <= 0:
                    T.loop_break()
                r_idx = round % 2
                l_start_pos = topk - l_new_topk
                T.sync_threads()
                T.fill(s_histogram, 0)
                if tx == 0:
                    s_num_input[r_idx ^ 1] = 0
                T.sync_threads()
                l_num_input = s_num_input[r_idx]
                for s in T.serial(T.ceildiv(l_num_input, BLOCK_SIZE)):
                    if s * BLOCK_SIZE + tx < l_num_input:
                        l_bin_id32 = T.Cast(
                            "int32",
                            (
                                (
                                    convert_to_uint32(input[bx, s_input_idx[r_idx, s * BLOCK_SIZE + tx]])
                                    >> (24 - round * 8)
                                )
                                & 0xFF
                            ),
                        )
                        T.atomic_add(s_histogram[l_bin_id32], 1)
                T.sync_threads()
                if tx < RADIX:
                    for i in T.serial(8):
                        offset = 1 << i
                        T.sync_threads(3, RADIX)
                        if tx < RADIX - offset:
                            l_val = s_histogram[tx] + s_histogram[tx + offset]
                        T.sync_threads(3, RADIX)
                        if tx < RADIX - offset:
                            s_histogram[tx] = l_val
                    T.sync_threads(3, RADIX)
                    if s_histogram[tx] > l_new_topk and s_histogram[tx + 1] <= l_new_topk:
                        s_threshold_bin_id[0] = tx
                T.sync_threads()
                l_threshold_bin_id = s_threshold_bin_id[0]
                l_new_topk = l_new_topk - s_histogram[l_threshold_bin_id + 1]
                T.sync_threads()
                for s in T.serial(T.ceildiv(l_num_input, BLOCK_SIZE)):
                    T.sync_threads()
                    if s * BLOCK_SIZE + tx < l_num_input:
                        l_bin_id32 = T.Cast(
                            "int32",
                            (
                                (
                                    convert_to_uint32(input[bx, s_input_idx[r_idx, s * BLOCK_SIZE + tx]])
                                    >> (24 - round * 8)
                                )
                                & 0xFF
                            ),
                        )
                        if l_bin_id32 > l_threshold_bin_id:
                            pos = T.atomic_add(s_histogram[l_bin_id32 + 1], 1, return_prev=True) + l_start_pos
                            index[bx, pos] = s_input_idx[r_idx, s * BLOCK_SIZE + tx]
                        elif l_bin_id32 == l_threshold_bin_id and l_new_topk > 0:
                            if round == 3:
                                l_out_pos = T.atomic_add(s_histogram[l_bin_id32 + 1], 1, return_prev=True) + l_start_pos
                                if l_out_pos < topk:
                                    index[bx, l_out_pos] = s_input_idx[r_idx, s * BLOCK_SIZE + tx]
                            else:
                                pos = T.atomic_add(s_num_input[r_idx ^ 1], 1, return_prev=True)
                                s_input_idx[r_idx ^ 1, pos] = s_input_idx[r_idx, s * BLOCK_SIZE + tx]

    return tl_topk_kernel


REAL_SIZES = [
    ("indexer 64 heads", lambda: mqa_attn_return_logits(64, 128)),
    ("indexer 32 heads", lambda: mqa_attn_return_logits(32, 128)),
    ("indexer 64 heads 128", lambda: mqa_attn_return_logits(64, 128, block_N=128, threads=256)),
    ("clean", lambda: clean_logits()),
    ("topk", lambda: tl_topk_impl(2048)),
]

if __name__ == "__main__":
    heads, dim, S, S_kv = 32, 64, 8, 300
    q = torch.randn(S * heads, dim, device=dev).to(torch.float8_e4m3fn)
    k = torch.randn(S_kv, dim, device=dev).to(torch.float8_e4m3fn)
    ks = torch.rand(S_kv, device=dev)
    w = torch.randn(S, heads, device=dev)
    lo = (torch.arange(S, device=dev) * 3).int()
    hi = (torch.arange(S, device=dev) * 7 + 200).int()
    logits = torch.zeros(S, S_kv, device=dev)
    mqa_attn_return_logits(heads, dim)(q, k, ks, logits, w, lo, hi)
    clean_logits()(logits, lo, hi)
    s = torch.einsum("qhd,kd->qhk", q.double().view(S, heads, dim), k.double()).relu()
    ref = torch.einsum("qhk,qh->qk", s, w.double()) * ks.double()
    j = torch.arange(S_kv, device=dev)
    ref = torch.where((j >= lo[:, None]) & (j < hi[:, None]), ref, float("-inf"))
    torch.testing.assert_close(logits.double(), ref, rtol=1e-3, atol=1e-2)
    print("indexer ok")
    topk, n = 64, 1500
    x = torch.randn(2, n, device=dev)
    index = torch.zeros(2, topk, dtype=torch.int32, device=dev)
    tl_topk_impl(topk)(
        x, index, torch.zeros(2, dtype=torch.int32, device=dev), torch.full((2,), n, dtype=torch.int32, device=dev)
    )
    for r in range(2):
        assert set(index[r].tolist()) == set(x[r].topk(topk).indices.tolist())
    print("topk ok")
