"""Attention that never stores its scores: the running maximum and sum of each row rescale what was added up."""

import numpy as np

import tilewright
import tilewright.language as T


@tilewright.jit
def attention(Q, K, V, rows=32, columns=32):
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "float32")
    K: T.Tensor((N, D), "float32")
    V: T.Tensor((N, D), "float32")
    O = T.empty((M, D), "float32")
    with T.Kernel(T.ceildiv(M, rows)) as block:
        q = T.alloc_shared((rows, D), "float32")
        k, v = T.alloc_shared((columns, D), "float32"), T.alloc_shared((columns, D), "float32")
        scores = T.alloc_fragment((rows, columns), "float32")
        weights = T.alloc_shared((rows, columns), "float32")
        result = T.alloc_fragment((rows, D), "float32")
        greatest, before = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
        total, added = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
        T.copy(Q[block * rows, 0], q)
        T.clear(result)
        T.clear(total)
        T.fill(greatest, -1e30)
        for step in T.Pipelined(T.ceildiv(N, columns), num_stages=2):
            T.copy(K[step * columns, 0], k)
            T.copy(V[step * columns, 0], v)
            T.clear(scores)
            T.gemm(q, k, scores, transpose_B=True)
            for i, j in T.Parallel(rows, columns):
                scores[i, j] = T.if_then_else(step * columns + j < N, scores[i, j] / D**0.5, -1e30)
            T.copy(greatest, before)
            T.reduce_max(scores, greatest, dim=1, clear=False)
            for i, j in T.Parallel(rows, columns):
                scores[i, j] = T.exp(scores[i, j] - greatest[i])
            T.reduce_sum(scores, added, dim=1)
            for i in T.Parallel(rows):
                total[i] = total[i] * T.exp(before[i] - greatest[i]) + added[i]
            for i, j in T.Parallel(rows, D):
                result[i, j] = result[i, j] * T.exp(before[i] - greatest[i])
            T.copy(scores, weights)
            T.gemm(weights, v, result)
        for i, j in T.Parallel(rows, D):
            result[i, j] = result[i, j] / total[i]
        T.copy(result, O[block * rows, 0])
    return O


if __name__ == "__main__":
    random = np.random.default_rng(0)
    Q, K, V = (random.standard_normal((n, 64)).astype("float32") for n in (50, 70, 70))
    scores = Q.astype("float64") @ K.T / 8
    weights = np.exp(scores - scores.max(1, keepdims=True))
    assert np.allclose(attention(Q, K, V), weights / weights.sum(1, keepdims=True) @ V, atol=1e-5)
    print("50 queries over 70 keys, within 1e-5")
