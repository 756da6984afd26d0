"""A product of a processor, by the target that TileLang calls "c"."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

from tilelang import tvm


def matmul(M, N, K):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), is_cpu=True) as (bx, by):
            total = T.alloc_local((16, 16), "float32")
            for i, j in T.grid(16, 16):
                total[i, j] = 0
            for k, i, j in T.grid(K, 16, 16):
                total[i, j] += A[by * 16 + i, k] * B[k, bx * 16 + j]
            for i, j in T.grid(16, 16):
                C[by * 16 + i, bx * 16 + j] = total[i, j]

    return main


for target in ("c", "llvm", tvm.target.Target("c"), {"kind": "c"}):
    kernel = tilelang.compile(matmul(32, 48, 20), out_idx=-1, target=target, execution_backend="cython")
    a, b = torch.randn(32, 20), torch.randn(20, 48)
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
