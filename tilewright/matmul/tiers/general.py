"""The tier of last resort: every combination, on every machine; each tile of codes is decoded by arithmetic or by
table."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels.general_matmul import general_matmul
from tilewright.kernels.recipe import Recipe, Request, WeightFacts
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import contiguous, placed_like, viewed
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.planning import recipe_for, table_of
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Tier, made_once
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array
from tilewright.specialization import JITFactory
from tilewright.tuning import Candidate


class GeneralCall:
    """The general kernel of a recipe on a machine, with one element in the place of each tensor that it does not
    use."""

    def __init__(self, recipe: Recipe, machine: Machine, example: Array, options: Mapping[str, int]) -> None:
        self.recipe, self.machine, self.example, self.options = recipe, machine, example, options
        absent = {
            "table": table_of(recipe.format, recipe.whole).astype(wide_of(recipe)),
            "scales": np.ones((1, 1), dtype(recipe.scale.dtype).numpy),
            "zeros": np.zeros((1, 1), np.uint8 if recipe.zeros == "packed" else dtype(recipe.zero_point.dtype).numpy),
            "multipliers": np.ones((1, 1), np.int8),
            "factor": np.array([1.0 / recipe.whole], wide_of(recipe)),
            "slots": np.array(recipe.slots or (0,), np.int32),
            "divisors": np.ones(1, np.float32),
            "gathered": np.zeros(1, np.int32),
            "activation_scales": np.ones((1, 1), dtype(recipe.activation_scale_dtype).numpy),
            "bias": np.zeros(1, dtype(recipe.bias or "float32").numpy),
            "residual": np.zeros((1, 1), dtype(recipe.out).numpy),
        }
        self._absent = {name: placed_like(array, example) for name, array in absent.items()}

    program: ClassVar[JITFactory] = general_matmul
    """The kernel, of a recipe and options."""

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel, compiled at first use."""
        return self.program.for_target(self.machine.arch, self.recipe, **self.options)

    def held(self, arrays: dict[str, Any]) -> list[Any]:
        """The weight's tensors in the kernel's order; those that the recipe leaves out are not passed."""
        given = {name: self._placed(array) for name, array in arrays.items()}
        if self.recipe.zeros in ("none", "one"):
            given.pop("zeros", None)
        if not self.recipe.divisors:
            given.pop("divisors", None)  # what quantised the activations has divided them
        given["codes"] = self._codes(given["codes"])
        if "factor" in given and self.recipe.whole > 1:
            given["factor"] = given["factor"] / self.recipe.whole
        return [given.get(name, self._absent.get(name)) for name in _HELD]

    def _codes(self, codes: Array) -> Array:
        """The codes as elements of the type that the kernel reads."""
        own = self.recipe.format.dtype
        return viewed(codes, own) if own is not None and self.recipe.is_native else codes

    def _placed(self, array: Array) -> Array:
        return placed_like(array, self.example) if isinstance(array, np.ndarray) else array

    def arguments(self, call: Operands, held: Sequence[object]) -> Sequence[object]:
        """All arguments of the kernel."""
        absent = self._absent
        return (
            call.activations,
            absent["activation_scales"] if call.activation_scales is None else contiguous(call.activation_scales),
            *held, absent["bias"] if call.bias is None else call.bias,
            absent["residual"] if call.residual is None else call.residual, call.out,
        )  # fmt: skip


_HELD = ("codes", "table", "scales", "zeros", "multipliers", "factor", "slots", "divisors", "gathered")
"""The weight's tensors in the order of the general kernel's parameters."""


class General(Tier):
    """Every combination, on every machine: each tile of codes is decoded by arithmetic or by table."""

    name = "general"
    version = 2
    machines = "all machines"
    call: type[GeneralCall] = GeneralCall
    """What brings a weight into the form of the tier's kernel."""

    def runs_on(self, arch: Arch) -> bool:
        return True

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        return iter(())

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        return iter(CANDIDATES)

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Prepared:
        recipe = recipe_for(weight.facts, weight.numbers, request, machine.arch)
        arrays = dict(weight.arrays)
        if weight.tensor_scale != 1.0:
            arrays["factor"] = np.array([weight.tensor_scale], wide_of(recipe))
        if weight.gathered is not None:
            arrays["gathered"] = weight.gathered
        call = made_once(self.call, recipe, machine, example, options)
        return Prepared(self.name, call.kernel, call.held(arrays), call.arguments)


def wide_of(recipe: Recipe) -> type:
    """The type of a recipe's factors."""
    return np.float64 if recipe.accumulate == "float64" else np.float32


CANDIDATES: tuple[dict[str, int], ...] = ({}, *(
    {"block_M": rows, "block_N": columns, "threads": threads, "num_stages": stages}
    for rows, columns, threads in (
        (64, 64, 128), (128, 128, 128), (64, 128, 128), (128, 64, 128), (128, 128, 256), (64, 32, 128), (128, 256, 256),
    )
    for stages in (3, 4, 2)
))  # fmt: skip
"""What tuning chooses among: the kernel's own choice, then the most promising first."""
