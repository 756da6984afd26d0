"""A transposed copy through shared memory: both sides are read and written along rows."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def transpose(A, size=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((N, M), "float32")
    with T.Kernel(T.ceildiv(N, size), T.ceildiv(M, size)) as (bx, by):
        tile = T.alloc_shared((size, size), "float32")
        turned = T.alloc_shared((size, size), "float32")
        T.copy(A[by * size, bx * size], tile)
        T.transpose(tile, turned)
        T.copy(turned, B[bx * size, by * size])
    return B


if __name__ == "__main__":
    A = np.arange(100 * 70, dtype="float32").reshape(100, 70)
    assert np.array_equal(transpose(A), A.T)
    print("100 x 70 elements turned")
