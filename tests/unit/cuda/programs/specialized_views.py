"""Pipelined programs with sparse operands, authors' plans and views of slots."""

import numpy as np
from specialized_base import integers, product

import tilewright.language as T
from tilewright.formats.sparse import compress, expand, prune


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
