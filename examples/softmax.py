"""The softmax of each row: reductions over tiles, and sizes known only at launch."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def softmax(X, rows=4):
    M = T.dynamic("M")
    N = T.const("N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, rows)) as block:
        tile = T.alloc_fragment((rows, N), "float32")
        greatest = T.alloc_fragment((rows,), "float32")
        total = T.alloc_fragment((rows,), "float32")
        T.copy(X[block * rows, 0], tile)
        T.reduce_max(tile, greatest, dim=1)
        for i, j in T.Parallel(rows, N):
            tile[i, j] = T.exp(tile[i, j] - greatest[i])
        T.reduce_sum(tile, total, dim=1)
        for i, j in T.Parallel(rows, N):
            tile[i, j] = tile[i, j] / total[i]
        T.copy(tile, Y[block * rows, 0])
    return Y


if __name__ == "__main__":
    random = np.random.default_rng(0)
    for M in (1, 7, 64):  # one kernel for all
        X = random.standard_normal((M, 300)).astype("float32")
        powers = np.exp(X.astype("float64") - X.max(1, keepdims=True))
        assert np.allclose(softmax(X), powers / powers.sum(1, keepdims=True), atol=1e-6)
    print("rows of 300 elements, softmax within 1e-6")
