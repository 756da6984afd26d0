"""Tensors with strides, and transposed batches."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

M, N = 12, 10


@T.prim_func
def strided(A: T.StridedTensor[(M, N), (1, M), T.float32], B: T.Tensor((M, N), T.float32)):
    with T.Kernel(M, threads=32) as i:
        for j in T.Parallel(N):
            B[i, j] = A[i, j] * 2


@T.prim_func
def batches(A: T.Tensor((3, 8, 4), "float32"), B: T.Tensor((3, 4, 8), "float32")):
    with T.Kernel(1, threads=32):
        tile, turned = T.alloc_shared((3, 8, 4), "float32"), T.alloc_shared((3, 4, 8), "float32")
        T.copy(A, tile)
        T.transpose(tile, turned)
        T.copy(turned, B)


a = torch.randn(N, M, device=device)
assert torch.equal(tilelang.compile(strided, out_idx=[1])(a.T), a.T * 2)
a = torch.randn(3, 8, 4, device=device)
assert torch.equal(tilelang.compile(batches, out_idx=[1])(a), a.transpose(1, 2))
