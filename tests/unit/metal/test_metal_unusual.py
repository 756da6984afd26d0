"""Kernels such as users write and tables of programs lack, as Metal text in the emulator, against NumPy: odd tiles, slots by hand,
products that share sums, elements of every kind, sizes of 0 and 1."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "matmul"))
from front_end import complaints
from products import product, random_weight

import tilewright
import tilewright.language as T

METAL = "metal -arch=apple7"
rng = np.random.default_rng(7)


def ints(shape: Any, dtype: str, lo: int = -4, hi: int = 5) -> np.ndarray:
    return rng.integers(lo, hi, shape).astype(tilewright.dtype(dtype).numpy)


def checked(program: Any) -> Any:
    """A kernel whose text the front end accepts."""
    kernel = tilewright.compile(program, target=METAL)
    assert not complaints(kernel.get_kernel_source())
    return kernel


@pytest.mark.parametrize("M,N,K", [(97, 53, 71), (1, 1, 1), (48, 24, 40), (0, 5, 5)])
def test_odd_tiles(M: int, N: int, K: int) -> None:
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def f(A: T.Tensor((m, k), "bfloat16"), B: T.Tensor((k, n), "bfloat16"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(n, 24), T.ceildiv(m, 48), threads=96) as (bx, by):
            a, b = T.alloc_shared((48, 40), "bfloat16"), T.alloc_shared((40, 24), "bfloat16")
            c = T.alloc_fragment((48, 24), "float32")
            T.clear(c)
            for z in T.Pipelined(T.ceildiv(k, 40), num_stages=3):
                T.copy(A[by * 48, z * 40], a)
                T.copy(B[z * 40, bx * 24], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 48, bx * 24])

    kern = checked(f)
    a, b = ints((M, K), "bfloat16"), ints((K, N), "bfloat16")
    c = np.full((M, N), 77, np.float32)
    kern.emulate(a, b, c)
    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_three_dimensional_staging_by_hand() -> None:
    M, N, K = 40, 56, 112

    @T.prim_func
    def f(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
            a, b = T.alloc_shared((3, 32, 16), "float16"), T.alloc_shared((3, 32, 16), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.fill(c, 1.5)
            for s in T.serial(2):
                T.copy(A[by * 32, s * 16], a[s, :, :])
                T.copy(B[bx * 32, s * 16], b[s, :, :])
            for z in T.serial(K // 16):
                if z + 2 < K // 16:
                    T.copy(A[by * 32 : by * 32 + 32, (z + 2) * 16 : (z + 3) * 16], a[(z + 2) % 3, :, :])
                    T.copy(B[bx * 32 : bx * 32 + 32, (z + 2) * 16 : (z + 3) * 16], b[(z + 2) % 3, :, :])
                T.gemm(a[z % 3, :, :], b[z % 3, :, :], c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])

    kern = checked(f)
    a, b = ints((M, K), "float16", -2, 3), ints((N, K), "float16", -2, 3)
    c = np.full((M, N), np.nan, np.float16)
    kern.emulate(a, b, c)
    assert np.array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T + 1.5)


def test_gemms_that_share_accumulators_and_reduce_them() -> None:
    M, N, K, L = 33, 65, 40, 24

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        D: T.Tensor((L, M), "float16"),
        E: T.Tensor((N, L), "float16"),
        C: T.Tensor((M, N), "float32"),
        R: T.Tensor((M,), "float32"),
        S: T.Tensor((N,), "float32"),
        X: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((40, 40), "float16"), T.alloc_shared((40, 72), "float16")
            d, e = T.alloc_shared((24, 40), "float16"), T.alloc_shared((72, 24), "float16")
            c = T.alloc_fragment((40, 72), "float32")
            r, s, x = (
                T.alloc_fragment((40,), "float32"),
                T.alloc_fragment((72,), "float32"),
                T.alloc_fragment((40,), "float32"),
            )
            T.clear(c)
            T.copy(A[0, 0], a)
            T.copy(B[0, 0], b)
            T.copy(D[0, 0], d)
            T.copy(E[0, 0], e)
            T.gemm(a, b, c)
            T.gemm(d, e, c, transpose_A=True, transpose_B=True)
            for i, j in T.Parallel(40, 72):
                c[i, j] = T.if_then_else(i > j, c[i, j] * 2.0, c[i, j] - 1.0)
            T.copy(c, C[0, 0])
            for i, j in T.Parallel(40, 72):
                c[i, j] = T.if_then_else((i < M) & (j < N), c[i, j], 0.0)
            T.reduce_sum(c, r, dim=1)
            T.reduce_sum(c, s, dim=0)
            T.reduce_absmax(c, x, dim=1)
            T.copy(r, R[0])
            T.copy(s, S[0])
            T.copy(x, X[0])

    kern = checked(f)
    a, b, d, e = ints((M, K), "float16"), ints((K, N), "float16"), ints((L, M), "float16"), ints((N, L), "float16")
    C, R, S, X = (np.full(s, np.nan, np.float32) for s in ((M, N), (M,), (N,), (M,)))
    kern.emulate(a, b, d, e, C, R, S, X)
    w = a.astype(np.float64) @ b.astype(np.float64) + d.astype(np.float64).T @ e.astype(np.float64).T
    i, j = np.indices(w.shape)
    w = np.where(i > j, w * 2, w - 1)
    assert (
        np.array_equal(C, w)
        and np.array_equal(R, w.sum(1))
        and np.array_equal(S, w.sum(0))
        and np.array_equal(X, np.abs(w).max(1))
    )


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8")])
def test_products_of_bytes(kinds: tuple[str, str]) -> None:
    M, N, K = 37, 41, 90

    @T.prim_func
    def f(A: T.Tensor((M, K), kinds[0]), B: T.Tensor((N, K), kinds[1]), C: T.Tensor((M, N), "int32")):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            a, b = T.alloc_shared((32, 32), kinds[0]), T.alloc_shared((32, 32), kinds[1])
            c = T.alloc_fragment((32, 32), "int32")
            T.clear(c)
            for z in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 32, z * 32], a)
                T.copy(B[bx * 32, z * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])

    kern = checked(f)
    a = rng.integers(np.iinfo(kinds[0]).min, np.iinfo(kinds[0]).max + 1, (M, K)).astype(kinds[0])
    b = rng.integers(-128, 128, (N, K)).astype(kinds[1])
    c = np.full((M, N), 77, np.int32)
    kern.emulate(a, b, c)
    assert np.array_equal(c, a.astype(np.int64) @ b.astype(np.int64).T)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_atomics_of_small_floats(kind: str) -> None:
    N = 1000

    @T.prim_func
    def f(
        X: T.Tensor((N,), "int32"),
        V: T.Tensor((N,), kind),
        H: T.Tensor((13,), kind),
        G: T.Tensor((13,), kind),
        L: T.Tensor((13,), kind),
    ):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            h = T.alloc_shared((13,), kind)
            T.clear(h)
            for i in T.Parallel(128):
                if bx * 128 + i < N:
                    T.atomic_add(h[X[bx * 128 + i]], V[bx * 128 + i])
                    T.atomic_max(G[X[bx * 128 + i]], V[bx * 128 + i])
                    T.atomic_min(L[X[bx * 128 + i]], V[bx * 128 + i])
            T.sync_threads()
            for i in T.Parallel(13):
                T.atomic_add(H[i], h[i])

    kern = checked(f)
    x = rng.integers(0, 13, N).astype(np.int32)
    v = rng.integers(-1, 2, N).astype(tilewright.dtype(kind).numpy)
    H, G, L = (np.full(13, z, tilewright.dtype(kind).numpy) for z in (0, -5, 5))
    kern.emulate(x, v, H, G, L)
    e = np.array([v[x == q].astype(np.float64).sum() for q in range(13)])
    assert np.array_equal(H.astype(np.float64), e) and (G == 1).all() and (L == -1).all()


@pytest.mark.parametrize(
    "bits,group,K,N,M",
    [
        (4, 20, 100, 19, 1),
        (3, 24, 120, 7, 1),
        (2, 12, 84, 33, 2),
        (6, 40, 200, 9, 1),
        (5, 8, 72, 17, 3),
        (8, 36, 108, 5, 1),
        (4, 7, 91, 13, 1),
    ],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_one_row_with_odd_groups(bits: int, group: int, K: int, N: int, M: int, zeros: bool) -> None:
    g = -(-K // group)
    opts = {"scales": (rng.random((N, g)) + 0.5).astype(np.float16), "block": (1, group)}
    if zeros:
        opts["zeros"] = rng.integers(0, 1 << bits, (N, g)).astype(np.float32)
    w = random_weight(rng, f"uint{bits}", (N, K), **opts)
    x = ints((M, K), "float16")
    found = product(x, w, METAL)
    exact = x.astype(np.float64) @ w.to_dense().T
    size = np.abs(x.astype(np.float64)) @ (np.abs(w.to_dense()) + (1 << bits) * 2).T
    assert (np.abs(found - exact) <= (K + 8) * 2.0**-24 * 2 * size).all(), np.abs(found - exact).max()


def test_fp8_by_fp4_by_e8m0_as_bytes() -> None:
    M, N, K = 17, 40, 96

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float8_e4m3fn"),
        W: T.Tensor((N, K), "float4_e2m1fn"),
        S: T.Tensor((N, K // 32), "float8_e8m0fnu"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=64) as (bx, by):
            c = T.alloc_fragment((16, 16), "float32")
            a, b = T.alloc_shared((16, 32), "float16"), T.alloc_shared((16, 32), "float16")
            part = T.alloc_fragment((16, 16), "float32")
            T.clear(c)
            for z in T.serial(K // 32):
                T.copy(A[by * 16, z * 32], a)
                T.copy(W[bx * 16, z * 32], b)
                T.clear(part)
                T.gemm(a, b, part, transpose_B=True)
                for i, j in T.Parallel(16, 16):
                    c[i, j] += part[i, j] * T.cast(S[bx * 16 + j, z], "float32")
            T.copy(c, C[by * 16, bx * 16])

    kern = checked(f)
    a = ints((M, K), "float8_e4m3fn")
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    w = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    s = rng.integers(120, 135, (N, K // 32)).astype(np.uint8)
    C = np.full((M, N), np.nan, np.float32)
    kern.emulate(a, w, s.view(ml_dtypes.float8_e8m0fnu), C)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([table, -table])
    dense = table[codes] * np.repeat(2.0 ** (s.astype(np.float64) - 127), 32, axis=1)
    assert np.array_equal(C, (a.astype(np.float64) @ dense.T))


@pytest.mark.parametrize("n", [0, 1, 2, 31, 257])
def test_scans_and_arguments_of_any_length(n: int) -> None:
    m = T.dynamic("m")

    @T.prim_func
    def f(
        X: T.Tensor((3, m), "float32"),
        Y: T.Tensor((3, m), "float32"),
        big: T.int64,
        small: T.int8,
        yes: T.bool,
        h: T.float16,
        bf: T.bfloat16,
        u: T.uint16,
    ):
        with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
            row, out = T.alloc_fragment((4, 64), "float32"), T.alloc_fragment((4, 64), "float32")
            T.copy(X[0, bx * 64], row)
            T.cumsum(row, out, dim=1, reverse=True)
            for i, j in T.Parallel(4, 64):
                if (i < 3) & (bx * 64 + j < m):
                    Y[i, bx * 64 + j] = (
                        out[i, j]
                        + T.if_then_else(yes, 1.0, 2.0)
                        + T.cast(h, "float32")
                        + T.cast(bf, "float32")
                        + T.cast(small, "float32")
                        + T.cast(u, "float32")
                        + T.cast(big // (1 << 40), "float32")
                    )

    kern = checked(f)
    x = ints((3, n), "float32")
    y = np.full((3, n), np.nan, np.float32)
    kern.emulate(x, y, -(1 << 41) - 1, -7, True, 0.5, 0.25, 60000)
    e = np.concatenate([np.cumsum(x[:, s : s + 64][:, ::-1], 1)[:, ::-1] for s in range(0, n, 64)], 1) if n else x
    assert np.array_equal(y, e + 1 + 0.5 + 0.25 - 7 + 60000 - 3)


def test_accumulators_become_an_operand() -> None:
    M, N, D = 24, 40, 48

    @T.prim_func
    def f(
        Q: T.Tensor((M, D), "bfloat16"),
        K: T.Tensor((N, D), "bfloat16"),
        V: T.Tensor((N, D), "bfloat16"),
        O: T.Tensor((M, D), "bfloat16"),
    ):
        with T.Kernel(1, threads=96):
            q, k, v = (
                T.alloc_shared((24, 48), "bfloat16"),
                T.alloc_shared((40, 48), "bfloat16"),
                T.alloc_shared((40, 48), "bfloat16"),
            )
            s, o = T.alloc_fragment((24, 40), "float32"), T.alloc_fragment((24, 48), "float32")
            p = T.alloc_fragment((24, 40), "bfloat16")
            most, total = T.alloc_fragment((24,), "float32"), T.alloc_fragment((24,), "float32")
            T.copy(Q, q)
            T.copy(K, k)
            T.copy(V, v)
            T.clear(s)
            T.clear(o)
            T.gemm(q, k, s, transpose_B=True)
            T.reduce_max(s, most, dim=1)
            for i, j in T.Parallel(24, 40):
                s[i, j] = T.exp2(s[i, j] - most[i])
            T.copy(s, p)
            T.reduce_sum(s, total, dim=1)
            T.gemm(p, v, o)
            for i, j in T.Parallel(24, 48):
                o[i, j] /= total[i]
            T.copy(o, O)

    kern = checked(f)
    q, k, v = (ints(s, "bfloat16", -2, 3) for s in ((M, D), (N, D), (N, D)))
    O = np.full((M, D), np.nan, ml_dtypes.bfloat16)
    kern.emulate(q, k, v, O)
    s = q.astype(np.float64) @ k.astype(np.float64).T
    p = np.exp2(s - s.max(1, keepdims=True))
    e = p.astype(ml_dtypes.bfloat16).astype(np.float64) @ v.astype(np.float64) / p.sum(1, keepdims=True)
    assert np.abs(O.astype(np.float64) - e).max() < 2e-2


def test_strided_views_and_a_transposed_store() -> None:
    M, N = 48, 40

    @T.prim_func
    def f(
        A: T.StridedTensor((M, 32), (64, 1), "float16"),
        B: T.Tensor((N, 32), "float16"),
        C: T.Tensor((N, M), "float32"),
        D: T.StridedTensor((M, N), (N + 3, 1), "float32"),
    ):
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((48, 32), "float16"), T.alloc_shared((40, 32), "float16")
            c = T.alloc_fragment((48, 40), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(48, 40):
                C[j, i] = c[i, j]
            T.copy(c, D)

    kern = checked(f)
    A = ints((M, 64), "float16")
    b = ints((N, 32), "float16")
    C = np.full((N, M), np.nan, np.float32)
    D = np.full((M, N + 3), 9, np.float32)
    kern.emulate(A[:, :32], b, C, D[:, :N])
    e = A[:, :32].astype(np.float64) @ b.astype(np.float64).T
    assert np.array_equal(C, e.T) and np.array_equal(D[:, :N], e) and (D[:, N:] == 9).all()


def test_sixteen_warps_one_row_of_fragments_each_and_half_sums() -> None:
    M, N, K = 128, 16, 32

    @T.prim_func
    def f(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(1, threads=512):
            a, b = T.alloc_shared((128, 32), "float16"), T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((128, 16), "float16")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, policy=T.GemmWarpPolicy.FullRow)
            T.copy(c, C)

    kern = checked(f)
    a, b = ints((M, K), "float16"), ints((K, N), "float16")
    c = np.full((M, N), np.nan, np.float16)
    kern.emulate(a, b, c)
    assert np.array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))
