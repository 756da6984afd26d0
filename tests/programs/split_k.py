"""A product divided along k, its parts added atomically."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit
def split(M, N, K, parts=2):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), parts, threads=64) as (bx, by, bz):
            a, b, c = (
                T.alloc_shared((32, 32), "float16"),
                T.alloc_shared((32, 32), "float16"),
                T.alloc_fragment((32, 32), "float32"),
            )
            T.clear(c)
            for k in T.Pipelined(K // parts // 32, num_stages=0):
                T.copy(A[by * 32, bz * (K // parts) + k * 32], a)
                T.copy(B[bz * (K // parts) + k * 32, bx * 32], b)
                T.gemm(a, b, c)
            T.atomic_add(C[by * 32, bx * 32], c)

    return main


a, b = torch.randn(64, 128, device=device).half(), torch.randn(128, 32, device=device).half()
c = torch.zeros(64, 32, device=device)
split(64, 32, 128)(a, b, c)
torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-2)
