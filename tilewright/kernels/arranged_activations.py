"""Activations with their columns in another order: that of a weight whose groups were made contiguous (act-order)."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.language.trace import PrimFunc


@tilewright.jit
def arranged_activations(
    columns: int,
    K: int,
    dtype: str = "float16",
    divisors: bool = False,
    block: int = 1024,
    threads: int = 128,
    to: str | None = None,
) -> PrimFunc:
    """``A[m, k] = X[m, order[k]]``, 0 where ``order[k]`` is negative.

    Parameters
    ----------
    columns, K : elements of a row before and after.
    divisors : whether a column is divided by a number of its own first (SmoothQuant), in float32.
    to : type of what is arranged, that of X by default.
    block : elements that a block of threads moves.

    Returns
    -------
    kernel of ``X[M, columns]``, ``order[K]`` (int32), ``divisors[columns]`` (float32; ``[1]`` where there are none) and
    ``A[M, K]``; any M.  What is launched behind it may begin at once and wait for it (`T.pdl_sync`).
    """
    M, made = T.dynamic("M"), to or dtype

    @T.prim_func
    def arranged_activations(
        X: T.Tensor((M, columns), dtype),
        order: T.Tensor((K,), "int32"),
        vector: T.Tensor((columns if divisors else 1,), "float32"),
        A: T.Tensor((M, K), made),
    ):
        with T.Kernel(M, T.ceildiv(K, block), threads=threads) as (m, part):
            T.pdl_trigger()
            tile = T.alloc_fragment((block,), made)
            for j in T.Parallel(block):
                column = order[part * block + j]
                element = T.if_then_else(column >= 0, X[m, T.max(column, 0)], T.cast(0, dtype))
                if divisors:
                    element = T.cast(T.cast(element, "float32") / vector[T.max(column, 0)], made)
                tile[j] = T.cast(element, made)
            T.copy(tile, A[m, part * block])

    return arranged_activations
