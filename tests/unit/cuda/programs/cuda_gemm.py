"""A matmul in the language for the tests of the cuda target: every type, order and tile size."""

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.specialization import JITFunction


def matmul(
    A, B, dtype="float16", accumulator="float32", out="float32", block=(64, 64, 32), transpose_A=False, transpose_B=True,
    threads=128, num_stages=2,
):  # fmt: skip
    M, N, K = T.const("M, N, K")
    block_M, block_N, block_K = block
    A: T.Tensor((K, M) if transpose_A else (M, K), dtype)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), out)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_K, block_M) if transpose_A else (block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), accumulator)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            if transpose_A:
                T.copy(A[k * block_K, by * block_M], A_shared)
            else:
                T.copy(A[by * block_M, k * block_K], A_shared)
            if transpose_B:
                T.copy(B[bx * block_N, k * block_K], B_shared)
            else:
                T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_A=transpose_A, transpose_B=transpose_B)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


FAMILIES = {"sm_": "cuda", "apple": "metal", "gfx": "hip"}
"""Targets by how the names of their architectures begin."""


def target_of(architecture):
    """The target for an architecture's name, or one with further options: ``"sm_90a -cores=4"``."""
    return next(f"{name} -arch={architecture}" for start, name in FAMILIES.items() if architecture.startswith(start))


def on(architecture, function):
    """A direct function compiled for an architecture of any maker's GPU."""
    function = getattr(getattr(function, "direct", None), "function", function)
    return JITFunction(function, target_of(architecture), None)


def operands(m, n, k, dtype, transpose_A=False, transpose_B=True, seed=0):
    """Random operands; small integers over their whole range."""
    rng = np.random.default_rng(seed)
    record = dtype_of(dtype)

    def make(rows, columns):
        if record.is_integer:
            low, high = int(record.minimum), int(record.maximum)
            return rng.integers(low, high, (rows, columns), endpoint=True).astype(record.numpy)
        return rng.standard_normal((rows, columns)).astype(record.numpy)

    return make(*((k, m) if transpose_A else (m, k))), make(*((n, k) if transpose_B else (k, n)))


def product(a, b, transpose_A=False, transpose_B=True):
    """The exact product, and the sum of the absolute products that error bounds are made of."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    a, b = (a.T if transpose_A else a), (b.T if transpose_B else b)
    return a @ b, np.abs(a) @ np.abs(b)


__all__ = ["matmul", "on", "operands", "product", "tilewright"]
