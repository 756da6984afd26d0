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


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "metal", "hip -arch=gfx942"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_powers_of_two_are_bits_of_numbers_of_either_sign(target: str, dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    divisors = [1, 2, 8, 1 << (bits - 2)]

    @T.prim_func
    def divided_by_bits(A: T.Tensor((SIZE,), dtype), Q: T.Tensor((4, SIZE), dtype), R: T.Tensor((4, SIZE), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(SIZE):
                for number, divisor in list(enumerate(divisors)):
                    Q[number, i] = A[i] // T.cast(divisor, dtype)
                    R[number, i] = A[i] % T.cast(divisor, dtype)

    numbers = (
        np.random.default_rng(bits).integers(-(1 << (bits - 1)), 1 << (bits - 1), SIZE, dtype=np.int64).astype(dtype)
    )
    numbers[:4] = [np.iinfo(dtype).min, -1, 0, np.iinfo(dtype).max]
    kernel = tilewright.compile(divided_by_bits, target=target)
    assert "floordiv" not in kernel.get_kernel_source() and "floormod" not in kernel.get_kernel_source()
    quotients, rest = np.full((4, SIZE), 77, dtype), np.full((4, SIZE), 77, dtype)
    kernel.emulate(numbers, quotients, rest)
    for number, divisor in enumerate(divisors):
        np.testing.assert_array_equal(quotients[number], numbers // np.array(divisor, dtype))
        np.testing.assert_array_equal(rest[number], numbers % np.array(divisor, dtype))
