"""Several rows of a length that threads do not divide: they share rows all the same, and what is beyond the end counts for nothing."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T


def centred(columns, rows, threads):
    m = T.dynamic("m")

    @T.prim_func
    def program(
        X: T.Tensor((m, columns), "float16"),
        Y: T.Tensor((m, columns), "float16"),
        most: T.Tensor((m,), "float32"),
        sums: T.Tensor((T.ceildiv(m, rows), columns), "float32"),
    ):
        with T.Kernel(T.ceildiv(m, rows), threads=threads) as block:
            x = T.alloc_fragment((rows, columns), "float32")
            staged = T.alloc_shared((rows, columns), "float16")
            mean = T.alloc_fragment((rows,), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            column = T.alloc_fragment((columns,), "float32")
            T.copy(X[block * rows, 0], x)
            T.reduce_sum(x, mean, dim=1)
            T.reduce_absmax(x, largest, dim=1)
            T.reduce_sum(x, column, dim=0)
            T.copy(largest, most[block * rows])
            T.copy(column, sums[block, :])
            for i, j in T.Parallel(rows, columns):
                staged[i, j] = x[i, j] - mean[i] / columns + column[j]
            T.copy(staged, Y[block * rows, 0])

    return program


@pytest.mark.parametrize("columns, rows, threads", [(200, 8, 256), (1000, 4, 256), (100, 3, 128), (130, 4, 96)])
def test_rows_of_any_length(columns, rows, threads):
    kernel = tilewright.compile(centred(columns, rows, threads), target="cuda -arch=sm_80")
    assert next(iter(kernel.resources().values()))["registers"] < 100  # a row in one thread took all 255
    x = np.random.default_rng(0).integers(-3, 4, (2 * rows + 1, columns)).astype(np.float16)
    y, most = np.full_like(x, np.nan), np.full(len(x), np.nan, np.float32)
    sums = np.full((3, columns), np.nan, np.float32)
    kernel.emulate(x, y, most, sums, schedule="random", poison=0x9E3779B97F4A7C15)
    wide = np.zeros((3 * rows, columns))
    wide[: len(x)] = x
    assert np.array_equal(most, np.abs(x).max(1)) and np.array_equal(sums, wide.reshape(3, rows, columns).sum(1))
    expected = x - x.astype(float).mean(1, keepdims=True) + np.repeat(sums, rows, 0)[: len(x)]
    assert np.allclose(y, expected, atol=2e-2)
