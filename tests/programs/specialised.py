"""A product whose producer and consumer are written by hand, for Hopper."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

from tilelang.utils.target import check_cuda_availability

M = N = K = 128


@T.prim_func
def matmul(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=256):
        a, b, c = (
            T.alloc_shared((2, M, 64), "float16"),
            T.alloc_shared((2, 64, N), "float16"),
            T.alloc_fragment((M, N), "float32"),
        )
        full, free = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
        with T.ws(1):
            for k in T.serial(K // 64):
                T.barrier_wait(free[k % 2], k // 2 % 2 ^ 1)
                T.copy(A[0, k * 64], a[k % 2, :, :])
                T.copy(B[k * 64, 0], b[k % 2, :, :])
                T.barrier_arrive(full[k % 2])
        with T.ws(0):
            T.clear(c)
            for k in T.serial(K // 64):
                T.barrier_wait(full[k % 2], k // 2 % 2)
                T.gemm(a[k % 2, :, :], b[k % 2, :, :], c)
                T.barrier_arrive(free[k % 2])
            T.copy(c, C)


a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
found = torch.zeros(M, N)
if check_cuda_availability():
    found = found.cuda()
    tilelang.compile(matmul, target="cuda")(a.cuda(), b.cuda(), found)
else:
    tilelang.compile(matmul, target="cuda -arch=sm_90").emulate(a.numpy(), b.numpy(), found.numpy())
torch.testing.assert_close(found.cpu(), a.float() @ b.float(), rtol=1e-2, atol=1e-2)
