"""Products on MFMA and WMMA: their values in the emulator, what the text calls, what clang makes of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hip_programs import EVERY, on

from tilewright.ir.dtypes import ALL

from cuda_gemm import matmul, operands  # isort: skip

TYPES = [
    ("gfx90a", "float16", "float32", "mfma_m16n16k32"), ("gfx90a", "bfloat16", "float32", "mfma_m16n16k32"), ("gfx90a", "int8", "int32", "mfma_m16n16k16"),
    ("gfx942", "float16", "float32", "mfma_m16n16k32"), ("gfx942", "bfloat16", "float32", "mfma_m16n16k32"), ("gfx942", "int8", "int32", "mfma_m16n16k32"),
    ("gfx942", "float8_e4m3fnuz", "float32", "mfma_m16n16k32"), ("gfx942", "float8_e5m2fnuz", "float32", "mfma_m16n16k32"),
    ("gfx942", "float8_e4m3fn", "float32", "mfma_m16n16k32_through_half"), ("gfx1100", "float8_e5m2", "float32", "wmma_m16n16k16_through_half"),
    ("gfx90a", "float8_e5m2", "float32", "mfma_m16n16k32_through_bfloat16"),
    ("gfx90a", "float8_e4m3fn", "float32", "mfma_m16n16k32_through_half"), ("gfx1100", "float8_e4m3fn", "float32", "wmma_m16n16k16_through_half"),
    ("gfx942", "float32", "float32", "mfma_m16n16k4"), ("gfx942", "float64", "float64", "mfma_m16n16k4"),
    ("gfx950", "float16", "float32", "mfma_m16n16k32"), ("gfx950", "int8", "int32", "mfma_m16n16k32"),
    ("gfx950", "float8_e4m3fn", "float32", "mfma_m16n16k32"), ("gfx950", "float8_e5m2", "float32", "mfma_m16n16k32"),
    ("gfx1100", "float16", "float32", "wmma_m16n16k16"), ("gfx1100", "bfloat16", "float32", "wmma_m16n16k16"),
    ("gfx1100", "int8", "int32", "wmma_m16n16k16"), ("gfx1100", "uint8", "int32", "wmma_m16n16k16"),
    ("gfx1201", "float16", "float32", "wmma12_m16n16k16"), ("gfx1201", "bfloat16", "float32", "wmma12_m16n16k16"),
    ("gfx1201", "int8", "int32", "wmma12_m16n16k16"), ("gfx1201", "uint8", "int32", "wmma12_m16n16k16"),
    ("gfx90a", "float16", "float16", "mfma_m16n16k32_into_half"), ("gfx942", "float16", "float16", "mfma_m16n16k32_into_half"),
    ("gfx950", "float16", "float16", "mfma_m16n16k32_into_half"), ("gfx1100", "float16", "float16", "wmma_m16n16k16_into_half"),
    ("gfx1201", "float16", "float16", "wmma12_m16n16k16_into_half"),
    ("gfx1201", "float8_e4m3fn", "float32", "wmma12_m16n16k16"), ("gfx1201", "float8_e5m2", "float32", "wmma12_m16n16k16"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "dtype", "accumulator", "function"), TYPES)
@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_products_are_right(arch, dtype, accumulator, function, transposed):
    transpose_a, transpose_b = transposed
    sizes = (40, 52, 72) if transposed == (False, True) else (64, 48, 64)
    a, b = operands(*sizes, dtype, transpose_A=transpose_a, transpose_B=transpose_b, seed=3)
    kernel = on(arch, matmul).compile(
        a, b, dtype=dtype, accumulator=accumulator, out=accumulator, block=(32, 32, 32), transpose_A=transpose_a, transpose_B=transpose_b
    )  # fmt: skip
    assert f"tw::{function}(" in kernel.get_kernel_source()
    got = kernel.emulate(a, b).astype(np.float64)
    left, right = (a.T if transpose_a else a).astype(np.float64), (b.T if transpose_b else b).astype(np.float64)
    if (arch, dtype) == ("gfx90a", "float16"):  # which takes subnormal halves for zeros
        left, right = (np.where(np.abs(one) < 2.0**-14, 0, one) for one in (left, right))
    bound = {"float64": 1e-13, "int32": 0, "float16": 2.0**-11 * 5}.get(
        accumulator, 3e-7
    )  # halves are rounded at each step
    assert (np.abs(got - left @ right) <= bound * (np.abs(left) @ np.abs(right))).all()


@pytest.mark.parametrize("arch", EVERY)
@pytest.mark.parametrize("dtype", ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"))
def test_least_numbers_of_eight_bits_are_multiplied(arch, dtype):
    """Where they are subnormal halves, too: MI200 takes those for zeros, and the emulator does."""
    codes = np.arange(256, dtype=np.uint8).view(ALL[dtype].numpy)
    a = np.ascontiguousarray(np.where(np.isfinite(codes.astype(np.float32)), codes, codes[1]).reshape(8, 32))
    b = np.zeros((32, 32), a.dtype)
    np.fill_diagonal(b, 1)
    kernel = on(arch, matmul).compile(a, b, dtype=dtype, accumulator="float32", out="float32", block=(32, 32, 32))
    assert (kernel.emulate(a, b) == a.astype(np.float32)).all()


def test_one_kernel_of_each_generation_compiles_without_scratch():
    for arch, instruction in (
        ("gfx90a", "v_mfma_f32_16x16x16f16"), ("gfx942", "v_mfma_f32_16x16x16_f16"), ("gfx950", "v_mfma_f32_16x16x32_f16"),
        ("gfx1100", "v_wmma_f32_16x16x16_f16"), ("gfx1201", "v_wmma_f32_16x16x16_f16"),
    ):  # fmt: skip
        kernel = on(arch, matmul).compile(*operands(128, 128, 64, "float16"), block=(64, 64, 32))
        assert re.search(rf"\b{instruction}\b", kernel.sass())
        (resources,) = kernel.resources().values()
        assert resources["scratch_bytes"] == resources["vector_spills"] == 0 and resources["waves"] >= 1
        assert 0 < resources["registers"] <= kernel.arch.registers and resources["shared_bytes"] == (
            16384 if arch == "gfx950" else 8192  # a slot for each stage where loads go to it directly
        )
