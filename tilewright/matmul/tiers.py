"""The dispatch table: which kernel serves a call, best first, and why the better ones do not.

A tier answers two questions: what keeps it from serving a call (`refuses`), and how it serves one (`prepare`).  A new
kernel of the library joins by one entry in `TIERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels.general_matmul import general_matmul
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.kernels.recipe import Recipe
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import device_of, placed_like
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
    held : the weight in the kernel's form.
    arguments : from the operands of a call and what is held to the kernel's arguments.
    recipe : of the general kernel, None for others.
    """

    tier: str
    kernel: Kernel
    held: Sequence[Any]
    arguments: Callable[[Operands, Sequence[Any]], Sequence[Any]]
    recipe: Recipe | None = None

    def __call__(self, operands: Operands) -> None:
        self.kernel(*self.arguments(operands, self.held))

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        self.kernel.emulate(*self.arguments(operands, self.held), **options)


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
            return Prepared(self.name, kernel, held, lambda call, held: (call.activations, *held, call.out))
        scales = _token_scales(request, example)
        return Prepared(self.name, kernel, held, lambda call, held: (call.activations, scales(call), *held, call.out))


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
        arrays = dict(weight.arrays)
        if weight.tensor_scale != 1.0:
            arrays["factor"] = np.array([weight.tensor_scale], np.float32)
        if weight.gathered is not None:
            arrays["gathered"] = weight.gathered
        call = general_call(recipe, machine, example)
        return Prepared(self.name, call.kernel, call.held(arrays), call.arguments, recipe)


class GeneralCall:
    """The general kernel of a recipe on a machine, with one element in the place of each tensor that it does not use."""

    def __init__(self, recipe: Recipe, machine: Machine, example: Any) -> None:
        self.recipe, self.example = recipe, example
        self.kernel: Kernel = compile(general_matmul.trace(recipe), target=machine.arch)
        absent = {
            "table": table_of(recipe.format, recipe.whole),
            "scales": np.ones((1, 1), dtype(recipe.scale.dtype).numpy),
            "zeros": np.zeros((1, 1), np.uint8 if recipe.zeros == "packed" else dtype(recipe.zero_point.dtype).numpy),
            "multipliers": np.ones((1, 1), np.int8),
            "factor": np.array([1.0 / recipe.whole], np.float32),
            "slots": np.array(recipe.slots or (0,), np.int32),
            "divisors": np.ones(1, np.float32),
            "gathered": np.zeros(1, np.int32),
            "activation_scales": np.ones((1, 1), dtype(recipe.activation_scale_dtype).numpy),
            "bias": np.zeros(1, dtype(recipe.bias or "float32").numpy),
            "residual": np.zeros((1, 1), dtype(recipe.out).numpy),
        }
        self._absent = {name: placed_like(array, example) for name, array in absent.items()}

    def held(self, arrays: dict[str, Any]) -> list[Any]:
        """The weight's tensors in the kernel's order; those that the recipe leaves out are not passed."""
        given = {name: self._placed(array) for name, array in arrays.items()}
        if self.recipe.zeros in ("none", "one"):
            given.pop("zeros", None)
        if "factor" in given and self.recipe.whole > 1:
            given["factor"] = given["factor"] / self.recipe.whole
        return [given.get(name, self._absent.get(name)) for name in _HELD]

    def _placed(self, array: Any) -> Any:
        return placed_like(array, self.example) if isinstance(array, np.ndarray) else array

    def arguments(self, call: Operands, held: Sequence[Any]) -> Sequence[Any]:
        """All arguments of the kernel."""
        absent = self._absent
        return (
            call.activations, absent["activation_scales"] if call.activation_scales is None else call.activation_scales,
            *held, absent["bias"] if call.bias is None else call.bias,
            absent["residual"] if call.residual is None else call.residual, call.out,
        )  # fmt: skip


_HELD = ("codes", "table", "scales", "zeros", "multipliers", "factor", "slots", "divisors", "gathered")
"""The weight's tensors in the order of the general kernel's parameters."""

_CALLS: dict[Any, GeneralCall] = {}


def general_call(recipe: Recipe, machine: Machine, example: Any) -> GeneralCall:
    """The call of a recipe on the device of `example`, made once."""
    key = (recipe, machine.arch, type(example) is np.ndarray, device_of(example))
    found = _CALLS.get(key)
    if found is None:
        found = _CALLS[key] = GeneralCall(recipe, machine, placed_like(np.zeros(1, np.float32), example))
    return found


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
