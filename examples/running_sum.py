"""Running sums along rows."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def running_sum(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "int32")
    Y = T.empty((M, N), "int32")
    with T.Kernel(M) as row:
        tile = T.alloc_shared((1, N), "int32")
        T.copy(X[row, 0], tile)
        T.cumsum(tile, dim=1)
        T.copy(tile, Y[row, 0])
    return Y


if __name__ == "__main__":
    X = np.random.default_rng(0).integers(-100, 100, (5, 333)).astype("int32")
    assert np.array_equal(running_sum(X), np.cumsum(X, axis=1))
    print("5 rows of 333 running sums")
