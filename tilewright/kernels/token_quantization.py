"""Activations in 8 bits, with a scale a token or a group of its elements: ``codes = X / scale``, rounded to nearest.

The scale is the largest magnitude over the largest code: 127 of int8, 448 of e4m3, 57344 of e5m2.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T


@T.macro
def quantize_row(row: Any, scale: Any) -> None:
    """Replace the numbers of a token, a tile of float32, by their codes, and store its scale in ``scale[0]``."""
    groups, group = row.shape
    largest = T.alloc_fragment((1,), "float32")
    T.reduce_absmax(T.reshape(row, (1, groups * group)), largest, dim=1)
    inverse = T.if_then_else(largest[0] > 0.0, 127.0 / largest[0], 0.0)
    for g, k in T.Parallel(groups, group):
        row[g, k] = T.round(row[g, k] * inverse)
    scale[0] = largest[0] / 127.0


@tilewright.jit
def quantize_tokens(X: Any, dtype: str = "float32") -> Any:
    """Quantise every row of ``X[M, K]`` to int8, to the nearest code, ties to even.

    Returns
    -------
    ``codes[M, K]`` of int8 and ``scales[M]`` of float32; a row of zeros has scale 0.
    """
    M, K = T.dynamic("M"), T.const("K")
    X: T.Tensor((M, K), dtype)
    codes = T.empty((M, K), "int8")
    scales = T.empty((M,), "float32")
    with T.Kernel(M, threads=128) as m:
        row = T.alloc_fragment((1, K), "float32")
        scale = T.alloc_fragment((1,), "float32")
        for k in T.Parallel(K):
            row[0, k] = T.cast(X[m, k], "float32")
        quantize_row(row, scale)
        for k in T.Parallel(K):
            codes[m, k] = T.cast(row[0, k], "int8")
        scales[m] = scale[0]
    return codes, scales


LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest code of each type."""


@tilewright.jit
def quantize_activations(K: int, dtype: str = "bfloat16", out: str = "int8", group: int | None = None) -> Any:
    """Quantise every row of an activation, each element read once.

    Parameters
    ----------
    K : elements of a row.
    dtype, out : of the activation, and of the codes: int8, float8_e4m3fn or float8_e5m2.
    group : elements that share a scale; None for one scale a row.  It divides K.

    Returns
    -------
    kernel of ``X[M, K]``, ``codes[M, K]`` and ``scales[M]`` (float32), with groups ``scales[K / group, M]``, as
    `block_scaled_matmul` takes them; any M.  What is all zero has scale 0.
    """
    M, most = T.dynamic("M"), LARGEST[out]
    shape = (K // group, group) if group else (1, K)
    threads = 256 if K >= 4096 else 128

    @T.macro
    def quantize(X: Any, codes: Any, scales: Any) -> None:
        with T.Kernel(M, threads=threads) as m:
            row = T.alloc_fragment(shape, "float32")
            largest = T.alloc_fragment((shape[0],), "float32")
            factor = T.alloc_fragment((shape[0],), "float32")
            for g, k in T.Parallel(*shape):
                row[g, k] = T.cast(X[m, g * shape[1] + k], "float32")
            T.reduce_absmax(row, largest, dim=1)
            for g in T.Parallel(shape[0]):
                factor[g] = T.if_then_else(largest[g] > 0.0, most / largest[g], 0.0)
                if group:
                    scales[g, m] = largest[g] / most
                else:
                    scales[m] = largest[g] / most
            for g, k in T.Parallel(*shape):
                scaled = row[g, k] * factor[g]
                codes[m, g * shape[1] + k] = T.cast(T.round(scaled) if out == "int8" else scaled, out)

    if group:

        @T.prim_func
        def quantize_groups(
            X: T.Tensor((M, K), dtype), codes: T.Tensor((M, K), out), scales: T.Tensor((K // group, M), "float32")
        ):
            quantize(X, codes, scales)

        return quantize_groups

    @T.prim_func
    def quantize_rows(X: T.Tensor((M, K), dtype), codes: T.Tensor((M, K), out), scales: T.Tensor((M,), "float32")):
        quantize(X, codes, scales)

    return quantize_rows
