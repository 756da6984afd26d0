"""Products of activations with low-bit weights: ``C = A (codes - zeros) * scales``, any number of rows.

The weight is packed once (``kernel.pack``); its codes are unpacked in registers next to the multiplication.
Scales and zero points belong to groups along K; both are given group by group, ``[K / group, N]``, so that
the columns of a tile lie side by side.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T

FEW_ROWS = 32
"""Up to here a block has few rows, so that short batches waste nothing on rows that do not exist."""


@tilewright.jit
def quant_matmul_int8(
    N: int,
    K: int,
    weights: str = "uint4",
    group: int = 128,
    zero: float | None = None,
    activations: str = "float32",
    out: str = "float32",
    block_N: int = 96,
) -> Any:
    """``C[M, N]`` from activations that are quantised to int8, one scale a token, as part of the call.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``; `group` divides K.
    weights : type of the codes, an unsigned or signed integer of at most 8 bits.
    group : elements of K that share a scale; K itself for one scale a column.
    zero : the one zero point of all groups (0 for signed codes, 8 for offset uint4), or None where the kernel
        takes a tensor of them.
    activations, out : float types of A and C.

    Returns
    -------
    kernel of ``A[M, K]``, ``W`` (packed), ``scales[K / group, N]`` float32, without `zero` also
    ``zeros[K / group, N]`` float32, giving ``C[M, N]``.
    """
    groups = K // group
    M = T.dynamic("M")

    @T.macro
    def quantise(A: Any, codes: Any, token_scale: Any, sums: Any) -> None:
        """Every token to int8 by its largest magnitude, with the sum of each group for the zero points."""
        with T.Kernel(M, threads=1) as m:
            row = T.alloc_fragment((groups, group), "float32")
            largest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((groups,), "float32")
            for g, k in T.Parallel(groups, group):
                row[g, k] = T.cast(A[m, g * group + k], "float32")
            T.reduce_absmax(T.reshape(row, (1, K)), largest, dim=1)
            inverse = T.if_then_else(largest[0] > 0.0, 127.0 / largest[0], 0.0)
            for g, k in T.Parallel(groups, group):
                row[g, k] = T.round(row[g, k] * inverse)
                codes[m, g * group + k] = T.cast(row[g, k], "int8")
            T.reduce_sum(row, total, dim=1)
            token_scale[m] = largest[0] / 127.0
            for g in T.Parallel(groups):
                sums[m, g] = total[g]

    @T.macro
    def multiply(
        codes: Any, token_scale: Any, sums: Any, W: Any, scales: Any, zeros: Any, C: Any, block_M: int
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=1) as (bn, bm):
            tile = T.alloc_shared((block_M, group), "int8")
            weight = T.alloc_fragment((block_N, group), "uint8" if weights.startswith("u") else "int8")
            shift = T.alloc_fragment((groups, block_N), "float32")
            result = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(result)
            for g in T.serial(groups):
                T.copy(codes[bm * block_M, g * group], tile)
                T.decode(W[bn * block_N : bn * block_N + block_N, g * group : g * group + group], weight)
                T.gemm(tile, weight, result, transpose_B=True, scale_B=scales[g, bn * block_N : bn * block_N + block_N])
            if zero is None or zero != 0:
                for g, n in T.Parallel(groups, block_N):
                    point = zeros[g, bn * block_N + n] if zero is None else zero
                    shift[g, n] = -point * scales[g, bn * block_N + n]
                T.gemm(sums[bm * block_M : bm * block_M + block_M, 0:groups], shift, result)
            for m, n in T.Parallel(block_M, block_N):
                C[bm * block_M + m, bn * block_N + n] = T.cast(result[m, n] * token_scale[bm * block_M + m], out)

    @T.macro
    def both(A: Any, W: Any, scales: Any, zeros: Any, C: Any) -> None:
        codes = T.alloc_global((M, K), "int8")
        token_scale = T.alloc_global((M,), "float32")
        sums = T.alloc_global((M, groups), "float32")
        quantise(A, codes, token_scale, sums)
        if M <= FEW_ROWS:
            multiply(codes, token_scale, sums, W, scales, zeros, C, 16)
        else:
            multiply(codes, token_scale, sums, W, scales, zeros, C, 128)

    if zero is None:

        @T.prim_func
        def quant_matmul(
            A: T.Tensor((M, K), activations),
            W: T.Packed((N, K), weights),
            scales: T.Tensor((groups, N), "float32"),
            zeros: T.Tensor((groups, N), "float32"),
            C: T.Tensor((M, N), out),
        ):
            both(A, W, scales, zeros, C)

        return quant_matmul

    @T.prim_func
    def quant_matmul(
        A: T.Tensor((M, K), activations),
        W: T.Packed((N, K), weights),
        scales: T.Tensor((groups, N), "float32"),
        C: T.Tensor((M, N), out),
    ):
        both(A, W, scales, None, C)

    return quant_matmul
