"""Softmax of long rows in one pass."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[1])
def softmax(M, N, block=32):
    @T.prim_func
    def main(X: T.Tensor([M, N], T.float16), Y: T.Tensor([M, N], T.float16)):
        with T.Kernel(M, threads=32) as row:
            x, y = T.alloc_fragment([block], T.float32), T.alloc_fragment([block], T.float32)
            top, lse, part = (
                T.alloc_fragment([1], T.float32),
                T.alloc_fragment([1], T.float32),
                T.alloc_fragment([1], T.float32),
            )
            T.fill(lse, -T.infinity(T.float32))
            for n in T.Pipelined(0, T.ceildiv(N, block), num_stages=0):
                for j in T.Parallel(block):
                    x[j] = T.if_then_else(
                        n * block + j < N, X[row, n * block + j].astype(T.float32), -T.infinity(T.float32)
                    )
                T.reduce_max(x, top, dim=0, clear=True)
                for j in T.Parallel(block):
                    y[j] = T.exp(x[j] - top[0])
                T.reduce_sum(y, part, dim=0, clear=True)
                lse[0] = T.max(lse[0], top[0]) + T.log(
                    T.exp(lse[0] - T.max(lse[0], top[0])) + part[0] * T.exp(top[0] - T.max(lse[0], top[0]))
                )
            for n in T.serial(T.ceildiv(N, block)):
                for j in T.Parallel(block):
                    if n * block + j < N:
                        Y[row, n * block + j] = T.exp(X[row, n * block + j].astype(T.float32) - lse[0])

    return main


x = torch.randn(5, 75, device=device).half()
torch.testing.assert_close(softmax(5, 75)(x).float(), x.float().softmax(-1), rtol=1e-2, atol=1e-3)
