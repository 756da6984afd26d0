"""A product with codes of four bits, decoded by arithmetic that is written in words of ``tvm.tir``; tiles in an order of the program's own."""

import itertools

import tilelang
import tilelang.language as T
import torch
from tilelang import tvm
from tvm import DataType, tir

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def decoded(codes: tir.PrimExpr, place: tir.PrimExpr, scale: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """The value of a code in two's complement, of the two that a byte has."""
    assert isinstance(dtype, str) and DataType("uint8").bits == 8
    code = (codes >> tir.Mul(place, 4).astype("uint8")) & tir.const(15, "uint8")
    value = tir.Select(code > tir.const(7, "uint8"), code.astype("int32") - tir.const(16), code.astype("int32"))
    return value.astype(dtype) * scale


class Snake(T.BaseTileScheduler):
    """Tiles row by row, every other row from its end."""

    def __init__(self, rows, columns, name=None):
        super().__init__(name=name)
        self.columns, self._total_tiles = columns, rows * columns

    def update_current_idx(self, linear_idx):
        row, column = linear_idx // self.columns, linear_idx % self.columns
        self._m_idx[0] = row
        self._n_idx[0] = T.if_then_else(row % 2 == 0, column, self.columns - 1 - column)


CONFIGS = [{"block": block, "num_stages": stages} for block, stages in itertools.product([32, 64], [0, 2])]


@tilelang.autotune(configs=CONFIGS, warmup=1, rep=2)
@tilelang.jit(out_idx=[-1])
def product(M, N, K, group, workers=3, block=32, num_stages=2, threads=128, dtype=T.float16):
    @T.macro
    def decode(B, S, packed, plain, bn, k):
        T.copy(B[bn * block, k * group // 2], packed)
        for i, j in T.Parallel(block, group):
            plain[i, j] = decoded(packed[i, j // 2], tir.indexmod(j, 2), S[bn * block + i, k], dtype)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K // 2), "uint8"),
        S: T.Tensor((N, K // group), dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(workers, threads=threads) as worker:
            a, plain = T.alloc_shared((block, group), dtype), T.alloc_shared((block, group), dtype)
            packed = T.alloc_shared((block, group // 2), "uint8")
            c = T.alloc_fragment((block, block), "float32")
            tiles = Snake(M // block, N // block, name="snake")
            tiles.init(worker)
            while tiles.valid():
                T.clear(c)
                for k in T.Pipelined(K // group, num_stages=num_stages):
                    T.copy(A[tiles.m_idx * block, k * group], a)
                    decode(B, S, packed, plain, tiles.n_idx, k)
                    T.gemm(a, plain, c, transpose_B=True)
                T.copy(c, C[tiles.m_idx * block, tiles.n_idx * block])
                tiles.next_tile(workers)

    return main


if __name__ == "__main__":
    M, N, K, group = 128, 64, 128, 32
    codes = torch.randint(-8, 8, (N, K), device=device)
    packed = ((codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)).to(torch.uint8)
    scales = torch.rand(N, K // group, device=device).half()
    a = torch.randn(M, K, device=device).half()
    weight = codes.half() * scales.repeat_interleave(group, 1)
    wanted = a.float() @ weight.float().T
    kernel = product(M, N, K, group, block=32, num_stages=2)
    torch.testing.assert_close(kernel(a, packed, scales), wanted, rtol=1e-2, atol=1e-2)
    assert tvm.tir is tir and not isinstance(a, tir.BufferLoad)

REAL_SIZES = [("product", lambda: product(4096, 4096, 4096, 64, workers=132, block=128, num_stages=2))]
