"""One product for several types, which torch gets by their names."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=-1, pass_configs={tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
def matmul(M, N, K, in_dtype, out_dtype, accum_dtype):
    @T.prim_func
    def main(A: T.Tensor((M, K), in_dtype), B: T.Tensor((N, K), in_dtype), C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
            a, b, c = (
                T.alloc_shared((32, 32), in_dtype),
                T.alloc_shared((32, 32), in_dtype),
                T.alloc_fragment((32, 32), accum_dtype),
            )
            T.clear(c)
            for k in T.Pipelined(K // 32, num_stages=0):
                T.copy(A[by * 32, k * 32], a)
                T.copy(B[bx * 32, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])

    return main


for in_dtype, out_dtype, accum_dtype in [
    (T.float16, T.float32, T.float32),
    (T.bfloat16, T.bfloat16, T.float32),
    (T.int8, T.int32, T.int32),
]:
    of = in_dtype.as_torch()
    make = torch.randint if "int" in in_dtype else None
    a, b = (
        torch.randint(-8, 8, (64, 64), device=device).to(of) if make else torch.randn(64, 64, device=device, dtype=of)
        for _ in range(2)
    )
    c = matmul(64, 64, 64, in_dtype, out_dtype, accum_dtype)(a, b)
    assert c.dtype is getattr(torch, out_dtype), f"{in_dtype} gives {out_dtype}"
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, rtol=2e-2, atol=1e-1)
