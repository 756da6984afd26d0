"""Pipelined programs of every shape that roles are made for; the tests of specialisation and the GPU's run them."""

import numpy as np

import tilewright.language as T


def masked(A, B, mask, stages=3):
    """Blocks of k that a mask chooses: the slots follow the iterations that run."""
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
    return a[:, chosen].astype(np.float32) @ b[:, chosen].astype(np.float32).T


def block_sparse(A, B, mask, stages=2):
    """A mask of blocks kept in shared memory before the loop, with a name that chains to the next."""
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
            if shifted > 1:
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[k * 64, bx * 64], b)
                T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])
    return C


def block_sparse_expected(a, b, mask):
    wide = np.kron(mask[:, :, :] != 0, np.ones((1, 1, 1)))
    result = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j, k in zip(*np.nonzero(wide), strict=True):
        rows, columns, deep = (slice(64 * one, 64 * one + 64) for one in (i, j, k))
        result[rows, columns] += a[rows, deep].astype(np.float32) @ b[deep, columns].astype(np.float32)
    return result
