"""Activations in int8, one scale a token: ``codes = round(X / scale)`` with ``scale = max |X| / 127`` of the row."""

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
