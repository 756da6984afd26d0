"""A product whose sizes are known when it runs."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def matmul(dtype="float16"):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    assert isinstance(m, T.Var)

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64) as (bx, by):
            a, b, c = (
                T.alloc_shared((32, 32), dtype),
                T.alloc_shared((32, 32), dtype),
                T.alloc_fragment((32, 32), "float32"),
            )
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * 32, step * 32], a)
                T.copy(B[step * 32, bx * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 32, bx * 32])

    return main


kernel = matmul()
for m, n, k in [(33, 40, 64), (5, 100, 96)]:
    a, b = torch.randn(m, k, device=device).half(), torch.randn(k, n, device=device).half()
    torch.testing.assert_close(kernel(a, b), a.float() @ b.float(), rtol=1e-2, atol=1e-2)
