"""The norm of rows, whole rows at once."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def rms_norm(M, N, rows=4):
    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            tile, held = T.alloc_shared((rows, N), "float32"), T.alloc_fragment((rows, N), "float32")
            squares, power = T.alloc_fragment((rows, N), "float32"), T.alloc_fragment((rows,), "float32")
            T.copy(A[bx * rows : (bx + 1) * rows, :], tile)
            T.copy(tile, held)
            for i, j in T.Parallel(rows, N):
                squares[i, j] = held[i, j] * held[i, j]
            T.reduce_sum(squares, power, dim=1)
            for i in T.Parallel(rows):
                power[i] = T.rsqrt(power[i] / N + 1e-6)
            for i, j in T.Parallel(rows, N):
                held[i, j] *= power[i]
            T.copy(held, B[bx * rows : (bx + 1) * rows, :])

    return main


a = torch.randn(10, 96, device=device)
torch.testing.assert_close(rms_norm(10, 96)(a), a * torch.rsqrt(a.square().mean(-1, keepdim=True) + 1e-6))
