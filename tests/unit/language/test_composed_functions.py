"""A function that others make is one record: the language, the interpreter and every target have it from there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.formulas import numbers
from tilewright.ir.intrinsics import INTRINSICS, composed
from tilewright.language.math import _function

TARGETS = ("cpu", "cuda -arch=sm_80", "metal -arch=apple9", "hip -arch=gfx942")


@pytest.fixture
def word() -> Iterator[Any]:
    """A function that nobody knew, of two numbers, with a choice and another function in it."""
    name = "leaky_of_tests"
    composed(name, "x if x > 0 else -(y * exp(-(x - 1) * 0.125)) / 2.5", arity=2)
    yield _function(name)
    del INTRINSICS[name]


def leaky(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(x > 0, x, -(y * np.exp(-(x - 1) * 0.125)) / 2.5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_a_new_function_is_one_record(word: Any, dtype: str, target: str) -> None:
    if dtype == "float64" and target.startswith("metal"):
        pytest.skip("Apple's GPUs have no float64")

    def program(A, B):
        N = T.const("N")
        A: T.Tensor((N,), dtype)
        B: T.Tensor((N,), dtype)
        O = T.empty((N,), dtype)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                O[i] = word(A[i], B[i])
        return O

    kinds = tilewright.ir.dtypes.ALL
    given = [np.random.default_rng(n).uniform(-6, 6, 101).astype(kinds[dtype].numpy) for n in range(2)]
    kernel = tilewright.jit(target=target)(program).compile(*given)
    found = kernel(*given) if target == "cpu" else kernel.emulate(*given)
    wanted = leaky(*(one.astype(np.float64) for one in given))
    bound = 2.0 ** -kinds[dtype].mantissa_bits * (0.51 if kinds[dtype].bits < 32 else 4)
    low = 2.0**-9 if dtype == "float8_e4m3fn" else 1e-6  # what is subnormal there
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=bound, atol=low)
    np.testing.assert_allclose(kernel.interpret(*given).astype(np.float64), wanted, rtol=bound, atol=low)


def test_a_formula_says_what_it_cannot() -> None:
    with pytest.raises(ValueError, match=r"a formula cannot say x\.real"):
        numbers("x.real", lambda name: np.exp, 1.0)
