"""Pipelined programs whose tiles are loaded, or decoded, in every way."""

import numpy as np

import tilewright.language as T


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
