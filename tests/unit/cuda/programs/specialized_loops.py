"""Pipelined programs with several readers of a tile, and several loops."""

import numpy as np
from specialized_base import product

import tilewright.language as T


def two_gemms(A, B, D):
    """Three tiles an iteration, released at different points: one serves both gemms."""
    A: T.Tensor((64, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    D: T.Tensor((64, 256), "float16")
    C = T.empty((2, 64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        d = T.alloc_shared((64, 64), "float16")
        c0 = T.alloc_fragment((64, 64), "float32")
        c1 = T.alloc_fragment((64, 64), "float32")
        T.clear(c0)
        T.clear(c1)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c0, transpose_B=True)
            T.copy(D[0, k * 64], d)
            T.gemm(a, d, c1, transpose_B=True)
        T.copy(c0, C[0, 0, 0])
        T.copy(c1, C[1, 0, 0])
    return C


def loops_in_a_row(A, B):
    """Two loops of different depths over the same tiles, work between and behind them, in a loop over tiles."""
    A: T.Tensor((256, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((256, 64), "float32")
    with T.Kernel(2, threads=128) as block:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for turn in T.serial(2):
            row = (turn * 2 + block) * 64
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[row, k * 32], a)
                T.copy(B[0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] * 2.0
            for k in T.Pipelined(3, 8, num_stages=3):
                T.copy(A[row, k * 32], a)
                T.copy(B[0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                C[row + i, j] = c[i, j] + 1.0
    return C


def loops_expected(a, b):
    return 2 * product(a[:, :96], b[:, :96].T) + product(a[:, 96:], b[:, 96:].T) + 1


def nested(A, B):
    """A pipeline inside a pipeline, each with loads and a depth of its own."""
    A: T.Tensor((64, 128), "float16")
    B: T.Tensor((3, 64, 128), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        first = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for j in T.Pipelined(3, num_stages=2):
            T.copy(B[j, 0, 64], first)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, k * 32], a)
                T.copy(B[j, 0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            for x, y in T.Parallel(64, 64):
                c[x, y] = c[x, y] + T.cast(first[x, y], "float32")
        T.copy(c, C)
    return C


def nested_expected(a, b):
    return sum(product(a, one.T) + one[:, 64:].astype(np.float32) for one in b)


def persistent(A, B, blocks=3):
    """Blocks stay for many tiles of unequal number; loads of the next tile run beside the stores of the last."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(blocks, threads=128) as block:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for turn in T.serial(T.ceildiv((M // 64) * (N // 64), blocks)):
            tile = turn * blocks + block
            if tile < (M // 64) * (N // 64):
                by = tile // (N // 64)
                bx = tile % (N // 64)
                T.clear(c)
                for k in T.Pipelined(K // 64, num_stages=3):
                    T.copy(A[by * 64, k * 64], a)
                    T.copy(B[bx * 64, k * 64], b)
                    T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[by * 64, bx * 64])
    return C


def counted(A, B, count: T.int32, stages=4):
    """A trip count known only at launch, from block 1 on."""
    M = T.dynamic("M")
    A: T.Tensor((M, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((M, 64), "float32")
    with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(1, count, num_stages=stages):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 64, 0])
    return C


def counted_expected(a, b, count):
    return product(a[:, 32 : 32 * max(count, 1)], b[:, 32 : 32 * max(count, 1)].T)


def walking(A, B, steps):
    """Where to load from is kept in a scalar that conditions move on; the bound of the loop is one too."""
    A: T.Tensor((64, 512), "float16")
    B: T.Tensor((64, 512), "float16")
    steps: T.Tensor((6,), "int32")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        place = T.alloc_var("int32", 0)
        T.clear(c)
        for k in T.Pipelined(6, num_stages=3):
            if steps[k] > 0:
                place = place + steps[k]
            if place < 8:
                T.copy(A[0, place * 64], a)
                T.copy(B[0, place * 64], b)
                T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def walking_expected(a, b, steps):
    places = [place for place in np.cumsum(np.maximum(steps, 0)) if place < 8]
    return sum(product(a[:, p * 64 : p * 64 + 64], b[:, p * 64 : p * 64 + 64].T) for p in places)
