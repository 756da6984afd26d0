"""Products whose weights are codes of four bits: unsigned with scales, floats by arithmetic, and by a table of sixteen numbers."""

import tilelang
import tilelang.language as T
import torch
from tilelang import DataType
from tilelang.quantize import _tir_packed_to_unsigned_convert

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def by_convert(M, N, K, in_dtype, out_dtype, accum_dtype, num_bits=4, block_M=32, block_N=32, block_K=32, threads=64):
    num_elems_per_byte = 8 // num_bits
    storage_dtype = "uint8"
    local = 128 // DataType(in_dtype).bits

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
            assert local == 8
            T.clear(Ct_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K // num_elems_per_byte], B_shared)
                T.copy(B_shared, B_local)
                for i, j in T.Parallel(block_N, block_K):
                    B_dequantize_local[i, j] = _tir_packed_to_unsigned_convert("uint", 8)(
                        num_bits, B_local[i, j // num_elems_per_byte], j % num_elems_per_byte, dtype=in_dtype
                    )
                T.copy(B_dequantize_local, B_dequantize_prev_local)
                T.gemm(B_dequantize_prev_local, A_shared, Ct_local, transpose_B=True)
            T.copy(Ct_local, Ct_shared)
            T.copy(Ct_shared, Ct[bx * block_N : (bx + 1) * block_N, by * block_M : (by + 1) * block_M])

    return main


def fp4_to_bf16(nbit: int, val: T.Var, pos: T.Var, scale: T.Var, dtype):
    assert nbit == 4 and dtype == T.bfloat16
    mask = T.Cast("uint16", (1 << nbit) - 1)
    f4 = (T.Cast("uint16", val) >> (T.Cast("uint16", pos) * T.Cast("uint16", nbit))) & mask
    s = f4 >> T.Cast("uint16", 3)
    e = (f4 & T.Cast("uint16", 6)) >> T.Cast("uint16", 1)
    e_bf16 = T.min(e + T.Cast("uint16", 126) + scale, T.Cast("uint16", (1 << 8) - 1))
    m = f4 & T.Cast("uint16", 1)
    return T.reinterpret(
        "bfloat16",
        ((((s << T.Cast("uint16", 8)) | e_bf16) << T.Cast("uint16", 7)) | (m << T.Cast("uint16", 6)))
        & T.Cast("uint16", 0xFFFF),
    )


@tilelang.jit(out_idx=[-1])
def by_arithmetic(M, N, K, block=32, scale_size=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K // 2), "uint8"), Scale: T.Tensor((N, K // scale_size), "uint8"),
        C: T.Tensor((M, N), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
            a, b = T.alloc_shared((block, block), "bfloat16"), T.alloc_shared((block, block // 2), "uint8")
            b_local, b_wide = (
                T.alloc_fragment((block, block // 2), "uint8"),
                T.alloc_fragment((block, block), "bfloat16"),
            )
            b_shared = T.alloc_shared((block, block), "bfloat16")
            c = T.alloc_fragment((block, block), "float")
            T.clear(c)
            for k in T.Pipelined(K // block, num_stages=1):
                T.copy(A[by * block, k * block], a)
                T.copy(B[bx * block, k * block // 2], b)
                T.copy(b, b_local)
                for i, j in T.Parallel(block, block):
                    b_wide[i, j] = fp4_to_bf16(
                        4,
                        b_local[i, j // 2],
                        j % 2,
                        Scale[bx * block + i, k * block // scale_size + j // scale_size],
                        dtype=T.bfloat16,
                    )
                T.copy(b_wide, b_shared)
                T.gemm(a, b_shared, c, transpose_B=True)
            T.copy(c, C[by * block, bx * block])

    return main


@tilelang.jit(out_idx=[-1])
def by_table(M, N, K, block=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K // 2), "uint8"), Table: T.Tensor((16,), "float16"),
        Absmax: T.Tensor((N, K // block), "float16"), C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
            a, b = T.alloc_shared((block, block), "float16"), T.alloc_shared((block, block // 2), "uint8")
            table, wide = T.alloc_shared((16,), "float16"), T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float")
            T.copy(Table, table)
            T.clear(c)
            for k in T.Pipelined(K // block, num_stages=2):
                T.copy(A[by * block, k * block], a)
                T.copy(B[bx * block, k * (block // 2)], b)
                for i, j in T.Parallel(block, block):
                    code = (b[i, j // 2] >> (4 * (j % 2))) & 0xF
                    wide[i, j] = table[code] * Absmax[bx * block + i, k]
                T.gemm(a, wide, c, transpose_B=True)
            T.copy(c, C[by * block, bx * block])

    return main


M, N, K = 32, 64, 64
a, packed = torch.rand(M, K, device=device), torch.randint(0, 256, (N, K // 2), device=device, dtype=torch.uint8)
codes = torch.stack([packed & 15, packed >> 4], -1).view(N, K).long()
found = by_convert(M, N, K, "float16", "float32", "float32")(a.half(), packed)
torch.testing.assert_close(found, codes.float() @ a.half().float().T, rtol=1e-2, atol=1e-1)
scale = torch.randint(0, 3, (N, K // 32), device=device, dtype=torch.uint8)
# the kernel's own numbers: sign, two bits of exponent, one of mantissa, no zero
numbers = torch.tensor(
    [(1 + (c & 1) / 2) * 2.0 ** (((c >> 1) & 3) - 1) * (-1 if c & 8 else 1) for c in range(16)], device=device
)
weights = numbers[codes] * 2.0 ** scale.float().repeat_interleave(32, 1)
found = by_arithmetic(M, N, K)(a.bfloat16(), packed, scale)
torch.testing.assert_close(found.float(), a.bfloat16().float() @ weights.T, rtol=2e-2, atol=1)
table, most = torch.linspace(-1, 1, 16, device=device).half(), torch.rand(N, K // 32, device=device).half()
weights = table.float()[codes] * most.float().repeat_interleave(32, 1)
found = by_table(M, N, K)(a.half(), packed, table, most)
torch.testing.assert_close(found.float(), a.half().float() @ weights.T, rtol=1e-2, atol=5e-2)
