"""Weights of four bits decoded by the author's own CUDA text: lop3 on registers, called by each thread; and fp4 by its bits."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"

decode_i4_to_f16 = """
template <typename T1, typename T2>
__device__ void decode_i4u_to_f16(T1 *_i4s, T2 *B_local_decode, const int N = 8)
{
    uint *h = reinterpret_cast<uint *>(B_local_decode);

    static constexpr uint immLut = (0xf0 & 0xcc) | 0xaa;
    static constexpr uint BOTTOM_MASK = 0x000f000f;
    static constexpr uint FP16_TOP_MAGIC_NUM = 0x64006400;
    uint const i4s = *reinterpret_cast<uint *>(_i4s);
#pragma unroll
    for (int i = 0; i < (N / 2); i++)
    {
        asm volatile("lop3.b32 %0, %1, %2, %3, %4;\\n"
                     : "=r"(h[i])
                     : "r"(i4s >> (4 * i)), "n"(BOTTOM_MASK), "n"(FP16_TOP_MAGIC_NUM), "n"(immLut));
        asm volatile("sub.f16x2 %0, %1, %2;\\n" : "=r"(h[i]) : "r"(h[i]), "r"(0x64006400));
    }
}
"""

decode_fp4 = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ __forceinline__ void decode_fp4(const unsigned char* codes, __nv_bfloat16* out, unsigned char exponent, int N) {
  for (int i = 0; i < N; i++) {
    int code = (codes[i / 2] >> (4 * (i % 2))) & 15;
    float size = (code & 6) ? ldexpf(1.0f + 0.5f * (code & 1), ((code >> 1) & 3) - 1) : 0.5f * (code & 1);
    out[i] = __float2bfloat16(ldexpf((code & 8) ? -size : size, int(exponent) - 127));
  }
}
"""


@tilelang.jit(out_idx=[2])
def lop3_matmul(M, N, K, block_M=64, block_N=64, block_K=64, num_stages=2, threads=128):
    in_dtype, out_dtype, accum_dtype, storage_dtype = T.float16, T.float16, T.float32, T.int8
    num_elems_per_byte = 2
    local_size, local_size_compressed = 8, 4

    @T.prim_func
    def main(
        A: T.Tensor((M, K), in_dtype),
        B: T.Tensor((N, K // num_elems_per_byte), storage_dtype),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads, prelude=decode_i4_to_f16) as (
            bx,
            by,
        ):
            A_shared = T.alloc_shared((block_M, block_K), in_dtype)
            B_shared = T.alloc_shared((block_N, block_K // num_elems_per_byte), storage_dtype)
            B_dequantize_shared = T.alloc_shared((block_N, block_K), in_dtype)
            B_local = T.alloc_local([local_size_compressed], storage_dtype)
            B_dequantize_local = T.alloc_local([local_size], in_dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            tx = T.get_thread_binding()
            T.clear(C_local)
            for ko in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K // num_elems_per_byte], B_shared)
                for i in T.serial(block_N * block_K // num_elems_per_byte // (threads * local_size_compressed)):
                    for v in T.vectorized(0, local_size_compressed):
                        index = i * threads * local_size_compressed + tx * local_size_compressed + v
                        vi = index // (block_K // num_elems_per_byte)
                        vj = index % (block_K // num_elems_per_byte)
                        B_local[v] = B_shared[vi, vj]
                    T.call_extern(
                        "handle", "decode_i4u_to_f16", T.address_of(B_local[0]), T.address_of(B_dequantize_local[0]), 8
                    )
                    for v in T.vectorized(0, local_size):
                        index = i * threads * local_size + tx * local_size + v
                        vi = index // block_K
                        vj = index % block_K
                        B_dequantize_shared[vi, vj] = B_dequantize_local[v]
                T.gemm(A_shared, B_dequantize_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@tilelang.jit(out_idx=[3])
def fp4_matmul(M, N, K, block_M=64, block_N=64, block_K=64, threads=128):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), T.bfloat16),
        B: T.Tensor((N, K // 2), T.uint8),
        Scale: T.Tensor((N, K // 32), T.uint8),
        C: T.Tensor((M, N), T.float32),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
            B_dequantize_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
            B_local = T.alloc_local((8,), T.uint8)
            B_out = T.alloc_local((16,), T.bfloat16)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            T.import_source(decode_fp4)
            tx = T.get_thread_binding()
            T.clear(C_local)
            for ko in T.Pipelined(K // block_K, num_stages=2):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                for i in T.serial(block_N * block_K // threads // 16):
                    at = (i * threads + tx) * 16
                    row, col = at // block_K, at % block_K
                    for v in T.vectorized(8):
                        B_local[v] = B[bx * block_N + row, (ko * block_K + col) // 2 + v]
                    T.call_extern(
                        "decode_fp4",
                        T.access_ptr(B_local, "r"),
                        T.access_ptr(B_out, "w"),
                        Scale[bx * block_N + row, (ko * block_K + col) // 32],
                        16,
                        dtype="handle",
                    )
                    for v in T.vectorized(16):
                        B_dequantize_shared[row, col + v] = B_out[v]
                T.gemm(A_shared, B_dequantize_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


REAL_SIZES = [
    ("lop3", lambda: lop3_matmul(4096, 4096, 4096, 128, 128, 64)),
    ("fp4", lambda: fp4_matmul(4096, 4096, 4096, 128, 128, 64)),
]


def check_lop3():
    M, N, K = 64, 128, 128
    A = torch.randn(M, K, device=dev).half()
    q = torch.randint(0, 16, (N, K // 8, 8), device=dev, dtype=torch.int64)
    # element 2i is nibble i, element 2i + 1 nibble i + 4 of a word
    word = sum(q[..., 2 * i] << (4 * i) for i in range(4)) | sum(q[..., 2 * i + 1] << (4 * i + 16) for i in range(4))
    B = torch.stack([(word >> (8 * b)) & 255 for b in range(4)], -1).to(torch.uint8).view(torch.int8).reshape(N, K // 2)
    C = lop3_matmul(M, N, K)(A, B.contiguous())
    torch.testing.assert_close(C.float(), A.float() @ q.reshape(N, K).float().T, rtol=1e-2, atol=0.3)


def check_fp4():
    M, N, K = 64, 64, 128
    A = torch.randn(M, K, device=dev).bfloat16()
    q = torch.randint(0, 16, (N, K), device=dev, dtype=torch.int64)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], device=dev)
    B = (q[:, 0::2] | (q[:, 1::2] << 4)).to(torch.uint8)
    S = torch.randint(124, 130, (N, K // 32), device=dev, dtype=torch.uint8)
    w = table[q] * torch.exp2(S.float() - 127).repeat_interleave(32, 1)
    C = fp4_matmul(M, N, K)(A, B, S)
    torch.testing.assert_close(C, A.float() @ w.T, rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    if torch.cuda.is_available():  # the texts are CUDA's
        check_lop3()
        check_fp4()
    print("ok")
