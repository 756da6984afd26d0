"""The sum of two arrays: a grid of blocks, and elements that run in any order."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def add(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 1024)) as block:
        for i in T.Parallel(1024):
            C[block * 1024 + i] = A[block * 1024 + i] + B[block * 1024 + i]
    return C


if __name__ == "__main__":
    A, B = np.random.default_rng(0).standard_normal((2, 100_003), dtype="float32")
    assert np.array_equal(add(A, B), A + B)
    print("100,003 sums, and the last block has only 675 of its 1,024 elements to do")
