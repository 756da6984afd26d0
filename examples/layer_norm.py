"""Layer normalisation, written as a factory: ordinary Python makes one kernel for each width."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit(out_idx=-1)
def layer_norm(width, rows=4, epsilon=1e-5):
    M = T.dynamic("M")

    @T.prim_func
    def kernel(X: T.Tensor((M, width), "float32"), Y: T.Tensor((M, width), "float32")):
        with T.Kernel(T.ceildiv(M, rows)) as block:
            tile = T.alloc_fragment((rows, width), "float32")
            squares = T.alloc_fragment((rows, width), "float32")
            mean = T.alloc_fragment((rows,), "float32")
            variance = T.alloc_fragment((rows,), "float32")
            T.copy(X[block * rows, 0], tile)
            T.reduce_sum(tile, mean, dim=1)
            for i, j in T.Parallel(rows, width):
                tile[i, j] = tile[i, j] - mean[i] / width
            for i, j in T.Parallel(rows, width):
                squares[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(squares, variance, dim=1)
            for i, j in T.Parallel(rows, width):
                tile[i, j] = tile[i, j] * T.rsqrt(variance[i] / width + epsilon)
            T.copy(tile, Y[block * rows, 0])

    return kernel


if __name__ == "__main__":
    X = np.random.default_rng(0).standard_normal((10, 200)).astype("float32")
    centred = X - X.mean(1, keepdims=True, dtype="float64")
    exact = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    assert np.allclose(layer_norm.on("cpu")(200)(X), exact, atol=1e-5)
    print("rows of mean 0 and deviation 1, within 1e-5")
