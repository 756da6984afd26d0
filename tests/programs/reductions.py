"""Every reduction of rows and columns."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def reduction(name, dim, dtype):
    @T.prim_func
    def main(A: T.Tensor((24, 40), dtype), B: T.Tensor((24 if dim == 1 else 40,), dtype)):
        with T.Kernel(1, threads=32):
            held, made = T.alloc_fragment((24, 40), dtype), T.alloc_fragment((24 if dim == 1 else 40,), dtype)
            T.copy(A, held)
            getattr(T, f"reduce_{name}")(held, made, dim=dim)
            T.copy(made, B)

    return tilelang.compile(main, out_idx=-1)


a = torch.randint(-50, 50, (24, 40), device=device)
for name, wanted in [
    ("sum", lambda x, d: x.sum(d)),
    ("max", lambda x, d: x.amax(d)),
    ("min", lambda x, d: x.amin(d)),
    ("abssum", lambda x, d: x.abs().sum(d)),
    ("absmax", lambda x, d: x.abs().amax(d)),
]:
    for dim in (0, 1):
        for dtype in (T.float32, T.int32):
            found = reduction(name, dim, dtype)(a.to(dtype.as_torch()))
            assert torch.equal(found.double(), wanted(a, dim).double()), (name, dim, str(dtype))
