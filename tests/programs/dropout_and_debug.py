"""Random numbers on the device, prints and assertions, dependent launches, and several programs compiled at once."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit
def dropout(N, p, seed, block=256, dtype=T.float32):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype), keep: T.Tensor((N,), T.int8)):
        with T.Kernel(T.ceildiv(N, block), threads=block) as bx:
            tx = T.get_thread_binding()
            i = bx * block + tx
            T.rng_init(seed, i)
            r = T.rng_rand_float()
            if i < N:
                keep[i] = T.cast(r > p, "int8")
                Y[i] = T.if_then_else(r > p, X[i] / (1 - p), 0)

    return main


@tilelang.jit(out_idx=[1])
def debugged(N, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((N, N), dtype), B: T.Tensor((N, N), dtype)):
        with T.Kernel(1, threads=128) as bx:
            tile = T.alloc_shared((N, N), dtype)
            part = T.alloc_fragment((N, N), dtype)
            var = T.alloc_var("int32")
            var = 3
            T.copy(A, tile)
            T.copy(tile, part)
            T.print(part[0, 0], msg="first")
            if bx == 0:
                T.print(tile, msg="the tile")
            T.print(var + 1)
            T.print("only words")
            T.device_assert(var == 3, "var changed")
            for i, j in T.Parallel(N, N):
                part[i, j] = part[i, j] * 2
            T.copy(part, B)

    return main


@tilelang.jit
def pdl_first(N, block=128, dtype=T.float32):
    @T.prim_func
    def kernel(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] + 1.0
            T.pdl_trigger()

    return kernel


@tilelang.jit
def pdl_second(N, block=128, dtype=T.float32):
    @T.prim_func
    def kernel(B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=block) as bx:
            T.pdl_sync()
            for i in T.Parallel(block):
                C[bx * block + i] = B[bx * block + i] * 2.0

    return kernel


def scaled(factor):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i] * factor

    return main


if __name__ == "__main__":
    N = 1000
    x, y, keep = torch.ones(N, device=dev), torch.zeros(N, device=dev), torch.zeros(N, dtype=torch.int8, device=dev)
    dropout(N, 0.25, 7)(x, y, keep)
    torch.testing.assert_close(y, keep.float() / 0.75)
    assert 650 < int(keep.sum()) < 850, int(keep.sum())
    a = torch.randn(16, 16, device=dev)
    torch.testing.assert_close(debugged(16)(a), a * 2)
    b, c = torch.empty(512, device=dev), torch.empty(512, device=dev)
    a = torch.randn(512, device=dev)
    pdl_first(512)(a, b)
    pdl_second(512)(b, c)
    torch.testing.assert_close(c, (a + 1) * 2)
    kernels = tilelang.par_compile([scaled(n) for n in (2, 3, 5)], out_idx=[1])
    a = torch.randn(64, device=dev)
    for factor, kernel in zip((2, 3, 5), kernels):
        torch.testing.assert_close(kernel(a), a * factor)
    print("ok")
