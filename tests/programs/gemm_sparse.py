"""A 2:4 sparse product with metadata of 16 bits."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

from tilelang.utils.sparse import compress, randn_semi_sparse


def matmul(M, N, K, meta=T.int16, BK=64):
    e = 16

    @T.prim_func
    def main(
        A: T.Tensor((M, K // 2), "float16"),
        E: T.Tensor((M, K // e), meta),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((M, BK // 2), "float16"), T.alloc_shared((BK, N), "float16")
            places, c = T.alloc_shared((M, BK // e), meta), T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(K // BK, num_stages=2):
                T.copy(A[0, k * BK // 2], a)
                T.copy(E[0, k * BK // e], places)
                T.copy(B[k * BK, 0], b)
                T.gemm_sp(a, places, b, c, False, False, False, policy=T.GemmWarpPolicy.Square)
            T.copy(c, C)

    return main


dense = randn_semi_sparse(64, 128, torch.float16, device)
kept, metadata = compress(dense)
b = torch.randn(128, 32, device=device).half()
kernel = tilelang.compile(matmul(64, 32, 128), out_idx=[-1])
torch.testing.assert_close(kernel(kept, metadata, b), dense.float() @ b.float(), rtol=1e-2, atol=1e-2)

for turned in (compress(dense.t().contiguous(), transposed=True), compress(dense.t().contiguous(), True)):
    assert torch.equal(turned[0], kept.t()) and torch.equal(turned[1], metadata)
assert compress(dense, torch.uint8)[1].shape == (64, 16)
