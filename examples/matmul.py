"""A matrix product with a bias and a ReLU behind it: tiles, a pipelined loop, an epilogue in registers."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def dense(A, B, bias, block_M=64, block_N=64, block_K=32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float32")
    B: T.Tensor((K, N), "float32")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
        a = T.alloc_shared((block_M, block_K), "float32")
        b = T.alloc_shared((block_K, block_N), "float32")
        c = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
            T.copy(A[by * block_M, k * block_K], a)
            T.copy(B[k * block_K, bx * block_N], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(block_M, block_N):
            c[i, j] = T.max(c[i, j] + bias[bx * block_N + j], 0.0)
        T.copy(c, C[by * block_M, bx * block_N])
    return C


if __name__ == "__main__":
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(shape).astype("float32") for shape in ((100, 77), (77, 130)))
    bias = random.standard_normal(130).astype("float32")
    exact = np.maximum(A.astype("float64") @ B + bias, 0)
    assert np.allclose(dense(A, B, bias), exact, atol=1e-4)
    print("100 x 130 results of 77 products each, within 1e-4")
