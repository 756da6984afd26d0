"""``C = (A * scales_A) @ (B * scales_B)`` of 8-bit floats by `T.fp8_scaled_matmul`, for every machine, type and kind of
scale."""

from __future__ import annotations

import math
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.kernels.values import Tile, Value
from tilewright.language.trace import PrimFunc

STEP = 64
"""Columns of K of a step at most, where a group has no more."""

TILE, THREADS, STAGES = (64, 64), 128, 3


@tilewright.jit
def fp8_matmul(
    N: int,
    K: int,
    A_dtype: str = "float8_e4m3fn",
    B_dtype: str | None = None,
    out: str = "float32",
    kinds: tuple[str, str] = ("tensor", "tensor"),
    group: int = 0,
    each: int = 1,
    transpose_B: bool = False,
    exact: bool = False,
    fast: bool = False,
) -> PrimFunc:
    """Product of two matrices with scales.

    Parameters
    ----------
    A_dtype, B_dtype, out : of the operands and the result; B's is A's where not given.
    kinds : of A's scales and of B's: ``"tensor"``, one for all, ``"lines"``, one for each row of A or column of B, or
        ``"groups"``, one for each `group` columns of K of a row of A, and of a run of `each` columns of B.
    transpose_B : whether B is ``[N, K]``.
    exact, fast : as for `T.fp8_scaled_matmul`.

    Returns
    -------
    kernel of ``A[M, K]``, ``scales_A`` (``[1]``, ``[M]`` or ``[M, K / group]``), B, ``scales_B`` (``[1]``, ``[N]`` or
    ``[ceil(N / each), K / group]``) and ``C[M, N]``; any M.
    """
    M = T.dynamic("M")
    how = {"transpose_B": transpose_B, "exact": exact, "fast": fast}
    grouped = "groups" in kinds
    deep = group * max(STEP // group, 1) if grouped else STEP  # whole groups
    rows, columns = TILE
    if grouped and each > 1:  # a tile has whole blocks, or lies in one
        columns = each * (columns // each) if each <= columns else math.gcd(columns, each)
    parts = deep // group if grouped else 1
    groups = K // group if grouped else 1
    shapes = [
        {"tensor": (1,), "lines": (lines,), "groups": (blocks, groups)}[kind]
        for kind, lines, blocks in zip(kinds, (M, N), (M, -(-N // each)))
    ]

    @T.macro
    def scale(S: Tile, kind: str, first: Value, count: int, run: int, k: Value) -> Any:
        if kind == "lines":
            return S[first : first + count]
        if kind == "groups":
            lines = max(count // run, 1)
            return S[first // run : first // run + lines, k * parts : k * parts + parts]
        return S

    @T.prim_func
    def fp8_matmul(
        A: T.Tensor((M, K), A_dtype),
        scales_A: T.Tensor(shapes[0], "float32"),
        B: T.Tensor((N, K) if transpose_B else (K, N), B_dtype or A_dtype),
        scales_B: T.Tensor(shapes[1], "float32"),
        C: T.Tensor((M, N), out),
    ):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=THREADS) as (bx, by):
            row, column = by * rows, bx * columns
            a = T.alloc_shared((rows, deep), A_dtype)
            b = T.alloc_shared((columns, deep) if transpose_B else (deep, columns), B_dtype or A_dtype)
            total = T.alloc_fragment((rows, columns), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, deep), num_stages=STAGES):
                T.copy(A[row, k * deep], a)
                T.copy(B[(column, k * deep) if transpose_B else (k * deep, column)], b)
                of_a = scale(scales_A, kinds[0], row, rows, 1, k)
                of_b = scale(scales_B, kinds[1], column, columns, each, k)
                T.fp8_scaled_matmul(a, of_a, b, of_b, total, scale_block_size=group if grouped else None, **how)
            T.copy(total, C[row, column])

    return fp8_matmul
