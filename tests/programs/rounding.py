"""Sums rounded towards zero, up and down."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def sums(N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((4, N), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                C[0, i] = T.ieee_add(A[i], B[i], "rn")
                C[1, i] = T.ieee_add(A[i], B[i], "rz")
                C[2, i] = T.ieee_add(A[i], B[i], "ru")
                C[3, i] = T.ieee_add(A[i], B[i], "rd")

    return main


a, b = torch.randn(200, device=device), torch.randn(200, device=device)
near, zero, up, down = sums(200)(a, b)
exact = a.double() + b.double()
assert (
    torch.equal(near, a + b)
    and bool((up >= exact).all())
    and bool((down <= exact).all())
    and bool((zero.abs() <= exact.abs()).all())
)
assert bool(((near == up) | (near == down)).all())
