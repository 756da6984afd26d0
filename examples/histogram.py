"""How often each value occurs: atomic sums into a tensor that many blocks share."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def histogram(X, counts):
    N = T.const("N")
    X: T.Tensor((N,), "uint8")
    counts: T.Tensor((256,), "int32")
    with T.Kernel(T.ceildiv(N, 4096)) as block:
        for i in T.Parallel(4096):
            if block * 4096 + i < N:
                T.atomic_add(counts[T.cast(X[block * 4096 + i], "int32")], 1)


if __name__ == "__main__":
    X = np.random.default_rng(0).integers(0, 256, 50_001).astype("uint8")
    counts = np.zeros(256, "int32")
    histogram(X, counts)
    assert np.array_equal(counts, np.bincount(X, minlength=256))
    print("50,001 bytes counted")
