"""A product with weights of four bits, decoded in registers."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, group=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, K // 2), "uint8"),
        S: T.Tensor((N, K // group), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            a, packed = T.alloc_shared((32, group), "float16"), T.alloc_shared((32, group // 2), "uint8")
            b, c = T.alloc_shared((32, group), "float16"), T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(K // group, num_stages=2):
                T.copy(A[by * 32, k * group], a)
                T.copy(W[bx * 32, k * group // 2], packed)
                for i, j in T.Parallel(32, group):
                    code = (packed[i, j // 2] >> (4 * (j % 2)).astype("uint8")) & T.uint8(15)
                    b[i, j] = (code.astype("float16") - T.float16(8)) * S[bx * 32 + i, k]
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])

    return main


w = torch.randint(0, 16, (64, 96), device=device)
scale = torch.rand(64, 3, device=device).half()
a = torch.randn(32, 96, device=device).half()
packed = (w[:, ::2] | w[:, 1::2] << 4).to(torch.uint8)
weight = (w.float() - 8) * scale.float().repeat_interleave(32, 1)
torch.testing.assert_close(matmul(32, 64, 96)(a, packed, scale).float(), a.float() @ weight.T, rtol=2e-2, atol=2e-1)
