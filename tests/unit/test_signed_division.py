"""Division and remainder of signed numbers that come of unsigned ones of as many bits: they may be negative."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

SIZE = 37


@T.prim_func
def divided(A: T.Tensor((SIZE,), "uint32"), n: T.uint32, Q: T.Tensor((SIZE,), "int32"), R: T.Tensor((2,), "int32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(SIZE):
            Q[i] = T.cast(A[i], "int32") // 3
        for i in T.Parallel(2):
            R[i] = T.cast(n, "int32") // 3 if i == 0 else T.cast(n, "int32") % 7


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
@pytest.mark.parametrize("n", [5, 0xFFFFFFFD, 0x80000000])
def test_numbers_above_the_signed_ones_round_down(target: str, n: int) -> None:
    kernel = tilewright.compile(divided, target=target)
    numbers = np.random.default_rng(n).integers(0, 1 << 32, SIZE, dtype=np.uint32)
    quotients, rest = np.full(SIZE, 77, np.int32), np.full(2, 77, np.int32)
    run = kernel if target == "cpu" else kernel.emulate
    run(numbers, np.uint32(n), quotients, rest)
    signed = int(np.uint32(n).view(np.int32))
    np.testing.assert_array_equal(quotients, numbers.view(np.int32) // 3)
    np.testing.assert_array_equal(rest, [signed // 3, signed % 7])
