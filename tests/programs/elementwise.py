"""Elements added, in both styles and with two outputs."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(mode="lazy", out_idx=[-2, -1], target="auto", verbose=True)
def lazily(N, dtype):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype), D: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            for i in T.Parallel(128):
                C[bx * 128 + i] = A[bx * 128 + i] + B[bx * 128 + i]
                D[bx * 128 + i] = T.clamp(A[bx * 128 + i], -1.0, 1.0)

    return main


@tilelang.jit(mode="eager")
def eagerly(A, B):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C = T.empty([N], T.float32)
    D = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            C[bx * 128 + i] = A[bx * 128 + i] + B[bx * 128 + i]
            D[bx * 128 + i] = T.clamp(A[bx * 128 + i], -1.0, 1.0)
    return C, D


a, b = torch.randn(300, device=device), torch.randn(300, device=device)
for c, d in (lazily(300, T.float32)(a, b), eagerly(a, b)):
    assert torch.equal(c, a + b) and torch.equal(d, a.clamp(-1, 1))
assert lazily(300, T.float32) is lazily(300, T.float32)
