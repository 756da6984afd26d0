"""Programs whose consumers work at different tiles in turn: the tests in the emulator and those on the GPU run them."""

from __future__ import annotations

import numpy as np
from specialized_base import Program, integers, product

import tilewright.language as T


def plain(A, B, block=(64, 64, 32), stages=3, persistent=None, cluster=None, threads=128, ping_pong=True):
    """Accumulators leave as they are; rows and k known at launch only."""
    M, K = T.dynamic("M, K")
    N = T.const("N")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float16")
    rows, columns, deep = block
    grid = T.ceildiv(N, columns), T.ceildiv(M, rows)
    ways = {"persistent": persistent, "cluster_dims": cluster, "ping_pong": ping_pong}
    with T.Kernel(*grid, threads=threads, **ways) as (bx, by):
        a = T.alloc_shared((rows, deep), "float16")
        b = T.alloc_shared((columns, deep), "float16")
        c = T.alloc_fragment((rows, columns), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, deep), num_stages=stages):
            T.copy(A[by * rows, k * deep], a)
            T.copy(B[bx * columns, k * deep], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * rows, bx * columns])
    return C


def normed(A, B, persistent=None):
    """Results pass through a shared tile of the author's; sums of columns through one that the compiler makes."""
    M = T.dynamic("M")
    N, K = T.const("N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    grid = T.ceildiv(N, 32), T.ceildiv(M, 64)
    with T.Kernel(*grid, threads=128, cluster_dims=1, persistent=persistent, ping_pong=True) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((64, 32), "float32")
        turned = T.alloc_shared((64, 32), "float32")
        sums = T.alloc_fragment((32,), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 32, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.reduce_sum(c, sums, dim=0)
        for i, j in T.Parallel(64, 32):
            turned[63 - i, j] = c[i, j] + sums[j]
        T.cumsum(turned, dim=1)
        for i, j in T.Parallel(64, 32):
            C[by * 64 + i, bx * 32 + j] = turned[i, j]
    return C


def normed_expected(a, b):
    tiles = -(-len(a) // 64)
    padded = np.zeros((tiles * 64, len(b)), np.float32)
    padded[: len(a)] = product(a, b.T)
    parts = padded.reshape(tiles, 64, -1)
    turned = (parts + parts.sum(1, keepdims=True))[:, ::-1].reshape(tiles * 64, -1, 32)
    return turned.cumsum(-1).reshape(tiles * 64, -1)[: len(a)]


def triangle(A, persistent=True):
    """Tiles that differ in their steps, the first one without any."""
    M = T.const("M")
    A: T.Tensor((M, 256), "float16")
    C = T.empty((M, 64), "float32")
    with T.Kernel(1, T.ceildiv(M, 64), threads=128, persistent=persistent, ping_pong=True) as (bx, by):
        a, c = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(by * 3 % 5, num_stages=2):
            T.copy(A[by * 64, k * 64], a)
            T.gemm(a, a, c, transpose_B=True)
        T.copy(c, C[by * 64, bx * 64])
    return C


def triangle_expected(a):
    wide = a.astype(np.float32)
    parts = [wide[by * 64 : by * 64 + 64, : by * 3 % 5 * 64] for by in range(-(-len(a) // 64))]
    return np.concatenate([one @ one.T for one in parts])


def programs(rows: int) -> list[Program]:
    """Products of so many rows, in tiles of 64: of every form one."""

    def made(name, kernel, inputs, expected, **options):
        return Program(name, kernel, inputs, expected, options)

    def rounded(a, b):
        return product(a, b.T).astype(np.float16)

    def operands(depth, columns=64):
        return integers(rows, depth), integers(columns, depth, seed=1)

    found = [
        made(f"{depth} columns of k, {tiles}", plain, operands(depth), rounded, persistent=persistent, stages=stages)
        for depth, stages in ((0, 2), (8, 1), (40, 2), (200, 3))
        for tiles, persistent in (("dealt", None), ("claimed", "claim"))
    ]
    wide = {"block": (64, 128, 32), "cluster": (1, 2)}
    found += [
        made("pairs of blocks", plain, operands(96, 256), rounded, **wide),
        made("two warpgroups each", plain, operands(96), rounded, block=(128, 32, 32), threads=256),
        made("through shared memory", normed, operands(72), normed_expected),
        made("through shared memory, claimed", normed, operands(72), normed_expected, persistent="claim"),
    ]
    long = integers(rows // 64 * 64, 256)
    found += [
        made("of different length", triangle, (long,), triangle_expected),
        made("of different length, claimed", triangle, (long,), triangle_expected, persistent="claim"),
    ]
    return found
