"""Single elements: transposes by threads and tiles, vectors of a thread, a product with a row."""

import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T


def transposes():
    """By threads through a padded tile, and by tiles."""
    normal, _ = drawn(0)
    M, N = 50, 70

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((N, M), "float32"),
        H: T.Tensor((M, N), "float16"),
        G: T.Tensor((N, M), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=(32, 8)) as (bx, by):
            tile = T.alloc_shared((32, 33), "float32")
            tx, ty = T.get_thread_binding(0), T.get_thread_binding(1)
            for r in T.unroll(4):
                if by * 32 + ty + r * 8 < M and bx * 32 + tx < N:
                    tile[ty + r * 8, tx] = A[by * 32 + ty + r * 8, bx * 32 + tx]
            T.sync_threads()
            for r in T.unroll(4):
                if bx * 32 + ty + r * 8 < N and by * 32 + tx < M:
                    B[bx * 32 + ty + r * 8, by * 32 + tx] = tile[tx, ty + r * 8]
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            s = T.alloc_shared((32, 64), "float16")
            t = T.alloc_fragment((64, 32), "float16")
            ts = T.alloc_shared((64, 32), "float16")
            T.copy(H[by * 32, bx * 64], s)
            for i, j in T.Parallel(64, 32):
                t[i, j] = s[j, i]
            T.copy(t, ts)
            T.copy(ts, G[bx * 64, by * 32])

    a, h = normal(M, N, dtype=np.float32), normal(M, N)
    return Familiar(main, (a, nan(N, M), h, nan(N, M, dtype=np.float16)), {1: a.T, 3: h.T}, 0)


def vectors():
    """Vectors of a thread's own, unrolled; and a loop of a given width."""
    normal, _ = drawn(1)
    N = 1000 * 8

    @T.prim_func
    def main(
        A: T.Tensor((N,), "float16"),
        B: T.Tensor((N,), "float16"),
        C: T.Tensor((N,), "float16"),
        D: T.Tensor((1000, 8), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 8 * 128 * 2), threads=128) as bx:
            tx = T.get_thread_binding()
            a = T.alloc_local((8,), "float16")
            b = T.alloc_local((8,), "float16")
            for u in T.unroll(2):
                base = (bx * 2 + u) * 1024 + tx * 8
                if base < N:
                    for v in T.vectorized(8):
                        a[v] = A[base + v]
                    for v in T.vectorized(8):
                        b[v] = B[base + v]
                    for v in T.unroll(8):
                        a[v] = a[v] + b[v]
                    for v in T.vectorized(8):
                        C[base + v] = a[v]
        with T.Kernel(T.ceildiv(1000, 64), threads=64) as bx:
            for i, j in T.Parallel(64, 8, coalesced_width=4):
                D[bx * 64 + i, j] = T.cast(A[(bx * 64 + i) * 8 + j], "float32") * 2.0 + 1.0

    a, b = normal(N), normal(N)
    return Familiar(
        main,
        (a, b, nan(N, dtype=np.float16), nan(1000, 8)),
        {2: (a + b).astype(float), 3: a.astype(float).reshape(1000, 8) * 2 + 1},
        0,
    )


def row_product():
    """A product with a row, summed over registers at the end."""
    normal, _ = drawn(2)
    N, K, BN, BK = 70, 520, 8, 256

    @T.prim_func
    def main(A: T.Tensor((K,), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((N,), "float16")):
        with T.Kernel(T.ceildiv(N, BN), threads=128) as bn:
            a = T.alloc_fragment((BK,), "float16")
            b = T.alloc_fragment((BN, BK), "float16")
            p = T.alloc_fragment((BN, BK), "float32")
            c = T.alloc_fragment((BN,), "float32")
            T.clear(p)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=0):
                T.copy(A[k * BK : (k + 1) * BK], a)
                T.copy(B[bn * BN : (bn + 1) * BN, k * BK : (k + 1) * BK], b)
                for i, j in T.Parallel(BN, BK):
                    p[i, j] += T.cast(a[j], "float32") * T.cast(b[i, j], "float32")
            T.reduce_sum(p, c, dim=1)
            for i in T.Parallel(BN):
                if bn * BN + i < N:
                    C[bn * BN + i] = c[i]

    a, b = normal(K), normal(N, K)
    return Familiar(main, (a, b, nan(N, dtype=np.float16)), {2: b.astype(float) @ a.astype(float)}, 3e-3)
