"""Programs with `T.fp8_scaled_matmul`, their operands and exact results."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright.language as T
from tilewright.ir.dtypes import ALL

E4M3, E5M2, E8M0 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"
DEEP = 32
"""Columns that share a scale of a block."""

CASES: dict[str, dict[str, Any]] = {
    "rows and columns": {},
    "the other order": {"transpose_B": True},
    "one scale each": {"kinds": ("one", "one")},
    "one for A, columns for B": {"kinds": ("one", "lines"), "transpose_B": True},
    "blocks of 32": {"kinds": ("blocks", "blocks")},
    "blocks that all rows share": {"kinds": ("shared", "blocks"), "transpose_B": True},
    "halves": {"exact": True},
    "sums of all of K": {"fast": True, "transpose_B": True},
    "two types": {"types": (E4M3, E5M2)},
    "AMD's own types": {"types": ("float8_e4m3fnuz", "float8_e5m2fnuz"), "transpose_B": True},
    "out of tensors": {"staged": False, "stages": 0},
    "tiles of a warpgroup": {"tile": (64, 64, 192), "transpose_B": True},
    "a row": {"tile": (1, 32, 96), "size": (1, 40, 192)},
}


def program(
    size: tuple[int, int, int] = (48, 40, 192), tile: tuple[int, int, int] = (32, 32, 64), types: tuple[str, str] = (E4M3, E4M3),
    kinds: tuple[str, str] = ("lines", "lines"), transpose_B: bool = False, exact: bool = False, fast: bool = False,
    staged: bool = True, stages: int = 2, out: str = "float32",
) -> tuple[T.PrimFunc, list[np.ndarray], np.ndarray]:  # fmt: skip
    """A product in tiles, its arguments with the result last, and what that should be."""
    (M, N, K), (BM, BN, BK) = size, tile
    blocked = any(kind in ("blocks", "shared") for kind in kinds)
    scale_type = E8M0 if blocked else "float32"
    shapes = [
        {"one": (1,), "lines": (lines,), "blocks": (lines, K // DEEP), "shared": (K // DEEP,)}[kind]
        for kind, lines in zip(kinds, (M, N))
    ]

    @T.macro
    def scale(S: Any, kind: str, first: Any, count: int, k: Any) -> Any:
        parts = BK // DEEP
        if kind == "lines":
            return S[first : first + count]
        if kind == "blocks":
            return S[first : first + count, k * parts : k * parts + parts]
        return S[k * parts : k * parts + parts] if kind == "shared" else S

    @T.prim_func
    def product(
        A: T.Tensor((M, K), types[0]), SA: T.Tensor(shapes[0], scale_type),
        B: T.Tensor((N, K) if transpose_B else (K, N), types[1]), SB: T.Tensor(shapes[1], scale_type), C: T.Tensor((M, N), out),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            row, column = by * BM, bx * BN
            a = T.alloc_shared((BM, BK), types[0])
            b = T.alloc_shared((BN, BK) if transpose_B else (BK, BN), types[1])
            c = T.alloc_fragment((BM, BN), "float32")
            T.clear(c)
            for k in T.Pipelined(K // BK, num_stages=stages):
                of_a, of_b = scale(SA, kinds[0], row, BM, k), scale(SB, kinds[1], column, BN, k)
                from_a = A[row : row + BM, k * BK : k * BK + BK]
                from_b = (
                    B[column : column + BN, k * BK : k * BK + BK]
                    if transpose_B
                    else B[k * BK : k * BK + BK, column : column + BN]
                )
                if staged:
                    T.copy(from_a, a)
                    T.copy(from_b, b)
                    T.fp8_scaled_matmul(a, of_a, b, of_b, c, transpose_B=transpose_B, exact=exact, fast=fast)
                else:
                    T.fp8_scaled_matmul(from_a, of_a, from_b, of_b, c, transpose_B=transpose_B, exact=exact, fast=fast)
            T.copy(c, C[row, column])

    rng = np.random.default_rng(M * N + K)
    a = rng.standard_normal((M, K)).astype(ALL[types[0]].numpy)
    b = rng.standard_normal((N, K) if transpose_B else (K, N)).astype(ALL[types[1]].numpy)
    scales = [
        (np.exp2(rng.integers(-4, 4, shape)) if blocked else rng.random(shape) + 0.5).astype(ALL[scale_type].numpy)
        for shape in shapes
    ]
    wide = [_over_k(one, kind, lines, K) for one, kind, lines in zip(scales, kinds, (M, N))]
    right = b.astype(np.float64) if transpose_B else b.astype(np.float64).T
    expected = (a.astype(np.float64) * wide[0]) @ (right * wide[1]).T
    return product, [a, scales[0], b, scales[1], np.full((M, N), np.nan, ALL[out].numpy)], expected


def _over_k(scales: np.ndarray, kind: str, lines: int, K: int) -> np.ndarray:
    numbers = scales.astype(np.float64)
    if kind in ("one", "lines"):
        return numbers.reshape(-1, 1)
    return np.repeat(np.broadcast_to(numbers.reshape(-1, K // DEEP), (lines, K // DEEP)), DEEP, axis=1)
