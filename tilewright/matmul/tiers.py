"""The dispatch table: which kernel serves a call, best first, and why the better ones do not.

A tier answers two questions: what keeps it from serving a call (`refuses`), and how it serves one (`prepare`).  A new
kernel of the library joins by one entry in `TIERS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels.general_matmul import general_matmul
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.kernels.recipe import Recipe
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.planning import recipe_for, table_of
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import compile
from tilewright.targets.base import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a product runs."""

    target: Target
    arch: Arch


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a call, None for what it does not have."""

    activations: Any
    activation_scales: Any
    bias: Any
    residual: Any
    out: Any


@dataclass(frozen=True, slots=True)
class Prepared:
    """A product ready to run.

    Attributes
    ----------
    tier : its name.
    kernel : compiled.
    arguments : from the operands of a call to the kernel's arguments.
    recipe : of the general kernel, None for others.
    """

    tier: str
    kernel: Kernel
    arguments: Callable[[Operands], Sequence[Any]]
    recipe: Recipe | None = None

    def __call__(self, operands: Operands) -> None:
        self.kernel(*self.arguments(operands))

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        self.kernel.emulate(*self.arguments(operands), **options)


class Tier(Protocol):
    """One way to compute products."""

    name: str

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """Why it does not serve a call; None where it does."""

    def prepare(self, weight: PackedWeight, request: Request, machine: Machine, example: Any) -> Prepared:
        """Compile, and bring the weight into the kernel's form, on the device of `example`."""


class Panels:
    """Low-bit weights in panels, unpacked in registers next to the dot products of a processor."""

    name = "panels"

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        own = facts.format.dtype
        epilogue = request.bias or request.residual or request.function
        int8 = request.activations == "int8"
        reasons = (
            (arch.has_threads, f"it is for processors, not {arch.target}"),
            (own is None or not own.is_integer or own.bits == 1, f"it unpacks integers of 2, 4 and 8 bits, not {facts.format}"),
            (facts.gather or facts.K % facts.group != 0, "groups are not whole runs of columns"),
            (facts.zeros not in ("none", "one", "groups"), f"zeros of mode {facts.zeros}"),
            (facts.multiplier or facts.divisors or facts.slots, "second-level scales or divisors"),
            (bool(epilogue), "the call has an epilogue"),
            (not dtype(request.out).is_float, f"results of {request.out}"),
            (request.activation_scales == "group", "activation scales of groups"),
            (not int8 and request.activation_scales != "none", "scales of float activations"),
            (request.quantize not in (None, "int8"), f"activations quantised to {request.quantize}"),
            (
                not int8 and request.activations not in ("float32", "float16", "bfloat16"),
                f"activations of {request.activations}",
            ),
        )  # fmt: skip
        return next((reason for holds, reason in reasons if holds), None)

    def prepare(self, weight: PackedWeight, request: Request, machine: Machine, example: Any) -> Prepared:
        """See `Tier`."""
        source, facts = weight.unpack(), weight.facts
        assert facts.format.dtype is not None
        zero = None if facts.zeros == "groups" else facts.zero
        function = quant_matmul.trace(
            facts.N, facts.K, weights=facts.format.dtype.name, group=facts.group, zero=zero,
            activations=request.activations, out=request.out, arithmetic="int8" if request.quantize else "float32",
        )  # fmt: skip
        kernel = compile(function, target=machine.arch)
        held = [kernel.pack(W=source.packed), source.grouped_scales]
        if zero is None:
            zeros = source.grouped_zeros
            assert zeros is not None
            held.append(zeros)
        held = [placed_like(array, example) for array in held]
        if request.activations != "int8":
            return Prepared(self.name, kernel, lambda call: (call.activations, *held, call.out))
        scales = _token_scales(request, example)
        return Prepared(self.name, kernel, lambda call: (call.activations, scales(call), *held, call.out))


def _token_scales(request: Request, example: Any) -> Callable[[Operands], Any]:
    """One float32 scale a row, whatever the call gives."""

    def expanded(call: Operands) -> Any:
        rows = call.activations.shape[0]
        if call.activation_scales is None:
            return placed_like(np.ones(rows, np.float32), example)
        scales = call.activation_scales.reshape(-1)
        if request.activation_scales == "token" and request.activation_scale_dtype == "float32":
            return scales
        wide = scales.astype(np.float32) if isinstance(scales, np.ndarray) else scales.float()
        if len(wide) == rows:
            return wide
        return np.repeat(wide, rows) if isinstance(wide, np.ndarray) else wide.repeat(rows)

    return expanded


class General:
    """Every combination, on every machine: each tile of codes is decoded by arithmetic or by table."""

    name = "general"

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        return None

    def prepare(self, weight: PackedWeight, request: Request, machine: Machine, example: Any) -> Prepared:
        """See `Tier`."""
        recipe = recipe_for(weight.facts, weight.numbers, request, machine.arch)
        arrays = {name: array for name, array in weight.arrays.items() if name != "codes"}
        arrays["factor"] = np.array([weight.tensor_scale / recipe.whole], np.float32)
        if weight.gathered is not None:
            arrays["gathered"] = weight.gathered
        return prepare_general(recipe, weight.arrays["codes"], arrays, machine, example)


@functools.lru_cache(maxsize=512)
def general_kernel(recipe: Recipe, target: str, arch: Arch) -> Kernel:
    """The general kernel of a recipe, compiled once a machine."""
    return compile(general_matmul.trace(recipe), target=arch)


def prepare_general(
    recipe: Recipe, codes: Any, arrays: dict[str, Any], machine: Machine, example: Any
) -> Prepared:  # fmt: skip
    """The general kernel with a weight's arrays in their places, and one element in those of what it does not use."""
    kernel = general_kernel(recipe, machine.target.name, machine.arch)
    table = table_of(recipe.format, recipe.whole)

    def place(name: str, absent: np.ndarray) -> Any:
        array = arrays.get(name)
        if array is None:
            return placed_like(absent, example)
        return placed_like(array, example) if isinstance(array, np.ndarray) else array

    def unused(name: str, rank: int) -> Any:
        return placed_like(np.zeros((1,) * rank, dtype(name).numpy), example)

    if isinstance(codes, np.ndarray):
        codes = placed_like(codes, example)
    held = [
        codes, placed_like(table, example), place("scales", np.ones((1, 1), np.float32)),
        place("zeros", np.zeros((1, 1), np.float32)), place("multipliers", np.ones((1, 1), np.int8)),
        place("factor", np.ones(1, np.float32)), placed_like(np.array(recipe.slots or (0,), np.int32), example),
        place("divisors", np.ones(1, np.float32)), place("gathered", np.zeros(1, np.int32)),
    ]  # fmt: skip
    if recipe.zeros in ("none", "one"):
        held[3] = unused("float32", 2)
    no_scale = placed_like(np.ones((1, 1), dtype(recipe.activation_scale_dtype).numpy), example)
    no_bias, no_residual = unused(recipe.bias or "float32", 1), unused(recipe.out, 2)

    def arguments(call: Operands) -> Sequence[Any]:
        return (
            call.activations, no_scale if call.activation_scales is None else call.activation_scales, *held,
            no_bias if call.bias is None else call.bias, no_residual if call.residual is None else call.residual, call.out,
        )  # fmt: skip

    return Prepared(General.name, kernel, arguments, recipe)


TIERS: tuple[Tier, ...] = (Panels(), General())
"""Best first; the last one serves everything."""


def choose(facts: WeightFacts, request: Request, arch: Arch) -> tuple[Tier, list[str]]:
    """The first tier that serves a call, and why those before it do not."""
    reasons: list[str] = []
    for tier in TIERS:
        reason = tier.refuses(facts, request, arch)
        if reason is None:
            return tier, reasons
        reasons.append(f"{tier.name}: {reason}")
    raise AssertionError("the last tier serves everything")
