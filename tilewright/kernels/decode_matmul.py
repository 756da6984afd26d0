"""Products with a quantised weight on a machine with matrix units: tiles of the weight become numbers in shared memory.

Each tile of codes is decoded once for all rows of a tile of activations, then multiplied like any other; the
weight stays row-major, as `QuantizedWeight.packed` gives it.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels.quant_matmul import InvalidGroup


@tilewright.jit
def decode_matmul(
    N: int,
    K: int,
    weights: str = "uint4",
    group: int = 128,
    zero: float | None = None,
    dtype: str = "float16",
    out: str = "float16",
    block_M: int = 64,
    block_N: int = 64,
    block_K: int = 64,
    threads: int = 128,
    num_stages: int = 3,
) -> Any:
    """``C = A ((codes - zeros) * scales)^T``, sums in float32, any number of rows.

    Parameters
    ----------
    weights : type of the codes.
    group : elements of K that share a scale.
    zero : the one zero point of all groups, or None where the kernel takes a tensor of them.
    dtype, out : of A and of C.

    Returns
    -------
    kernel of ``A[M, K]``, ``W[N, K]`` (as bytes: packed along K, row-major), ``scales[K / group, N]`` (float32), ``zeros`` of the
    same shape where `zero` is None, and ``C[M, N]``.

    Raises
    ------
    InvalidGroup : K is no whole number of bytes of codes.
    """
    M = T.dynamic("M")
    groups = -(-K // group)
    record = dtype_of(weights)
    bits, share = record.bits, record.per_byte
    if K % share:
        raise InvalidGroup(share, K)
    sign = 1 << (bits - 1) if record.is_signed else 0

    @T.macro
    def multiply(A: Any, W: Any, scales: Any, zeros: Any, C: Any) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            codes = T.alloc_shared((block_N, block_K // share), "uint8")
            W_shared = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(W[bx * block_N, k * (block_K // share)], codes)
                for i, j in T.Parallel(block_N, block_K):
                    code = T.cast(codes[i, j // share], "int32") >> (j % share * bits) & ((1 << bits) - 1)
                    place = ((k * block_K + j) // group, bx * block_N + i)
                    offset = zero if zeros is None else zeros[place]
                    # A signed code is extended by its highest bit: (code ^ sign) - sign.
                    W_shared[i, j] = T.cast((T.cast((code ^ sign) - sign, "float32") - offset) * scales[place], dtype)
                T.gemm(A_shared, W_shared, total, transpose_B=True)
            T.copy(total, C[by * block_M, bx * block_N])

    if zero is not None:

        @T.prim_func
        def decode_matmul_one_zero(
            A: T.Tensor((M, K), dtype),
            W: T.Tensor((N, K // share), "uint8"),
            scales: T.Tensor((groups, N), "float32"),
            C: T.Tensor((M, N), out),
        ):
            multiply(A, W, scales, None, C)

        return decode_matmul_one_zero

    @T.prim_func
    def decode_matmul_zeros(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // share), "uint8"),
        scales: T.Tensor((groups, N), "float32"),
        zeros: T.Tensor((groups, N), "float32"),
        C: T.Tensor((M, N), out),
    ):
        multiply(A, W, scales, zeros, C)

    return decode_matmul_zeros
