"""Products dealt in other ways: streams of steps over blocks, parts of K through a workspace, codes of four-bit floats."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16


def stream_of_steps():
    """Full tiles then streamed iterations with atomics."""
    _, rng = drawn(0)
    M, N, K, BM, BN, BK, sms = 128, 192, 256, 64, 64, 32, 5
    iters_per_tile = -(-K // BK)
    tiles_m, tiles_n = M // BM, N // BN
    total = tiles_m * tiles_n * iters_per_tile
    full, partial = total // sms, total % sms

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(sms, threads=128) as pid:
            As = T.alloc_shared((BM, BK), "float16")
            Bs = T.alloc_shared((BN, BK), "float16")
            acc = T.alloc_fragment((BM, BN), "float32")
            staged = T.alloc_shared((BM, BN), "float32")
            start = T.alloc_var("int32")
            last = T.alloc_var("int32")
            end = T.alloc_var("int32")
            start = pid * full + T.min(pid, partial)
            last = (pid + 1) * full + T.min(pid + 1, partial)
            while start < last:
                end = T.min(start + (iters_per_tile - start % iters_per_tile), last)
                tile = start // iters_per_tile
                remainder = start % iters_per_tile
                T.clear(acc)
                for k in T.Pipelined(end - start, num_stages=2):
                    T.copy(A[tile // tiles_n * BM, (k + remainder) * BK], As)
                    T.copy(B[tile % tiles_n * BN, (k + remainder) * BK], Bs)
                    T.gemm(As, Bs, acc, transpose_B=True)
                if remainder == 0 and end % iters_per_tile == 0:
                    T.copy(acc, staged)
                    for i, j in T.Parallel(BM, BN):
                        T.atomic_add(C[tile // tiles_n * BM + i, tile % tiles_n * BN + j], staged[i, j])
                else:
                    for i, j in T.Parallel(BM, BN):
                        T.atomic_add(C[tile // tiles_n * BM + i, tile % tiles_n * BN + j], acc[i, j])
                start = end

    a, b = rng.integers(-3, 4, (M, K)).astype(np.float16), rng.integers(-3, 4, (N, K)).astype(np.float16)
    return Familiar(main, (a, b, np.zeros((M, N), np.float32)), {2: a.astype(float) @ b.astype(float).T}, 0)


def parts_of_k():
    """Parts of K into a workspace, added with bias and GELU by a second kernel."""
    normal, _ = drawn(1)
    M, N, K, BM, BN, BK, S = 70, 100, 512, 64, 64, 64, 4

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((K, N), "bfloat16"),
        bias: T.Tensor((N,), "bfloat16"),
        W: T.Tensor((S, M, N), "float32"),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), S, threads=128) as (bx, by, bz):
            As = T.alloc_shared((BM, BK), "bfloat16")
            Bs = T.alloc_shared((BK, BN), "bfloat16")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(K // S // BK, num_stages=3):
                T.copy(A[by * BM, bz * (K // S) + k * BK], As)
                T.copy(B[bz * (K // S) + k * BK, bx * BN], Bs)
                T.gemm(As, Bs, acc)
            T.copy(acc, W[bz, by * BM : (by + 1) * BM, bx * BN : (bx + 1) * BN])
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            total = T.alloc_fragment((BM, BN), "float32")
            part = T.alloc_fragment((BM, BN), "float32")
            T.clear(total)
            for s in T.serial(S):
                T.copy(W[s, by * BM : (by + 1) * BM, bx * BN : (bx + 1) * BN], part)
                for i, j in T.Parallel(BM, BN):
                    total[i, j] += part[i, j]
            for i, j in T.Parallel(BM, BN):
                x = total[i, j] + T.cast(bias[bx * BN + j], "float32")
                total[i, j] = 0.5 * x * (1.0 + T.erf(x * 0.70710678))
            T.copy(total, C[by * BM, bx * BN])

    from math import erf

    a, b, bias = normal(M, K, dtype=bf, scale=0.1), normal(K, N, dtype=bf), normal(N, dtype=bf)
    x = a.astype(float) @ b.astype(float) + bias.astype(float)
    return Familiar(
        main,
        (a, b, bias, nan(S, M, N), nan(M, N, dtype=bf)),
        {4: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))},
        1e-2,
    )


def four_bit_floats():
    """e2m1 weights in bytes through registers into a swizzled tile, transposed product."""
    normal, rng = drawn(2)
    M, N, K, BM, BN, BK = 70, 128, 256, 64, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((N, K // 2), "uint8"),
        S: T.Tensor((N, K // 32), "uint8"),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            As = T.alloc_shared((BM, BK), "bfloat16")
            Bs = T.alloc_shared((BN, BK // 2), "uint8")
            Bd = T.alloc_shared((BN, BK), "bfloat16")
            Bl = T.alloc_fragment((BN, BK // 2), "uint8")
            Bdl = T.alloc_fragment((BN, BK), "bfloat16")
            acc = T.alloc_fragment((BM, BN), "float32")
            Cs = T.alloc_shared((BM, BN), "bfloat16")
            scale = T.alloc_shared((BN, K // 32), "uint8")
            T.annotate_layout({Bd: T.Layout((BN, BK), lambda i, j: i * BK + (j ^ ((i % 8) * 8)))})
            T.clear(acc)
            T.copy(S[bx * BN : (bx + 1) * BN, :], scale)
            for k in T.Pipelined(K // BK, num_stages=2):
                T.copy(A[by * BM, k * BK], As)
                T.copy(B[bx * BN, k * BK // 2], Bs)
                T.copy(Bs, Bl)
                for i, j in T.Parallel(BN, BK):
                    nib = (Bl[i, j // 2] >> T.cast((j % 2) * 4, "uint8")) & T.cast(15, "uint8")
                    s = T.cast(nib >> 3, "uint16")
                    e = T.cast((nib >> 1) & 3, "uint16")
                    mm = T.cast(nib & 1, "uint16")
                    e8 = T.cast(scale[i, k * (BK // 32) + j // 32], "uint16")
                    bits = T.if_then_else(
                        e > 0,
                        (s << 15) | ((e + e8 - 1) << 7) | (mm << 6),
                        (s << 15) | T.if_then_else(mm > 0, (e8 - 1) << 7, T.uint16(0)),
                    )
                    Bdl[i, j] = T.reinterpret(bits, "bfloat16")
                T.copy(Bdl, Bd)
                T.gemm(As, Bd, acc, transpose_B=True)
            T.copy(acc, Cs)
            T.copy(Cs, C[by * BM, bx * BN])

    a, codes, sc = (
        normal(M, K, dtype=bf),
        rng.integers(0, 256, (N, K // 2)).astype(np.uint8),
        rng.integers(124, 130, (N, K // 32)).astype(np.uint8),
    )
    tab = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    tab = np.concatenate([tab, -tab])
    w = tab[np.stack([codes & 15, codes >> 4], -1).reshape(N, K)] * np.repeat(2.0 ** (sc.astype(int) - 127), 32, 1)
    return Familiar(main, (a, codes, sc, nan(M, N, dtype=bf)), {3: a.astype(float) @ w.T}, 2e-2)
