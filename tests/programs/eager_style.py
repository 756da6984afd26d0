"""Kernels that are called like functions: constants found in shapes, results made inside, several kernels in a row, tuned, and what may be asked of them."""

import itertools

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit
def gemm(A, B, out_dtype: T.dtype = T.float32, block_M: int = 64, block_N: int = 64, block_K: int = 32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[K, N], T.float16]
    C = T.empty((M, N), out_dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), A.dtype)
        B_shared = T.alloc_shared((block_K, block_N), B.dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@tilelang.jit
def layer_norm(X, gamma, beta, eps: float = 1e-5, blk: int = 8):
    M = T.dynamic("M")
    N = T.const("N")
    X: T.Tensor[[M, N], T.float32]
    gamma: T.Tensor[[N], T.float32]
    beta: T.Tensor[[N], T.float32]
    Y = T.empty((M, N), T.float32)
    mean_out = T.empty((M,), T.float32)
    with T.Kernel(T.ceildiv(M, blk), threads=128) as bx:
        x = T.alloc_fragment((blk, N), T.float32)
        dev_ = T.alloc_fragment((blk, N), T.float32)
        mean = T.alloc_fragment((blk,), T.float32)
        var = T.alloc_fragment((blk,), T.float32)
        T.copy(X[bx * blk : (bx + 1) * blk, :], x)
        T.reduce_sum(x, mean, dim=1)
        for i in T.Parallel(blk):
            mean[i] /= N
        for i, j in T.Parallel(blk, N):
            dev_[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
        T.reduce_sum(dev_, var, dim=1)
        for i, j in T.Parallel(blk, N):
            x[i, j] = (x[i, j] - mean[i]) * T.rsqrt(var[i] / N + eps) * gamma[j] + beta[j]
        T.copy(x, Y[bx * blk : (bx + 1) * blk, :])
        T.copy(mean, mean_out[bx * blk])
    return Y, mean_out


@tilelang.jit
def split_sum(X, parts: int = 4, block: int = 128):
    """Two kernels in one function, with a workspace between."""
    N = T.const("N")
    X: T.Tensor[[N], T.float32]
    partial = T.alloc_global((parts,), T.float32)
    total = T.empty((1,), T.float32)
    per = (N + parts - 1) // parts
    with T.Kernel(parts, threads=block) as p:
        acc = T.alloc_fragment((block,), T.float32)
        one = T.alloc_fragment((1,), T.float32)
        T.clear(acc)
        for i in range(T.ceildiv(per, block)):
            for j in T.Parallel(block):
                if i * block + j < per and p * per + i * block + j < N:
                    acc[j] += X[p * per + i * block + j]
        T.reduce_sum(acc, one, dim=0)
        partial[p] = one[0]
    with T.Kernel(1, threads=32):
        s = T.alloc_var(T.float32)
        s = 0.0
        for i in T.serial(parts):
            s += partial[i]
        total[0] = s
    return total


@tilelang.autotune(configs=[{"block": b, "vec": v} for b, v in itertools.product((64, 128), (1, 4))], warmup=1, rep=1)
@tilelang.jit
def scaled_add(A, B, alpha: float, block: int = 64, vec: int = 1):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block * vec), threads=block) as bx:
        for i in T.Parallel(block * vec):
            C[bx * block * vec + i] = A[bx * block * vec + i] + alpha * B[bx * block * vec + i]
    return C


@tilelang.jit
def strided_rows(X):
    M, N, S = T.const("M, N, S")
    X: T.StridedTensor[[M, N], [S, 1], T.float32]
    Y = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=64) as bx:
        for j in T.Parallel(N):
            Y[bx, j] = X[bx, j] * 2.0
    return Y


if __name__ == "__main__":
    for shape in ((96, 128, 64), (64, 64, 160)):
        a = torch.randn(shape[0], shape[2], device=dev).half()
        b = torch.randn(shape[2], shape[1], device=dev).half()
        torch.testing.assert_close(gemm(a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-2)
    c = gemm(a, b, out_dtype=T.float16, block_M=32)
    assert c.dtype == torch.float16
    kernel = gemm.compile(a, b)
    torch.testing.assert_close(kernel(a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-2)
    assert "gemm" in gemm.get_kernel_source(a, b)
    x, g, be = torch.randn(21, 96, device=dev), torch.randn(96, device=dev), torch.randn(96, device=dev)
    y, mean = layer_norm(x, g, be)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (96,), g, be), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mean, x.mean(1), rtol=1e-4, atol=1e-5)
    x = torch.randn(1000, device=dev)
    torch.testing.assert_close(split_sum(x)[0], x.sum(), rtol=1e-4, atol=1e-3)
    p, q = torch.randn(1000, device=dev), torch.randn(1000, device=dev)
    torch.testing.assert_close(scaled_add(p, q, 0.5), p + 0.5 * q)
    wide = torch.randn(8, 100, device=dev)
    torch.testing.assert_close(strided_rows(wide[:, 10:60]), wide[:, 10:60] * 2)
    print("ok")
