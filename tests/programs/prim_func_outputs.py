"""A prim_func that declares its tensor inside and returns what it makes."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def scaled(N, dtype):
    @T.prim_func
    def main(A, factor: T.float32):
        A: T.Tensor[[N], dtype]
        B = T.empty([N], dtype)
        with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
            for i in T.Parallel(64):
                B[bx * 64 + i] = A[bx * 64 + i] * factor
        return B

    return main


kernel = tilelang.compile(scaled(100, T.float32))
a = torch.randn(100, device=device)
assert torch.equal(kernel(a, 3.0), a * 3)
