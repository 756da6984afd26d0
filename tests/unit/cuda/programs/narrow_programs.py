"""Kernels on tiles of elements narrower than a byte, for the tests of the cuda target: here and on a GPU."""

import ml_dtypes
import numpy as np
from cuda_gemm import on

import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.ir.dtypes import pack, unpack

NARROW = ("int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn")


def staged_copy(A, size, dtype="int4", block=(16, 64), num_stages=2):
    """Tile by tile through shared memory and registers, into memory of the same type."""
    M, N = size
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block[0]), threads=64) as by:
        tile = T.alloc_shared(block, dtype)
        values = T.alloc_fragment(block, dtype)
        for n in T.Pipelined(T.ceildiv(N, block[1]), num_stages=num_stages):
            T.copy(A[by * block[0], n * block[1]], tile)
            T.copy(tile, values)
            T.copy(values, B[by * block[0], n * block[1]])
    return B


def staged_in_shared(A, size, dtype="int4", block=(16, 64)):
    """Out of one shared tile, element by element into another, which leaves as it is."""
    M, N = size
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block[1]), T.ceildiv(M, block[0]), threads=64) as (bx, by):
        tile = T.alloc_shared(block, dtype)
        turned = T.alloc_shared(block, dtype)
        T.copy(A[by * block[0], bx * block[1]], tile)
        for i, j in T.Parallel(*block):
            turned[i, block[1] - 1 - j] = tile[i, j]
        for i, j in T.Parallel(*block):
            tile[i, j] = turned[i, block[1] - 1 - j]
        T.copy(tile, B[by * block[0], bx * block[1]])
    return B


def widened(A, size, dtype="int4", out="float16", block=(16, 64)):
    """As numbers of another type, by `T.copy` and by a cast of each element."""
    M, N = size
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), out)
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block[1]), T.ceildiv(M, block[0]), threads=64) as (bx, by):
        tile = T.alloc_shared(block, dtype)
        values = T.alloc_fragment(block, out)
        T.copy(A[by * block[0], bx * block[1]], tile)
        T.copy(tile, values)
        T.copy(values, B[by * block[0], bx * block[1]])
        for i, j in T.Parallel(*block):
            C[by * block[0] + i, bx * block[1] + j] = T.cast(A[by * block[0] + i, bx * block[1] + j], "float32") * 2.0
    return B, C


def narrowed(A, dtype="int4", block=(16, 64)):
    """Numbers rounded into the narrow type."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block[1]), T.ceildiv(M, block[0]), threads=64) as (bx, by):
        for i, j in T.Parallel(*block):
            B[by * block[0] + i, bx * block[1] + j] = T.cast(A[by * block[0] + i, bx * block[1] + j], dtype)
    return B


def scattered(A, size, dtype="int4"):
    """Neighbours of a byte written by different threads, and some of them not at all."""
    M, N = size
    A: T.Tensor((M, N), dtype)
    B = T.empty((N, M), dtype)
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=64) as (bx, by):
        for i, j in T.Parallel(16, 32):
            B[bx * 32 + j, by * 16 + i] = T.cast(0, dtype)
        T.sync_threads()
        for i, j in T.Parallel(16, 32):
            if (i + j) % 3 != 0:
                B[bx * 32 + j, by * 16 + i] = A[by * 16 + i, bx * 32 + j]
    return B


def ends_of_rows(A, size, dtype="int4"):
    """One element of each row, by a thread of its own."""
    M, N = size
    A: T.Tensor((M, N), dtype)
    B = T.empty((M,), dtype)
    with T.Kernel(T.ceildiv(M, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = A[bx * 64 + i, N - 1]
    return B


def decoded_product(X, W, S, dtype="int4", group=32, block=(32, 32, 64), num_stages=2, threads=128):
    """``X @ decode(W).T`` with a scale a group, decoded into a shared operand."""
    M, N, K = T.const("M, N, K")
    G = T.const("G")
    block_M, block_N, block_K = block
    X: T.Tensor((M, K), "float16")
    W: T.Tensor((N, K), dtype)
    S: T.Tensor((N, G), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        X_shared = T.alloc_shared((block_M, block_K), "float16")
        W_shared = T.alloc_shared((block_N, block_K), dtype)
        S_shared = T.alloc_shared((block_N, block_K // group), "float16")
        W_decoded = T.alloc_shared((block_N, block_K), "float16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(X[by * block_M, k * block_K], X_shared)
            T.copy(W[bx * block_N, k * block_K], W_shared)
            T.copy(S[bx * block_N, k * (block_K // group)], S_shared)
            T.decode(W_shared, W_decoded, scale=S_shared, group_size=group)
            T.gemm(X_shared, W_decoded, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def product_from_registers(X, W, dtype="int4", block=(64, 32, 64), num_stages=2):
    """``decode(W) @ X.T`` with the weights as the product's operand in registers."""
    M, N, K = T.const("M, N, K")
    block_M, block_N, block_K = block
    X: T.Tensor((N, K), "float16")
    W: T.Tensor((M, K), dtype)
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        W_shared = T.alloc_shared((block_M, block_K), dtype)
        X_shared = T.alloc_shared((block_N, block_K), "float16")
        codes = T.alloc_fragment((block_M, block_K), dtype)
        W_local = T.alloc_fragment((block_M, block_K), "float16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(W[by * block_M, k * block_K], W_shared)
            T.copy(X[bx * block_N, k * block_K], X_shared)
            T.copy(W_shared, codes)
            T.copy(codes, W_local)
            T.gemm(W_local, X_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def dynamic_rows(X, A, dtype="int4", block=(16, 64)):
    """Rows of any length: copied, and added to the same numbers in bytes."""
    M, N = T.dynamic("M, N")
    X: T.Tensor((M, N), "int8")
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), dtype)
    C = T.empty((M, N), "int8")
    with T.Kernel(T.ceildiv(M, block[0]), threads=64) as by:
        tile = T.alloc_shared(block, dtype)
        for n in T.Pipelined(T.ceildiv(N, block[1]), num_stages=2):
            T.copy(A[by * block[0], n * block[1]], tile)
            T.copy(tile, B[by * block[0], n * block[1]])
            for i, j in T.Parallel(*block):
                C[by * block[0] + i, n * block[1] + j] = X[by * block[0] + i, n * block[1] + j] + T.cast(
                    tile[i, j], "int8"
                )
    return B, C


def views_of_bytes(A, dtype="int4"):
    """Bytes that arrive as bytes, read by element."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "uint8")
    per_byte = dtype_of(dtype).per_byte
    B = T.empty((M, N * per_byte), "int8")
    with T.Kernel(T.ceildiv(M, 16), threads=64) as by:
        tile = T.alloc_shared((16, N), "uint8")
        T.copy(A[by * 16, 0], tile)
        elements = T.view(tile, (16, N * per_byte), dtype)
        for i, j in T.Parallel(16, N * per_byte):
            B[by * 16 + i, j] = T.cast(elements[i, j], "int8")
    return B


def codes(shape, dtype, seed=0):
    """Random elements of a narrow type, and the same packed; what is left of each row's last byte is not zero."""
    rng = np.random.default_rng(seed)
    record = dtype_of(dtype)
    per_byte = record.per_byte
    raw = rng.integers(0, 256, (*shape[:-1], -(-shape[-1] // per_byte)), dtype=np.uint8)
    return unpack(raw, record, shape[-1]), raw


__all__ = ["NARROW", "codes", "dtype_of", "ml_dtypes", "np", "on", "pack", "unpack"]
