"""A product by a factory, with its result allocated by the call."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, BM=32, BN=32, BK=32, dtype=T.float16, accum=T.float32):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            a, b, c = (
                T.alloc_shared((BM, BK), dtype),
                T.alloc_shared((BK, BN), dtype),
                T.alloc_fragment((BM, BN), accum),
            )
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                T.copy(A[by * BM, k * BK], a)
                T.copy(B[k * BK, bx * BN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * BM, bx * BN])

    return main


kernel = matmul(96, 64, 80)
kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Auto).assert_allclose(
    lambda a, b: a @ b, rtol=1e-2, atol=1e-2
)
