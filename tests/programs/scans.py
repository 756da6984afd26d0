"""Running sums along both dimensions, forwards and backwards."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def scan(dim, reverse):
    @T.prim_func
    def main(A: T.Tensor((16, 32), "float32"), B: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((16, 32), "float32")
            T.copy(A, tile)
            T.cumsum(src=tile, dim=dim, reverse=reverse)
            T.copy(tile, B)

    return tilelang.compile(main, out_idx=[1])


a = torch.randint(-9, 9, (16, 32), device=device).float()
for dim in (0, 1):
    assert torch.equal(scan(dim, False)(a), a.cumsum(dim))
    assert torch.equal(scan(dim, True)(a), a.flip(dim).cumsum(dim).flip(dim))
