"""Helpers of the matmul library's tests: exact references, bounds, and calls on the CPU and under the emulator."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.formats import number_format
from tilewright.interpreter import interpret
from tilewright.ir import Function, dtype, pack
from tilewright.kernels.general_matmul import general_matmul
from tilewright.kernels.recipe import Recipe
from tilewright.matmul.operator import Matmul
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import Product
from tilewright.matmul.tiers.base import Machine
from tilewright.matmul.tiers.general import GeneralCall
from tilewright.matmul.weight_forms import MatmulCall
from tilewright.quant import QuantizedWeight

MACHINES = ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"]

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Relative error of one rounding."""


def product(x: np.ndarray, weight: QuantizedWeight, target: str = "cpu", **options: Any) -> np.ndarray:
    """A call on one machine, its result poisoned before."""
    given = x[0] if isinstance(x, tuple) else x
    if "out" not in options:
        name = dtype(options.pop("out_dtype", "float32")).numpy
        options["out"] = np.full((*given.shape[:-1], weight.shape[0]), 77, name)
    made = Product.of(x, PackedWeight.pack(weight), target=target, **options)
    return made.run() if target == "cpu" else made.emulate()


def interpreted(operator: Matmul, *arguments: Any, **named: Any) -> np.ndarray:
    """A call of a `Matmul` on raw arrays, its traced program run by the interpreter: no compiler, the same arithmetic."""
    given = MatmulCall(*arguments, **named)
    A = given.A
    held, operands, _ = operator._checked(replace(given, A=A.T if operator.layout[0] == "t" else A))
    operands.out[...] = 77
    recipe = operator._recipe
    call = GeneralCall(recipe, Machine(operator.target, operator.arch), A, {})
    interpret(traced(recipe), list(call.arguments(operands, call.held(held))))
    return operands.out


@functools.cache
def traced(recipe: Recipe) -> Function:
    """The general kernel's program."""
    return general_matmul.trace(recipe).function


def close(found: np.ndarray, x: np.ndarray, dense: np.ndarray, operand: str = "float32", out: str = "float32") -> None:
    """`found` is ``x @ dense^T`` up to sums in float32, one rounding of each weight to `operand` and one of the result."""
    x = x.astype(np.float64)
    exact, size = x @ dense.T, np.abs(x) @ np.abs(dense).T
    bound = ((x.shape[-1] + 4) * 2.0**-24 + (UNIT[operand] if operand != "float32" else 0.0)) * size
    bound = bound + UNIT[out] * np.abs(exact) + (2.0**-24 if out == "float16" else 0.0)
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all(), np.abs(found - exact).max()


def random_weight(rng: np.random.Generator, name: str, shape: tuple[int, int], **rest: Any) -> QuantizedWeight:
    """Every code of a format equally often, those without a finite value apart."""
    of = number_format(name)
    allowed = [c for c in range(1 << of.bits) if c not in of.unused and np.isfinite(of.values[c])]
    return QuantizedWeight(rng.choice(np.array(allowed, np.uint8), shape), of, **rest)


def random_activations(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Any:
    """The whole range of integers, normal floats; those of fewer than 8 bits as the pair that `quant_matmul` takes."""
    record = dtype(name)
    if record.is_integer:
        values = rng.integers(int(record.minimum), int(record.maximum) + 1, shape).astype(record.numpy)
        return values, (pack(values, record), name) if record.is_packed else values
    values = rng.standard_normal(shape).astype(record.numpy)
    return values, values
