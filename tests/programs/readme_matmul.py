"""TileLang's first program: a product with relu, direct style, compiled by its sizes' names, profiled."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit
def matmul(
    A,
    B,
    block_M: int = 64,
    block_N: int = 64,
    block_K: int = 32,
    dtype: T.dtype = T.float16,
    accum_dtype: T.dtype = T.float32,
):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty([M, N], dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
        T.use_swizzle(panel_size=10, enable=True)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = T.max(C_local[i, j], 0)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


kernel = matmul.compile(M=128, N=192, K=160, block_K=64)
a = torch.randn(128, 160, device=device, dtype=T.float16.as_torch())
b = torch.randn(160, 192, device=device, dtype=getattr(torch, T.float16))
torch.testing.assert_close(kernel(a, b), torch.relu(a.float() @ b.float()).half(), rtol=1e-2, atol=1e-2)
torch.testing.assert_close(matmul(a, b), torch.relu(a.float() @ b.float()).half(), rtol=1e-2, atol=1e-2)
assert "matmul" in kernel.get_kernel_source()
print(kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Normal).do_bench(warmup=1, rep=2))
