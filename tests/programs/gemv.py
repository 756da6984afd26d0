"""A vector times a matrix, rows divided among threads."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def gemv(N, K, BN=16, BK=32):
    @T.prim_func
    def main(A: T.Tensor((K,), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((N,), "float16")):
        with T.Kernel(T.ceildiv(N, BN), threads=64) as bn:
            products, sums, total = (
                T.alloc_fragment((BN, BK), "float32"),
                T.alloc_fragment((BN,), "float32"),
                T.alloc_fragment((BN,), "float32"),
            )
            T.clear(total)
            for k in T.serial(T.ceildiv(K, BK)):
                for i, j in T.Parallel(BN, BK):
                    products[i, j] = A[k * BK + j].astype("float32") * B[bn * BN + i, k * BK + j].astype("float32")
                T.reduce_sum(products, sums, dim=1)
                for i in T.Parallel(BN):
                    total[i] += sums[i]
            T.copy(total, C[bn * BN])

    return main


a, b = torch.randn(96, device=device).half(), torch.randn(40, 96, device=device).half()
torch.testing.assert_close(gemv(40, 96)(a, b).float(), b.float() @ a.float(), rtol=1e-2, atol=2e-2)
