"""Sizes of grids and outputs as Python's authors write them: ``-(-n // 32)`` is a quotient rounded up."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.compat.tilelang import cdiv


@pytest.mark.parametrize("rounded", [lambda n: -(-n // 32), lambda n: cdiv(n, 32)], ids=["negated", "cdiv"])
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"])
def test_a_grid_rounded_up_by_negation(target: str, rounded: object) -> None:
    """It ended in a KeyError from inside when the kernel was called."""
    n = T.dynamic("n")

    @T.prim_func
    def doubled(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(rounded(n), threads=32) as block:
            for i in T.Parallel(32):
                B[block * 32 + i] = A[block * 32 + i] * 2

    kernel = tilewright.compile(doubled, target=target)
    for size in (1, 32, 33, 77):
        a = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
            b = np.full(size, np.nan, np.float32)
            run(a, b)
            assert np.array_equal(b, a * 2)
