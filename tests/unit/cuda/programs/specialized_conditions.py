"""Pipelined programs whose blocks of k depend on conditions, and rows that are left out."""

import numpy as np
from specialized_base import product

import tilewright.language as T


def masked(A, B, mask, stages=3):
    """Blocks of k that a mask in global memory chooses: slots follow the iterations that run."""
    A: T.Tensor((128, 512), "float16")
    B: T.Tensor((64, 512), "float16")
    mask: T.Tensor((8,), "int32")
    C = T.empty((128, 64), "float32")
    with T.Kernel(2, threads=128) as by:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=stages):
            if mask[k] != 0:
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 64, 0])
    return C


def masked_expected(a, b, mask):
    chosen = np.repeat(mask != 0, 64)
    return product(a[:, chosen], b[:, chosen].T)


def block_sparse(A, B, mask, stages=2):
    """A mask in shared memory, prepared before the roles part; a chain of names; a condition within a condition."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    mask: T.Tensor((M // 64, N // 64, K // 64), "int32")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // 64, M // 64, threads=128) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        kept = T.alloc_shared((K // 64,), "int32")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for i in T.Parallel(K // 64):
            kept[i] = mask[by, bx, i]
        for k in T.Pipelined(K // 64, num_stages=stages):
            wanted = kept[k]
            shifted = wanted + 1
            if shifted > 1:  # noqa: SIM102  one condition in another is what is tried
                if bx + k * 64 < K + bx:
                    T.copy(A[by * 64, k * 64], a)
                    T.copy(B[k * 64, bx * 64], b)
                    T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])
    return C


def block_sparse_expected(a, b, mask):
    result = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j, k in zip(*np.nonzero(mask), strict=True):
        rows, columns, deep = (slice(64 * one, 64 * one + 64) for one in (i, j, k))
        result[rows, columns] += product(a[rows, deep], b[deep, columns])
    return result


def either_way(A, B, D, kinds, stages=(2, 3)):
    """Tiles of rows that go one way or another, each with a pipeline of its own through the same tiles, one with two."""
    R = T.const("R")
    A: T.Tensor((R, 64, 160), "float16")
    B: T.Tensor((160, 64), "float16")
    D: T.Tensor((160, 64), "float16")
    kinds: T.Tensor((R,), "int32")
    C = T.empty((R, 64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for r in T.serial(R):
            T.clear(c)
            if kinds[r] == 0:
                for k in T.Pipelined(5, num_stages=stages[0]):
                    T.copy(A[r, 0, k * 32], a)
                    T.copy(B[k * 32, 0], b)
                    T.gemm(a, b, c)
            elif kinds[r] == 1:
                for k in T.Pipelined(4, num_stages=stages[1]):
                    T.copy(A[r, 0, k * 32], a)
                    T.copy(D[k * 32, 0], b)
                    T.gemm(a, b, c)
                for k in T.Pipelined(kinds[r] + 1, num_stages=2):
                    T.copy(A[r, 0, k * 32], a)
                    T.copy(B[k * 32, 0], b)
                    T.gemm(a, b, c)
            else:
                T.fill(c, 7.0)
            T.copy(c, C[r, 0, 0])
    return C


def either_way_expected(a, b, d, kinds):
    ways = [
        lambda a: product(a, b),
        lambda a: product(a[:, :128], d[:128]) + product(a[:, :64], b[:64]),
        lambda a: np.full((64, 64), 7, np.float32),
    ]
    return np.stack([ways[kind](rows) for rows, kind in zip(a, kinds, strict=True)])


def ragged(A, B, lengths):
    """Each row of blocks sums over a length of its own, perhaps none; the next one starts where slots stand."""
    A: T.Tensor((3, 64, 256), "float16")
    B: T.Tensor((3, 64, 256), "float16")
    lengths: T.Tensor((3,), "int32")
    C = T.empty((3, 64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for r in T.serial(3):
            T.clear(c)
            for k in T.Pipelined(lengths[r], num_stages=3):
                T.copy(A[r, 0, k * 32], a)
                T.copy(B[r, 0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[r, 0, 0])
    return C


def ragged_expected(a, b, lengths):
    return np.stack([product(x[:, : 32 * n], y[:, : 32 * n].T) for x, y, n in zip(a, b, lengths, strict=True)])


def leaving(A, B, stop):
    """Rows of blocks that a list leaves out, or at which it ends; blocks beyond another list's end return at once."""
    A: T.Tensor((512, 128), "float16")
    B: T.Tensor((64, 128), "float16")
    stop: T.Tensor((8,), "int32")
    C = T.empty((512, 64), "float32")
    with T.Kernel(2, threads=128) as block:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for i, j in T.Parallel(512, 64):
            if i // 64 % 2 == block:
                C[i, j] = -1.0
        if stop[block] == 2:
            T.thread_return()
        for row in T.serial(4):
            if stop[row * 2 + block] == 1:
                continue
            if stop[row * 2 + block] == 2:
                break
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[(row * 2 + block) * 64, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[(row * 2 + block) * 64, 0])
    return C


def leaving_expected(a, b, stop):
    result = np.full((512, 64), -1, np.float32)
    for block in range(2):
        for row in range(block, 8, 2):
            if stop[row] == 2:
                break
            if stop[row] == 0:
                result[row * 64 : row * 64 + 64] = product(a[row * 64 : row * 64 + 64], b.T)
    return result
