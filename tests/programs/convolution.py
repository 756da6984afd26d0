"""A convolution of images by gathered rows."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[2])
def convolution(N, H, W, C, F, K):
    OH, OW, BM, BK = H - K + 1, W - K + 1, 32, 32

    @T.prim_func
    def main(
        X: T.Tensor((N, H, W, C), "float16"),
        Y: T.Tensor((K, K, C, F), "float16"),
        Out: T.Tensor((N, OH, OW, F), "float16"),
    ):
        flat = T.Tensor((N * OH * OW, F), "float16", Out.data)
        kernel_flat = T.Tensor((K * K * C, F), "float16", Y.data)
        with T.Kernel(T.ceildiv(N * OH * OW, BM), threads=64) as by:
            x, y, total = (
                T.alloc_shared((BM, BK), "float16"),
                T.alloc_shared((BK, F), "float16"),
                T.alloc_fragment((BM, F), "float32"),
            )
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K * K * C, BK), num_stages=1):
                for i, j in T.Parallel(BM, BK):
                    at, m = k * BK + j, by * BM + i
                    row, column = m % (OH * OW) // OW + at // (K * C), m % OW + at // C % K
                    inside = (m < N * OH * OW) and (at < K * K * C)
                    x[i, j] = T.if_then_else(inside, X[m // (OH * OW), row, column, at % C], T.float16(0))
                T.copy(kernel_flat[k * BK, 0], y)
                T.gemm(x, y, total)
            T.copy(total, flat[by * BM, 0])

    return main


x, y = torch.randn(2, 7, 6, 8, device=device).half(), torch.randn(3, 3, 8, 32, device=device).half()
wanted = torch.nn.functional.conv2d(x.float().permute(0, 3, 1, 2), y.float().permute(3, 2, 0, 1)).permute(0, 2, 3, 1)
torch.testing.assert_close(convolution(2, 7, 6, 8, 32, 3)(x, y).float(), wanted, rtol=2e-2, atol=5e-2)
