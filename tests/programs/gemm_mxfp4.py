"""bfloat16 activations times weights of four-bit floats with a shared exponent for 32, decoded by a function of the library's own text."""

import tilelang
import tilelang.language as T
import torch
from tilelang.quantize import get_mxfp_intrin_group

torch.manual_seed(3)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def twisted(codes):
    """Codes [N, K] as the bytes that the decoder takes: four codes share two bytes, the first byte of which is high."""
    c = codes.view(*codes.shape[:-1], -1, 4).int()
    s, e, m = c >> 3, c >> 1 & 3, c & 1
    half = torch.zeros(c.shape[:-1], dtype=torch.int32)
    for j, shift in enumerate((0, 3, 6)):
        half |= (s[..., j] << 15 | e[..., j] << 7 | m[..., j] << 6) >> shift
    half |= s[..., 3] << 14 | e[..., 3] << 10 | m[..., 3] << 13
    return torch.stack([half >> 8, half & 255], -1).flatten(-2).to(torch.uint8)


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, scale_size=32, block_M=64, block_N=64, block_K=64, stages=2, threads=128, split=1, bias=True):
    num_elems_per_byte, storage = 2, T.uint8
    info = get_mxfp_intrin_group(
        out_dtype=T.bfloat16, source_format=T.uint, source_bit=4, storage_dtype=storage, use_twiddling=True
    )
    source, func_name = info["c_source"], info["func_name"]
    assert source is not None
    local_size = 128 // T.bfloat16.bits
    compressed = local_size // num_elems_per_byte

    @T.macro
    def decode(B_shared, B_out, Scale, Scale_shared, k):
        tx = T.get_thread_binding()
        B_local = T.alloc_local((compressed,), storage)
        B_made = T.alloc_local((local_size,), T.bfloat16)
        scale = T.alloc_local((1,), storage)
        for i in T.serial(0, block_N * block_K // threads // local_size):
            base = i * threads * compressed + tx * compressed
            row, column = base // (block_K // 2), base % (block_K // 2)
            for v in T.vectorized(0, compressed):
                B_local[v] = B_shared[row, column + v]
            scale[0] = Scale_shared[row, k * (block_K // scale_size) + column * 2 // scale_size]
            T.call_extern(func_name, T.address_of(B_local[0]), T.address_of(B_made[0]), 1, dtype=T.bfloat16)
            for v in T.Parallel(local_size):
                B_made[v] *= T.shift_left(1, scale[0])
            for v in T.vectorized(0, local_size):
                index = i * threads * local_size + tx * local_size + v
                B_out[index // block_K, index % block_K] = B_made[v]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), T.bfloat16),
        B: T.Tensor((N, K // 2), storage),
        Scale: T.Tensor((N, K // scale_size), storage),
        Bias: T.Tensor((M, N), T.bfloat16),
        C: T.Tensor((M, N), T.bfloat16),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_s = T.alloc_shared((block_M, block_K), T.bfloat16)
            B_s = T.alloc_shared((block_N, block_K // 2), storage)
            B_d = T.alloc_shared((block_N, block_K), T.bfloat16)
            S_s = T.alloc_shared((block_N, K // scale_size), storage)
            Bias_s = T.alloc_shared((block_M, block_N), T.bfloat16)
            C_l = T.alloc_fragment((block_M, block_N), T.float32)
            C_s = T.alloc_shared((block_M, block_N), T.bfloat16)
            T.import_source(source)
            T.annotate_layout(
                {A_s: tilelang.layout.make_swizzled_layout(A_s), C_s: tilelang.layout.make_swizzled_layout(C_s)}
            )
            T.use_swizzle(10)
            if threads == 512:
                T.disable_warp_group_reg_alloc()
            if bias:
                T.copy(Bias[by * block_M : (by + 1) * block_M, bx * block_N : (bx + 1) * block_N], Bias_s)
                T.copy(Bias_s, C_l)
            else:
                T.clear(C_l)
            T.copy(Scale[bx * block_N : (bx + 1) * block_N, :], S_s)
            for k in T.Pipelined(K // block_K, num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_s)
                T.copy(B[bx * block_N, k * block_K // 2], B_s)
                decode(B_s, B_d, Scale, S_s, k)
                T.gemm(A_s, B_d, C_l, transpose_B=True)
            T.copy(C_l, C_s)
            T.copy(C_s, C[by * block_M : (by + 1) * block_M, bx * block_N : (bx + 1) * block_N])

    return main


def main(M=128, N=128, K=256):
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.randint(0, 16, (N, K))
    scales = torch.randint(0, 4, (N, K // 32), dtype=torch.uint8)
    weights = table[codes & 7] * torch.where(codes > 7, -1.0, 1.0) * 2.0 ** scales.repeat_interleave(32, 1).float()
    a, bias = torch.randn(M, K).bfloat16(), torch.randn(M, N).bfloat16()
    c = matmul(M, N, K)(*(one.to(dev) for one in (a, twisted(codes), scales, bias)))
    want = a.float() @ weights.T + bias.float()
    torch.testing.assert_close(c.float().cpu(), want, rtol=2e-2, atol=0.5)
    print("right")


REAL_SIZES = [("mxfp4", lambda: matmul(256, 256, 512, block_M=256, block_N=128, block_K=128, threads=256))]

if __name__ == "__main__":
    main()
