"""Dequantising products: int4 with groups and zeros, fp4 to bf16 by bit tricks, w4a8, gemv of int4, int2 by dp4a."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def _tir_u8_to_f4_to_bf16(nbit: int, val, pos, scale, dtype: str):
    assert nbit == 4
    mask = T.uint16((1 << nbit) - 1)
    f4 = (val.astype("uint16") >> (pos.astype("uint16") * T.uint16(nbit))) & mask
    s = f4 >> T.uint16(3)
    e_f4 = (f4 & T.uint16(6)) >> T.uint16(1)
    e_bf16 = T.min(e_f4 + T.uint16(126), T.uint16((1 << 8) - 1))
    m_f4 = f4 & T.uint16(1)
    return T.reinterpret(
        "bfloat16", ((((s << T.uint16(8)) | e_bf16) << T.uint16(7)) | (m_f4 << T.uint16(6))).astype("uint16")
    )


@tilelang.jit(out_idx=[-1])
def fp4_matmul(
    M,
    N,
    K,
    in_dtype,
    out_dtype,
    accum_dtype,
    num_bits=4,
    block_M=128,
    block_N=128,
    block_K=128,
    num_stages=2,
    threads=256,
    split=1,
):
    num_elems_per_byte = 8 // num_bits
    storage_dtype = "uint8"

    @T.prim_func
    def main(
        A: T.Tensor((M, K), in_dtype),
        B: T.Tensor((N, K // num_elems_per_byte), storage_dtype),
        Ct: T.Tensor((N, M), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), in_dtype)
            B_shared = T.alloc_shared((block_N, block_K // num_elems_per_byte), storage_dtype)
            B_local = T.alloc_fragment((block_N, block_K // num_elems_per_byte), storage_dtype)
            B_dequantize_local = T.alloc_fragment((block_N, block_K), in_dtype)
            B_dequantize_prev_local = T.alloc_fragment((block_N, block_K), in_dtype)
            Ct_local = T.alloc_fragment((block_N, block_M), accum_dtype)
            Ct_shared = T.alloc_shared((block_N, block_M), out_dtype)
            T.annotate_layout(
                {
                    B_shared: tilelang.layout.make_swizzled_layout(B_shared),
                    Ct_shared: tilelang.layout.make_swizzled_layout(Ct_shared),
                }
            )
            T.clear(Ct_local)
            for k in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K // num_elems_per_byte], B_shared)
                T.copy(B_shared, B_local)
                for i, j in T.Parallel(block_N, block_K):
                    B_dequantize_local[i, j] = _tir_u8_to_f4_to_bf16(
                        num_bits, B_local[i, j // num_elems_per_byte], j % num_elems_per_byte, T.uint16(0), in_dtype
                    )
                T.copy(B_dequantize_local, B_dequantize_prev_local)
                T.gemm(B_dequantize_prev_local, A_shared, Ct_local, transpose_B=True)
            T.copy(Ct_local, Ct_shared)
            T.copy(Ct_shared, Ct[bx * block_N : (bx + 1) * block_N, by * block_M : (by + 1) * block_M])

    return main


@tilelang.jit(out_idx=[-1])
def mxfp4_hopper(
    M, N, K, simple=0, scale_size=32, block_M=256, block_N=128, block_K=128, num_stages=2, threads=256, with_bias=False
):
    """A from tensors, B decoded by threads into shared memory with the scales of groups of 32."""
    in_dtype, out_dtype, accum_dtype, storage_dtype = "bfloat16", "bfloat16", "float32", "uint8"
    Block_QK = block_K // 2
    local_size = 8 * 16 // 16
    local_compress_size = local_size // 2

    @T.macro
    def dequant_simple(B_shared, B_dequantize_shared, Scale, k, bx):
        B_local = T.alloc_fragment(B_shared.shape, storage_dtype)
        B_dequantize_local = T.alloc_fragment(B_dequantize_shared.shape, in_dtype)
        T.copy(B_shared, B_local)
        for i, j in T.Parallel(block_N, block_K):
            B_dequantize_local[i, j] = _tir_u8_to_f4_to_bf16(
                4, B_local[i, j // 2], j % 2, T.uint16(0), in_dtype
            ) * T.shift_left(1, (Scale[bx * block_N + i, k * block_K // scale_size + j // scale_size]))
        T.copy(B_dequantize_local, B_dequantize_shared)

    @T.macro
    def dequant_threads(B_shared, B_dequantize_shared, Scale_shared, k):
        tx = T.get_thread_binding()
        B_local_thread = T.alloc_local((local_compress_size,), storage_dtype)
        B_dequantize_local_thread = T.alloc_local((local_size,), in_dtype)
        Scale_local_thread = T.alloc_local((1,), storage_dtype)
        Scale_local_thread_exponent = T.alloc_local((1,), in_dtype)
        for i in T.serial(0, block_N * block_K // threads // local_size):
            index_base = i * threads * local_compress_size + tx * local_compress_size
            for v in T.vectorized(0, local_compress_size):
                index = index_base + v
                B_local_thread[v] = B_shared[index // Block_QK, index % Block_QK]
            index_scale = index_base // (scale_size // 2)
            si = index_scale // (block_K // scale_size)
            sj = index_scale % (block_K // scale_size)
            Scale_local_thread[0] = Scale_shared[si, k * block_K // scale_size + sj]
            Scale_local_thread_exponent[0] = T.shift_left(1, (Scale_local_thread[0]))
            for v in T.vectorized(0, local_size):
                B_dequantize_local_thread[v] = (
                    _tir_u8_to_f4_to_bf16(4, B_local_thread[v // 2], v % 2, T.uint16(0), in_dtype)
                    * Scale_local_thread_exponent[0]
                )
            for v in T.vectorized(0, local_size):
                index = i * threads * local_size + tx * local_size + v
                B_dequantize_shared[index // block_K, index % block_K] = B_dequantize_local_thread[v]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), in_dtype),
        B: T.Tensor((N, K // 2), storage_dtype),
        Scale: T.Tensor((N, K // scale_size), storage_dtype),
        Bias: T.Tensor((M, N), out_dtype),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), in_dtype)
            B_shared = T.alloc_shared((block_N, Block_QK), storage_dtype)
            B_dequantize_shared = T.alloc_shared((block_N, block_K), in_dtype)
            Scale_shared = T.alloc_shared((block_N, K // scale_size), storage_dtype)
            Bias_shared = T.alloc_shared((block_M, block_N), out_dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_shared = T.alloc_shared((block_M, block_N), out_dtype)
            T.annotate_layout(
                {
                    A_shared: tilelang.layout.make_swizzled_layout(A_shared),
                    B_shared: tilelang.layout.make_swizzled_layout(B_shared),
                    C_shared: tilelang.layout.make_swizzled_layout(C_shared),
                }
            )
            if with_bias:
                T.copy(Bias[by * block_M : (by + 1) * block_M, bx * block_N : (bx + 1) * block_N], Bias_shared)
                T.copy(Bias_shared, C_local)
            else:
                T.clear(C_local)
            if threads == 512:
                T.disable_warp_group_reg_alloc()
            T.copy(Scale[bx * block_N : (bx + 1) * block_N, :], Scale_shared)
            for k in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K // 2], B_shared)
                if simple:
                    dequant_simple(B_shared, B_dequantize_shared, Scale, k, bx)
                else:
                    dequant_threads(B_shared, B_dequantize_shared, Scale_shared, k)
                T.gemm(A_shared, B_dequantize_shared, C_local, transpose_B=True)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M : (by + 1) * block_M, bx * block_N : (bx + 1) * block_N])

    return main


@tilelang.jit(out_idx=[-1])
def w4a8(M, N, K, block_M=64, block_N=64, block_K=64, num_stages=2, threads=128):
    def int4_to_int8(val, pos):
        i4 = (val >> (pos.astype("uint8") * T.uint8(4))) & T.uint8(15)
        i8_shifted = T.reinterpret("int8", i4 << T.uint8(4))
        return i8_shifted >> T.int8(4)

    @T.prim_func
    def main(A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K // 2), "uint8"), Ct: T.Tensor((N, M), "int32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "int8")
            B_shared = T.alloc_shared((block_N, block_K // 2), "uint8")
            B_local = T.alloc_fragment((block_N, block_K // 2), "uint8")
            B_dq = T.alloc_fragment((block_N, block_K), "int8")
            B_prev = T.alloc_fragment((block_N, block_K), "int8")
            Ct_local = T.alloc_fragment((block_N, block_M), "int32")
            Ct_shared = T.alloc_shared((block_N, block_M), "int32")
            T.clear(Ct_local)
            for k in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K // 2], B_shared)
                T.copy(B_shared, B_local)
                for i, j in T.Parallel(block_N, block_K):
                    B_dq[i, j] = int4_to_int8(B_local[i, j // 2], j % 2)
                T.copy(B_dq, B_prev)
                T.gemm(B_prev, A_shared, Ct_local, transpose_B=True)
            T.copy(Ct_local, Ct_shared)
            T.copy(Ct_shared, Ct[bx * block_N : (bx + 1) * block_N, by * block_M : (by + 1) * block_M])

    return main


@tilelang.jit(out_idx=[-1])
def dequant_gemv(M, N, K, n_partition=4, reduce_thread=32, group_size=128):
    """fp16 x int4: a thread unpacks 8 codes of a word; sums meet by tvm_thread_allreduce."""
    num_bits, storage_nbit = 4, 8
    micro_size_k = 8
    micro_size_k_compressed = micro_size_k // 2
    block_K = reduce_thread * micro_size_k

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K // 2), "int8"),
        S: T.Tensor((N, K // group_size), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, n_partition), M, threads=(reduce_thread, n_partition)) as (bx, by):
            A_local = T.alloc_local((micro_size_k,), "float16")
            B_quant_local = T.alloc_local([micro_size_k_compressed], "int8")
            B_dequantize_local = T.alloc_local([micro_size_k], "float16")
            accum_res = T.alloc_local((1,), "float32")
            reduced_accum_res = T.alloc_local((1,), "float32")
            kr = T.thread_binding(0, reduce_thread, thread="threadIdx.x")
            ni = T.thread_binding(0, n_partition, thread="threadIdx.y")
            T.clear(accum_res)
            for ko in T.serial(T.ceildiv(K, block_K)):
                for v in T.vectorized(micro_size_k):
                    A_local[v] = A[by, ko * block_K + kr * micro_size_k + v]
                for v in T.vectorized(micro_size_k_compressed):
                    B_quant_local[v] = B[
                        bx * n_partition + ni,
                        ko * (reduce_thread * micro_size_k_compressed) + kr * micro_size_k_compressed + v,
                    ]
                for ki in T.serial(micro_size_k):
                    B_dequantize_local[ki] = (
                        T.Cast("float16", (B_quant_local[ki // 2] >> ((ki % 2) * 4)) & 15) - T.float16(8)
                    ) * S[bx * n_partition + ni, (ko * block_K + kr * micro_size_k + ki) // group_size]
                for ki in T.serial(micro_size_k):
                    accum_res[0] += A_local[ki] * B_dequantize_local[ki]
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast("float32", 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(T.uint32(1), accum_res[0], True, reduced_accum_res[0], kr, dtype="handle")
                )
            if kr == 0:
                C[by, bx * n_partition + ni] = reduced_accum_res[0]

    return main


@tilelang.jit(out_idx=[-1])
def int2_gemv(N, K, n_partition=4, reduce_thread=32):
    """int8 x int2: codes out of words by shifts and masks, sums by dp4a."""

    @T.prim_func
    def main(A: T.Tensor((1, K), "int8"), B: T.Tensor((N, K // 4), "int8"), C: T.Tensor((1, N), "int32")):
        with T.Kernel(T.ceildiv(N, n_partition), threads=(reduce_thread, n_partition)) as bx:
            A_local = T.alloc_local((16,), "int8")
            B_quant_local = T.alloc_local((4,), "int8")
            B_dequant_local = T.alloc_local((16,), "int8")
            accum_res = T.alloc_local((1,), "int32")
            reduced = T.alloc_local((1,), "int32")
            kr = T.thread_binding(0, reduce_thread, thread="threadIdx.x")
            ni = T.thread_binding(0, n_partition, thread="threadIdx.y")
            T.clear(accum_res)
            for ko in T.serial(T.ceildiv(K, reduce_thread * 16)):
                for v in T.vectorized(16):
                    A_local[v] = A[0, ko * reduce_thread * 16 + kr * 16 + v]
                for v in T.vectorized(4):
                    B_quant_local[v] = B[bx * n_partition + ni, ko * reduce_thread * 4 + kr * 4 + v]
                for ki in T.serial(16):
                    B_dequant_local[ki] = ((B_quant_local[ki // 4] >> ((ki % 4) * 2)) & T.int8(3)) - T.int8(2)
                for ki in T.serial(4):
                    T.dp4a(A_local[ki * 4], B_dequant_local[ki * 4], accum_res[0])
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.int32(0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), accum_res[0], True, reduced[0], kr, dtype="handle"))
            if kr == 0:
                C[0, bx * n_partition + ni] = reduced[0]

    return main


REAL_SIZES = [
    ("fp4", lambda: fp4_matmul(4096, 4096, 4096, "bfloat16", "bfloat16", "float32")),
    (
        "fp4 64",
        lambda: fp4_matmul(
            4096,
            4096,
            4096,
            "bfloat16",
            "bfloat16",
            "float32",
            block_M=64,
            block_N=64,
            block_K=64,
            threads=128,
            num_stages=3,
        ),
    ),
    ("mxfp4 threads", lambda: mxfp4_hopper(4096, 4096, 4096)),
    ("mxfp4 simple", lambda: mxfp4_hopper(4096, 4096, 4096, 1)),
    ("mxfp4 bias 512", lambda: mxfp4_hopper(4096, 4096, 4096, 0, threads=512, with_bias=True, num_stages=1)),
    ("w4a8", lambda: w4a8(4096, 4096, 4096)),
    ("w4a8 128", lambda: w4a8(4096, 4096, 4096, 128, 128, 128, 2, 256)),
    ("gemv", lambda: dequant_gemv(1, 4096, 4096)),
    ("int2", lambda: int2_gemv(4096, 4096)),
]


def fp4_values(b):
    c = torch.stack([b & 15, b >> 4], -1).flatten(-2).long().cpu()
    # the program's decode: (s << 8 | e + 126) << 7 | m << 6
    s, e, m = c >> 3, (c & 6) >> 1, c & 1
    bits = (((s << 8) | (e + 126)) << 7) | (m << 6)
    return (bits - (bits >= 2**15).long() * 2**16).to(torch.int16).view(torch.bfloat16).double().to(b.device)


if __name__ == "__main__":
    M, N, K = 64, 64, 256
    a = torch.randn(M, K, device=dev).bfloat16()
    b = torch.randint(0, 256, (N, K // 2), device=dev, dtype=torch.uint8)
    w = fp4_values(b)
    c = fp4_matmul(M, N, K, "bfloat16", "bfloat16", "float32", block_M=32, block_N=64, block_K=64, threads=128)(a, b)
    torch.testing.assert_close(c.double(), (a.double() @ w.T).T, rtol=2e-2, atol=0.5)
    s = torch.randint(0, 4, (N, K // 32), device=dev, dtype=torch.uint8)
    ws = w * 2.0 ** s.double().repeat_interleave(32, 1)
    bias = torch.randn(M, N, device=dev).bfloat16()
    for simple in (0, 1):
        c = mxfp4_hopper(M, N, K, simple, block_M=64, block_N=64, block_K=64, threads=128, with_bias=True)(
            a, b, s, bias
        )
        torch.testing.assert_close(c.double(), a.double() @ ws.T + bias.double(), rtol=2e-2, atol=2)
    a8 = torch.randint(-8, 8, (M, K), device=dev, dtype=torch.int8)
    c = w4a8(M, N, K)(a8, b)
    codes = torch.stack([b & 15, b >> 4], -1).flatten(-2).int()
    codes = codes - 16 * (codes > 7).int()
    assert torch.equal(c.long(), (a8.long().cpu() @ codes.long().cpu().T).T.to(dev))
    ah = torch.randn(1, K, device=dev).half()
    sc = torch.rand(N, K // 128, device=dev).half()
    c = dequant_gemv(1, N, K)(ah, b.view(torch.int8), sc)
    wq = (torch.stack([b & 15, b >> 4], -1).flatten(-2).double() - 8) * sc.double().repeat_interleave(128, 1)
    torch.testing.assert_close(c.double(), ah.double() @ wq.T, rtol=2e-2, atol=0.1)
    b2 = torch.randint(0, 256, (N, 1024 // 4), device=dev, dtype=torch.uint8)
    a2 = torch.randint(-8, 8, (1, 1024), device=dev, dtype=torch.int8)
    c = int2_gemv(N, 1024)(a2, b2.view(torch.int8))
    w2 = torch.stack([(b2 >> (2 * i)) & 3 for i in range(4)], -1).flatten(-2).long() - 2
    assert torch.equal(c.long().cpu(), a2.long().cpu() @ w2.cpu().T)
    print("ok")
