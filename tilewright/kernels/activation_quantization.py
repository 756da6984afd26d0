"""Activations as int8 or 8-bit floats with one scale a token: each row's largest magnitude becomes the type's largest value.

``scale = max |x| / limit``, ``code = round(x * (limit / max |x|))``, both in float32; a row of zeros has scale 0.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels.rows import BLOCK_ELEMENTS

SHARE = 1024
"""Elements that a block reads at once of a row that it cannot hold whole."""


def limit_of(to: str) -> float:
    """The largest magnitude of a type that activations are quantised to."""
    return 127.0 if to == "int8" else float(dtype_of(to).maximum)


@tilewright.jit
def quantize_activations(
    K: int, dtype: str = "float16", to: str = "int8", divisors: bool = False, threads: int = 128
) -> Any:
    """One scale a token.

    Parameters
    ----------
    K : elements of a token.
    dtype : of the activations.
    to : ``"int8"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    divisors : whether activations are divided by a vector first (SmoothQuant).

    Returns
    -------
    kernel of ``X[M, K]``, ``divisors[K]`` (float32; ``[1]`` where there are none), ``codes[M, K]`` and ``scales[M, 1]`` (float32);
    any M.
    """
    M, limit = T.dynamic("M"), limit_of(to)
    whole = 0 < K <= BLOCK_ELEMENTS
    share = K if whole else SHARE

    @T.macro
    def load(X: Any, vector: Any, m: Any, first: Any, tile: Any) -> None:
        for one, k in T.Parallel(1, share):
            column = first + k
            value = T.cast(X[m, column], "float32")
            tile[one, k] = value / T.if_then_else(column < K, vector[column], 1.0) if divisors else value

    @T.macro
    def write(codes: Any, m: Any, first: Any, tile: Any, inverse: Any) -> None:
        for one, k in T.Parallel(1, share):
            scaled = tile[one, k] * inverse
            codes[m, first + k] = T.cast(T.round(scaled) if to == "int8" else scaled, to)

    @T.prim_func
    def quantize_activations(
        X: T.Tensor((M, K), dtype),
        vector: T.Tensor((K if divisors else 1,), "float32"),
        codes: T.Tensor((M, K), to),
        scales: T.Tensor((M, 1), "float32"),
    ):
        with T.Kernel(M, threads=threads) as m:
            tile = T.alloc_fragment((1, share), "float32")
            largest = T.alloc_fragment((1,), "float32")
            if whole:
                load(X, vector, m, 0, tile)
                T.reduce_absmax(tile, largest, dim=1)
            else:
                most = T.alloc_fragment((1,), "float32")
                T.clear(most)
                for block in T.serial(T.ceildiv(K, share)):
                    load(X, vector, m, block * share, tile)
                    T.reduce_absmax(tile, largest, dim=1)
                    for one in T.Parallel(1):
                        most[one] = T.max(most[one], largest[one])
                for one in T.Parallel(1):
                    largest[one] = most[one]
            inverse = T.if_then_else(largest[0] > 0.0, limit / largest[0], 0.0)
            if whole:
                write(codes, m, 0, tile, inverse)
            else:
                for block in T.serial(T.ceildiv(K, share)):
                    load(X, vector, m, block * share, tile)
                    write(codes, m, block * share, tile, inverse)
            for one in T.Parallel(1):
                scales[m, one] = largest[one] / limit

    return quantize_activations
