"""Pipelined programs of the shapes that roles are made for: the tests of specialisation and those on the GPU run them.

Every program has small integers as inputs, so that any order of sums gives the same bits, and says in NumPy what is
expected.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tilewright.language as T
from tilewright.formats.sparse import compress, expand, prune
from tilewright.kernels.attention import AttentionTiles, flash_attention


@dataclass(frozen=True)
class Program:
    """A kernel, what it is called with, and what comes out.

    Attributes
    ----------
    kernel : the function to compile for `inputs` and the compile-time `options`.
    expected : of `inputs`, in NumPy.
    instructions : opcodes of the machine code that say how its loads and products are made.
    """

    name: str
    kernel: Any
    inputs: tuple[Any, ...]
    expected: Callable[..., np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    instructions: tuple[str, ...] = ("UTMALDG", "HGMMA")
    tolerance: float = 0.0


def integers(*shape, low=-3, high=4, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


# Conditions ---------------------------------------------------------------------------------------


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


# Ways to load -------------------------------------------------------------------------------------


def plain(A, B, stages=3, specialize=None, kernel_specialize=None):
    """A product whose rows may be too uneven for the copy engine; k and n as they come."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128, specialize=kernel_specialize) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages, specialize=specialize):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])
    return C


def decoded(codes):
    """Signed four-bit codes, low first, of rows of bytes."""
    both = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1).astype(np.int32)
    return (both - 8).astype(np.float32)


def decoding_producer(A, codes):
    """Threads of the producer decode four-bit codes from global memory into all of a tile, in the author's layout."""
    A: T.Tensor((128, 256), "float16")
    codes: T.Tensor((64, 128), "uint8")
    C = T.empty((128, 64), "float32")
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.annotate_layout({b: T.Layout((64, 64), lambda i, j: i * 64 + (j ^ (i % 8 * 8)))})
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 64], a)
            for i, j in T.Parallel(64, 64):
                code = (codes[i, k * 32 + j // 2] >> T.cast(j % 2 * 4, "uint8")) & T.cast(15, "uint8")
                b[i, j] = T.cast(T.cast(code, "int32") - 8, "float16")
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def decoding_through_registers(A, codes):
    """The producer's decoding passes through registers of its own."""
    A: T.Tensor((64, 256), "float16")
    codes: T.Tensor((64, 256), "int8")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        raw = T.alloc_fragment((64, 64), "int8")
        wide = T.alloc_fragment((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            T.copy(A[0, k * 64], a)
            T.copy(codes[0, k * 64], raw)
            for i, j in T.Parallel(64, 64):
                wide[i, j] = T.cast(raw[i, j], "float16") * T.cast(2.0, "float16")
            T.copy(wide, b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def decoding_consumer(A, codes):
    """The engine brings codes; the warps that multiply decode them into a tile in the author's layout."""
    A: T.Tensor((128, 256), "float16")
    codes: T.Tensor((64, 128), "uint8")
    C = T.empty((128, 64), "float32")
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((128, 64), "float16")
        packed = T.alloc_shared((64, 32), "uint8")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.annotate_layout({b: T.Layout((64, 64), lambda i, j: i * 64 + (j ^ (i % 8 * 8)))})
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            T.copy(A[0, k * 64], a)
            T.copy(codes[0, k * 32], packed)
            for i, j in T.Parallel(64, 64):
                code = (packed[i, j // 2] >> T.cast(j % 2 * 4, "uint8")) & T.cast(15, "uint8")
                b[i, j] = T.cast(T.cast(code, "int32") - 8, "float16")
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def grouped_mxfp4(A, codes, scales, experts, starts, sizes):
    """Rows in groups, each with the four-bit float weights of its expert: codes and block scales of powers of two."""
    A: T.Tensor((160, 128), "bfloat16")
    codes: T.Tensor((3, 64, 64), "uint8")
    scales: T.Tensor((3, 64, 4), "uint8")
    experts: T.Tensor((4,), "int32")
    starts: T.Tensor((4,), "int32")
    sizes: T.Tensor((4,), "int32")
    C = T.empty((160, 64), "float32")
    with T.Kernel(4, threads=128) as tile:
        a = T.alloc_shared((64, 64), "bfloat16")
        packed = T.alloc_shared((64, 32), "uint8")
        b = T.alloc_shared((64, 64), "bfloat16")
        c = T.alloc_fragment((64, 64), "float32")
        T.annotate_layout({b: T.Layout((64, 64), lambda i, j: i * 64 + (j ^ (i % 8 * 8)))})
        expert = experts[tile]
        start = starts[tile]
        rows = sizes[tile]
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[start, k * 64], a)
            T.copy(codes[expert, 0, k * 32], packed)
            for i, j in T.Parallel(64, 64):
                code = T.cast(packed[i, j // 2] >> T.cast(j % 2 * 4, "uint8"), "int32") & 15
                exponent = (code >> 1) & 3
                half = T.cast(code & 1, "float32") * 0.5
                size = T.if_then_else(exponent == 0, half, (1.0 + half) * T.exp2(T.cast(exponent - 1, "float32")))
                power = T.exp2(T.cast(T.cast(scales[expert, i, k * 2 + j // 32], "int32") - 127, "float32"))
                b[i, j] = T.cast(T.if_then_else(code >= 8, -size, size) * power, "bfloat16")
            T.gemm(a, b, c, transpose_B=True)
        for i, j in T.Parallel(64, 64):
            if i < rows:
                C[start + i, j] = c[i, j]
    return C


def grouped_expected(a, codes, scales, experts, starts, sizes):
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([table, -table])
    both = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    weights = table[both] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, -1)
    result = np.zeros((a.shape[0], 64), np.float32)
    for expert, start, size in zip(experts, starts, sizes, strict=True):
        part = slice(start, start + size)
        result[part] = a[part].astype(np.float64) @ weights[expert].T
    return result


# Several readers, several loops -------------------------------------------------------------------


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


# Attention ----------------------------------------------------------------------------------------


def sparse_attention(Q, K, V, mask, stages=2, group=1):
    """Attention over the blocks of keys that a mask keeps; one stage is how SeerAttention's kernels are written."""
    heads, M, D = T.const("heads, M, D")
    kv_heads, N = T.const("kv_heads, N")
    Q: T.Tensor((heads, M, D), "float16")
    K: T.Tensor((kv_heads, N, D), "float16")
    V: T.Tensor((kv_heads, N, D), "float16")
    mask: T.Tensor((heads, M // 64, N // 64), "int8")
    O = T.empty((heads, M, D), "float32")
    with T.Kernel(M // 64, heads, threads=128) as (block, head):
        q = T.alloc_shared((64, D), "float16")
        k_tile = T.alloc_shared((64, D), "float16")
        v_tile = T.alloc_shared((64, D), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        result = T.alloc_fragment((64, D), "float32")
        top = T.alloc_fragment((64,), "float32")
        before = T.alloc_fragment((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        part = T.alloc_fragment((64,), "float32")
        kept = T.alloc_shared((N // 64,), "int32")
        T.copy(Q[head, block * 64, 0], q)
        T.clear(result)
        T.clear(total)
        T.fill(top, -1e30)
        for i in T.Parallel(N // 64):
            kept[i] = T.cast(mask[head, block, i], "int32")
        for n in T.Pipelined(N // 64, num_stages=stages):
            if kept[n] != 0:
                T.copy(K[head // group, n * 64, 0], k_tile)
                T.clear(scores)
                T.gemm(q, k_tile, scores, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i, j in T.Parallel(64, 64):
                    scores[i, j] = T.exp2(scores[i, j] - top[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(64):
                    before[i] = T.exp2(before[i] - top[i])
                    total[i] = total[i] * before[i] + part[i]
                for i, j in T.Parallel(64, D):
                    result[i, j] *= before[i]
                T.copy(scores, weights)
                T.copy(V[head // group, n * 64, 0], v_tile)
                T.gemm(weights, v_tile, result)
        for i, j in T.Parallel(64, D):
            result[i, j] = T.if_then_else(total[i] > 0.0, result[i, j] / total[i], 0.0)
        T.copy(result, O[head, block * 64, 0])
    return O


def sparse_attention_expected(q, k, v, mask, group=1):
    k, v = (np.repeat(one.astype(np.float64), group, 0) for one in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(1, 2)
    scores = np.where(np.kron(mask != 0, np.ones((1, 64, 64))), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp2(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 0, weights @ v / np.where(total > 0, total, 1), 0)


def sparse_decode(Q, K, V, indices, counts, stages=2):
    """Decoding with grouped queries: each sequence and group reads the blocks of its list, as many as it has."""
    batch, groups, limit = T.const("batch, groups, limit")
    tokens = T.dynamic("tokens")
    Q: T.Tensor((batch, groups, 64, 64), "float16")
    K: T.Tensor((tokens, groups, 64), "float16")
    V: T.Tensor((tokens, groups, 64), "float16")
    indices: T.Tensor((batch, groups, limit), "int32")
    counts: T.Tensor((batch, groups), "int32")
    O = T.empty((batch, groups, 64, 64), "float32")
    with T.Kernel(groups, batch, threads=128) as (group, b):
        q = T.alloc_shared((64, 64), "float16")
        k_tile = T.alloc_shared((64, 64), "float16")
        v_tile = T.alloc_shared((64, 64), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        result = T.alloc_fragment((64, 64), "float32")
        T.copy(Q[b, group, 0, 0], q)
        T.clear(result)
        for n in T.Pipelined(counts[b, group], num_stages=stages):
            block = indices[b, group, n]
            if block >= 0:
                T.copy(K[block * 64 : block * 64 + 64, group, :], k_tile)
                T.copy(V[block * 64 : block * 64 + 64, group, :], v_tile)
                T.gemm(q, k_tile, scores, transpose_B=True, clear_accum=True)
                T.copy(scores, weights)
                T.gemm(weights, v_tile, result)
        T.copy(result, O[b, group, 0, 0])
    return O


def sparse_decode_expected(q, k, v, indices, counts):
    result = np.zeros((*q.shape[:2], 64, 64), np.float32)
    for b, g in np.ndindex(*q.shape[:2]):
        for block in indices[b, g, : counts[b, g]]:
            if block >= 0:
                part = slice(64 * block, 64 * block + 64)
                scores = product(q[b, g], k[part, g].T).astype(np.float16)
                result[b, g] += product(scores, v[part, g])
    return result


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


def attention_expected(q, k, v, causal=False):
    k, v = (np.repeat(one.astype(np.float64), q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if causal:
        rows, columns = scores.shape[2:]
        scores = np.where(np.arange(columns) <= np.arange(rows)[:, None] + columns - rows, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


# All of them --------------------------------------------------------------------------------------


# Sparse operands, author's plans, views ---------------------------------------------------------------------


def sparse_gemm(A, E, B, block=(128, 64, 64), stages=3):
    """What was kept of A, its metadata and B on their way together; K is no multiple of a step."""
    M, N, K = T.const("M, N, K")
    BM, BN, BK = block
    A: T.Tensor((M, K // 2), "float16")
    E: T.Tensor((M, K // 8), "uint8")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=2 * BM) as (bx, by):
        a = T.alloc_shared((BM, BK // 2), "float16")
        e = T.alloc_shared((BM, BK // 8), "uint8")
        b = T.alloc_shared((BN, BK), "float16")
        c = T.alloc_fragment((BM, BN), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK // 2], a)
            T.copy(E[by * BM, k * BK // 8], e)
            T.copy(B[bx * BN, k * BK], b)
            T.gemm_sp(a, e, b, c, transpose_B=True)
        T.copy(c, C[by * BM, bx * BN])
    return C


def sparse_inputs(M, N, K):
    return *compress(prune(integers(M, K))), integers(N, K, seed=1)


def sparse_expected(kept, metadata, b):
    return product(expand(kept, metadata), b.T)


def overlapped(Q, K, V, stage=None, order=None):
    """Attention's two gemms without its softmax: the first one's result is carried into the next iteration's second."""
    Q: T.Tensor((64, 64), "float16")
    K: T.Tensor((256, 64), "float16")
    V: T.Tensor((256, 64), "float16")
    O = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        q = T.alloc_shared((64, 64), "float16")
        keys = T.alloc_shared((64, 64), "float16")
        values = T.alloc_shared((64, 64), "float16")
        weights = T.alloc_shared((64, 64), "float16")
        scores = T.alloc_fragment((64, 64), "float32")
        total = T.alloc_fragment((64, 64), "float32")
        T.copy(Q, q)
        T.clear(total)
        for n in T.Pipelined(4, num_stages=2, stage=stage, order=order):
            T.copy(K[n * 64, 0], keys)
            T.clear(scores)
            T.gemm(q, keys, scores, transpose_B=True)
            T.copy(scores, weights)
            T.copy(V[n * 64, 0], values)
            T.gemm(weights, values, total)
        T.copy(total, O)
    return O


def overlapped_expected(q, k, v):
    return product(product(q, k.T).astype(np.float16), v)


def seen_otherwise(A, B):
    """A gemm's operand is read as words too, in its slots."""
    A: T.Tensor((192, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((192, 64), "float32")
    with T.Kernel(3, threads=128) as by:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        words = T.view(a, (32, 64), "uint32")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] + T.cast(words[i // 2, i % 2 * 32 + j // 2] >> 31, "float32")
        T.copy(c, C[by * 64, 0])
    return C


def seen_otherwise_expected(a, b):
    signs = np.ascontiguousarray(a).view(np.uint32) >> 31
    return product(a, b.T) + np.repeat(signs.reshape(192, 4, 32).sum(1), 2, axis=1).astype(np.float32)


def _grouped_inputs():
    rng = np.random.default_rng(0)
    a = integers(160, 128).astype(ml_dtypes.bfloat16)
    codes, scales = (
        rng.integers(0, 256, (3, 64, 64)).astype(np.uint8),
        rng.integers(125, 130, (3, 64, 4)).astype(np.uint8),
    )
    lists = [np.array(one, np.int32) for one in ([0, 1, 1, 2], [0, 40, 104, 120], [40, 64, 16, 40])]
    return (a, codes, scales, *lists)


def _attention_inputs(kv_heads):
    rng = np.random.default_rng(0)
    q, k, v = (integers(heads, rows, 64, low=-1, high=2, seed=seed)
               for seed, (heads, rows) in enumerate([(2, 128), (kv_heads, 192), (kv_heads, 192)]))  # fmt: skip
    mask = rng.integers(0, 2, (2, 2, 3)).astype(np.int8)
    mask[0, 0] = 0
    return q, k, v, mask


def _decode_inputs():
    q = integers(2, 2, 64, 64, low=-1, high=2)
    k, v = (integers(320, 2, 64, low=-1, high=2, seed=seed) for seed in (1, 2))
    indices = np.array([[[4, 0, 2], [1, -1, 3]], [[2, 2, 0], [0, 0, 0]]], np.int32)
    return q, k, v, indices, np.array([[3, 3], [1, 0]], np.int32)


MASK = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.int32)
BLOCKS = np.random.default_rng(1).integers(0, 2, (2, 2, 4)).astype(np.int32)
A, B = integers(128, 512), integers(64, 512, seed=1)
WIDE_A, SMALL_A, ODD_A, TINY_A = integers(128, 256), integers(64, 256), integers(70, 256), integers(64, 128)
WIDE_B, OTHER_B = integers(64, 256, seed=1), integers(64, 256, seed=2)
SMALL_WIDE = integers(64, 512, seed=7)
HEADS = tuple(integers(1, heads, rows, 64, seed=8) for heads, rows in ((2, 150), (1, 201), (1, 201)))
BYTES = np.random.default_rng(2).integers(0, 256, (64, 128)).astype(np.uint8)
SMALL_Q, WIDE_K, WIDE_V = (integers(*shape, seed=seed) for seed, shape in enumerate([(64, 64), (256, 64), (256, 64)]))
CP_ASYNC, MIXED, SIMT = (
    ("LDGSTS", "ARRIVES.LDGSTSBAR", "HGMMA"),
    ("LDGSTS", "UTMALDG", "HGMMA"),
    ("STS", "UTMALDG", "HGMMA"),
)

PROGRAMS = [
    Program("sparse gemm", sparse_gemm, sparse_inputs(200, 136, 416), sparse_expected, instructions=("UTMALDG", "LDGSTS", "HGMMA.SP.64x64x32.F32")),
    Program("sparse gemm of whole tiles", sparse_gemm, sparse_inputs(256, 128, 512), sparse_expected, {"block": (128, 64, 128)},
            ("UTMALDG", "HGMMA.SP.64x64x32.F32")),
    Program("the author's plan", overlapped, (SMALL_Q, WIDE_K, WIDE_V), overlapped_expected,
            {"stage": (0, 0, 0, 0, 0, 1), "order": (0, 2, 3, 4, 1, 5)}),
    Program("views of slots", seen_otherwise, (integers(192, 256), integers(64, 256, seed=1)), seen_otherwise_expected),
    Program("masked", masked, (A, B, MASK), masked_expected),
    Program("masked one stage", masked, (A, B, MASK), masked_expected, {"stages": 1}),
    Program("nothing masked in", masked, (A, B, 0 * MASK), masked_expected),
    Program("block sparse gemm", block_sparse, (WIDE_A, integers(256, 128, seed=3), BLOCKS), block_sparse_expected),
    Program("ragged lengths", ragged, (integers(3, 64, 256), integers(3, 64, 256, seed=1), np.array([8, 0, 5], np.int32)),
            ragged_expected),
    Program("leaving", leaving, (integers(512, 128), integers(64, 128, seed=1), np.array([0, 0, 0, 1, 2, 0, 0, 0], np.int32)),
            leaving_expected),
    Program("returning", leaving, (integers(512, 128), integers(64, 128, seed=1), np.array([0, 2, 0, 0, 1, 0, 0, 0], np.int32)),
            leaving_expected),
    Program("cp.async alone", plain, (integers(70, 196), integers(196, 68, seed=1)), product, instructions=CP_ASYNC),
    Program("mixed stages", plain, (integers(70, 200), integers(200, 68, seed=1)), product, instructions=MIXED),
    Program("decoding producer", decoding_producer, (WIDE_A, BYTES), lambda a, b: product(a, decoded(b).T),
            instructions=SIMT),
    Program("decoding through registers", decoding_through_registers,
            (SMALL_A, integers(64, 256, dtype=np.int8, seed=4)), lambda a, b: 2 * product(a, b.T), instructions=SIMT),
    Program("decoding consumer", decoding_consumer, (WIDE_A, BYTES), lambda a, b: product(a, decoded(b).T),
            instructions=SIMT),
    Program("grouped mxfp4", grouped_mxfp4, _grouped_inputs(), grouped_expected, instructions=SIMT),
    Program("two gemms", two_gemms, (SMALL_A, WIDE_B, OTHER_B),
            lambda a, b, d: np.stack([product(a, b.T), product(a, d.T)])),
    Program("loops in a row", loops_in_a_row, (integers(256, 256), WIDE_B), loops_expected),
    Program("nested", nested, (TINY_A, integers(3, 64, 128, seed=5)), nested_expected),
    Program("persistent", persistent, (A, integers(128, 512, seed=6)), lambda a, b: product(a, b.T)),
    Program("no trips", counted, (ODD_A, WIDE_B, 1), counted_expected),
    Program("shorter than the pipeline", counted, (ODD_A, WIDE_B, 3), counted_expected),
    Program("counted at launch", counted, (ODD_A, WIDE_B, 8), counted_expected),
    Program("walking", walking, (SMALL_WIDE, B, np.array([0, 2, -1, 3, 1, 9], np.int32)), walking_expected),
    Program("attention", flash_attention.direct.function, HEADS, attention_expected,
            {"dtype": "float16", "tiles": AttentionTiles(128, 64, 256)}, tolerance=3e-3),
    Program("causal attention", flash_attention.direct.function, HEADS, lambda *heads: attention_expected(*heads, causal=True),
            {"dtype": "float16", "causal": True, "tiles": AttentionTiles(64, 64, 128, 1)}, tolerance=3e-3),
    Program("block sparse attention", sparse_attention, _attention_inputs(2), sparse_attention_expected, tolerance=2e-3),
    Program("seer attention", sparse_attention, _attention_inputs(2), sparse_attention_expected, {"stages": 1},
            tolerance=2e-3),
    Program("ragged sparse decode", sparse_decode, _decode_inputs(), sparse_decode_expected),
]  # fmt: skip
