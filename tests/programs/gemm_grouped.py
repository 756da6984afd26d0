"""Products of groups of rows with a matrix each."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit
def grouped(A, B, sizes, starts, groups=3, most=32):
    M, K, N = T.const("M, K, N")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[groups, K, N], T.float16]
    sizes: T.Tensor[[groups], T.int32]
    starts: T.Tensor[[groups], T.int32]
    C = T.empty([M, N], T.float32)
    with T.Kernel(groups, threads=128) as g:
        a, b, c = (
            T.alloc_shared((most, K), T.float16),
            T.alloc_shared((K, N), T.float16),
            T.alloc_fragment((most, N), T.float32),
        )
        for i, k in T.Parallel(most, K):
            a[i, k] = T.if_then_else(i < sizes[g], A[T.min(starts[g] + i, M - 1), k], T.float16(0))
        T.copy(B[g, 0, 0], b)
        T.clear(c)
        T.gemm(a, b, c)
        for i, j in T.Parallel(most, N):
            if i < sizes[g]:
                C[starts[g] + i, j] = c[i, j]
    return C


sizes = torch.tensor([7, 20, 13], dtype=torch.int32, device=device)
starts = (sizes.cumsum(0) - sizes).int()
a, b = torch.randn(40, 32, device=device).half(), torch.randn(3, 32, 48, device=device).half()
wanted = torch.cat([x.float() @ w.float() for x, w in zip(a.split(sizes.tolist()), b)])
torch.testing.assert_close(grouped(a, b, sizes, starts), wanted, rtol=1e-2, atol=1e-2)
