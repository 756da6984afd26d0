"""Sums of products that leave for slots, tensors of more dimensions, under conditions, by atomics, and over their own operands."""

from __future__ import annotations

import numpy as np
import pytest
from test_metal_unusual import checked, ints

import tilewright
import tilewright.language as T


def test_slots_of_staged_results() -> None:
    M, N, K = 64, 48, 32

    @T.prim_func
    def f(A: T.Tensor((3, M, K), "float16"), B: T.Tensor((3, N, K), "float16"), C: T.Tensor((3, M, N), "float16")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((2, M, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            for q in T.serial(3):
                T.gemm(A[q, 0:M, 0:K], B[q, 0:N, 0:K], c, transpose_B=True, clear_accum=True)
                T.copy(c, s[q % 2, :, :])
                T.copy(s[q % 2, :, :], C[q, 0, 0])

    k = checked(f)
    a, b = ints((3, M, K), "float16"), ints((3, N, K), "float16")
    c = np.full((3, M, N), np.nan, np.float16)
    k.emulate(a, b, c)
    assert "simdgroup_store(&s" in k.get_kernel_source()
    assert np.array_equal(c.astype(np.float64), np.einsum("qmk,qnk->qmn", a.astype(np.float64), b.astype(np.float64)))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_conditions_of_blocks_and_numbers(limit: int) -> None:
    M, N, K = 96, 64, 16

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        n: T.int32,
        C: T.Tensor((M, N), "float32"),
        D: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(3, threads=64) as by:
            c = T.alloc_fragment((32, N), "float32")
            T.clear(c)
            T.gemm(A[by * 32 : by * 32 + 32, 0:K], B[0:N, 0:K], c, transpose_B=True)
            if by < n:
                T.copy(c, C[by * 32, 0])
            else:
                for i, j in T.Parallel(32, N):
                    D[by * 32 + i, j] = c[i, j] - 1.0

    k = checked(f)
    a, b = ints((M, K), "float16"), ints((N, K), "float16")
    c, d = np.zeros((M, N), np.float32), np.zeros((M, N), np.float32)
    k.emulate(a, b, limit, c, d)
    w = a.astype(np.float64) @ b.astype(np.float64).T
    r = np.arange(M) // 32 < limit
    assert np.array_equal(c, np.where(r[:, None], w, 0)) and np.array_equal(d, np.where(r[:, None], 0, w - 1))


def test_sums_into_tensors_by_atomics_and_stores_of_both() -> None:
    M, N, K = 48, 40, 64

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
        P: T.Tensor((4, M, N), "bfloat16"),
    ):
        with T.Kernel(4, threads=64) as z:
            c = T.alloc_fragment((48, 40), "float32")
            T.clear(c)
            T.gemm(A[0:48, z * 16 : z * 16 + 16], B[z * 16 : z * 16 + 16, 0:40], c)
            T.copy(c, P[z, 0, 0])
            T.atomic_add(C[0:48, 0:40], c)

    k = checked(f)
    a, b = ints((M, K), "float16"), ints((K, N), "float16")
    c = np.zeros((M, N), np.float32)
    p = np.zeros((4, M, N), tilewright.dtype("bfloat16").numpy)
    k.emulate(a, b, c, p)
    w = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(c, w)
    parts = np.stack(
        [a[:, 16 * z : 16 * z + 16].astype(np.float64) @ b[16 * z : 16 * z + 16].astype(np.float64) for z in range(4)]
    )
    assert np.array_equal(p.astype(np.float64), parts.astype(p.dtype).astype(np.float64))


def test_one_buffer_in_place() -> None:
    M, K = 64, 64

    @T.prim_func
    def f(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, K), "float32")):
        with T.Kernel(1, threads=128):
            c = T.alloc_fragment((M, K), "float32")
            for _ in T.serial(3):
                T.clear(c)
                T.gemm(A[0:M, 0:K], B[0:K, 0:K], c)
                T.copy(c, A[0, 0])

    k = checked(f)
    a, b = ints((M, K), "float32", -1, 2), ints((K, K), "float32", -1, 2)
    w = a.astype(np.float64)
    for _ in range(3):
        w = w @ b.astype(np.float64)
    k.emulate(a, b)
    assert np.array_equal(a, w)


@pytest.mark.parametrize("m,n", [(0, 8), (8, 0), (9, 17), (1, 1)])
def test_dynamic_sizes_of_a_store(m: int, n: int) -> None:
    M, N = T.dynamic("M"), T.dynamic("N")

    @T.prim_func
    def f(A: T.Tensor((M, 16), "bfloat16"), B: T.Tensor((16, N), "bfloat16"), C: T.Tensor((2, M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=32) as (bx, by):
            c = T.alloc_fragment((16, 16), "float32")
            T.clear(c)
            T.gemm(A[by * 16 : by * 16 + 16, 0:16], B[0:16, bx * 16 : bx * 16 + 16], c)
            T.copy(c, C[1, by * 16, bx * 16])
            for i, j in T.Parallel(16, 16):
                if (by * 16 + i < M) & (bx * 16 + j < N):
                    C[0, by * 16 + i, bx * 16 + j] = -c[i, j]

    k = checked(f)
    a, b = ints((m, 16), "bfloat16"), ints((16, n), "bfloat16")
    c = np.full((2, m, n), 9, a.dtype)
    k.emulate(a, b, c)
    w = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype).astype(np.float64)
    assert np.array_equal(c[1].astype(np.float64), w) and np.array_equal(c[0].astype(np.float64), -w)


def test_padded_tiles_and_two_products_behind_one_tile() -> None:
    M, N, K = 64, 32, 32

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        D: T.Tensor((N, K), "float32"),
        C: T.Tensor((M, K), "float32"),
    ):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((M, N), "float32")
            c, d = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((M, K), "float32")
            T.gemm(A[0:M, 0:K], B[0:K, 0:N], c, clear_accum=True)
            for i, j in T.Parallel(M, N):
                s[i, j] = T.max(c[i, j], 0.0)
            T.gemm(s, D[0:N, 0:K], d, clear_accum=True)
            T.copy(d, C[0, 0])

    k = checked(f)
    a, b, d = ints((M, K), "float32"), ints((K, N), "float32"), ints((N, K), "float32")
    c = np.zeros((M, K), np.float32)
    k.emulate(a, b, d, c)
    assert np.array_equal(c, np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0) @ d.astype(np.float64))


@pytest.mark.parametrize("way", ["loaded", "named", "worked out"])
def test_rows_that_go_where_numbers_say(way: str) -> None:
    """Rows of sums that do not lie a distance apart are stored one by one: a matrix store has one distance for all."""
    M, N, K = 32, 24, 16

    @T.prim_func
    def f(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        rows: T.Tensor((M,), "int32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=64):
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            T.gemm(A[0:M, 0:K], B[0:N, 0:K], c, transpose_B=True)
            for i, j in T.Parallel(M, N):
                if way == "loaded":
                    C[rows[i], j] = c[i, j]
                elif way == "named":
                    row = rows[i]
                    C[row, j] = c[i, j]
                else:
                    C[i * 5 % M, j] = c[i, j]

    k = checked(f)
    a, b = ints((M, K), "float16"), ints((N, K), "float16")
    rows = (
        np.random.default_rng(3).permutation(M).astype(np.int32)
        if way != "worked out"
        else np.arange(M, dtype=np.int32) * 5 % M
    )
    c = np.zeros((M, N), np.float32)
    k.emulate(a, b, rows, c)
    assert np.array_equal(c[rows], a.astype(np.float64) @ b.astype(np.float64).T)
