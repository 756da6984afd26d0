"""The dispatch table: which tier serves a call, best first, and why the better ones do not.

A new kernel of the library joins by one entry in `TIERS`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from tilewright.errors import Unsupported
from tilewright.ir.dtypes import dtype
from tilewright.kernels.activation_quantization import quantize_activations
from tilewright.kernels.epilogue import FUNCTIONS, PAIRED
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Quantizing, Ready, Tier, begun
from tilewright.matmul.tiers.blocks import Blocks
from tilewright.matmul.tiers.bytes import Bytes
from tilewright.matmul.tiers.fragments import Fragments
from tilewright.matmul.tiers.general import General
from tilewright.matmul.tiers.masked import Masked
from tilewright.matmul.tiers.panels import Panels
from tilewright.matmul.tiers.scaled import Scaled
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array
from tilewright.specialization import compile
from tilewright.tuning import Candidate, Database

TIERS: tuple[Tier, ...] = (Panels(), Fragments(), Scaled(), Blocks(), Bytes(), Masked(), General())
"""Best first; the last one serves everything that comes with its activations quantised."""


def choose(facts: WeightFacts, request: Request, arch: Arch) -> tuple[Tier, Request, list[str]]:
    """The first tier that serves a call, the request that it serves, and why those before it do not.

    Where no tier quantises activations as part of its kernel, the request is for the product with quantised ones.

    Raises
    ------
    Unsupported : for a function of pairs of columns; the last tier serves everything else.
    """
    reasons: list[str] = []
    for asked in (request, after_quantisation(request)):
        for tier in TIERS:
            reason = tier.refuses(facts, asked, arch)
            if reason is None and request.function in PAIRED and not tier.pairs:
                reason = "functions of pairs of columns"
            if reason is None:
                return tier, asked, reasons
            reasons.append(f"{tier.name}: {reason}")
    raise Unsupported(f"{request.function} behind products of this weight by {request.activations}", FUNCTIONS)


def after_quantisation(request: Request) -> Request:
    """What is left of a request when its activations have been quantised."""
    if request.quantize is None:
        return request
    return replace(
        request, activations=request.quantize, quantize=None, activation_scales="token",
        activation_scale_dtype="float32", divided=True,
    )  # fmt: skip


def prepare(
    weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate | None = None
) -> Ready:
    """A product ready to run on the device of `example`, with the options given, else with `chosen` ones."""
    tier, asked, _ = choose(weight.facts, request, machine.arch)
    if options is None:
        options = chosen(weight, request, machine)
    prepared = tier.prepare(weight, asked, machine, example, options)
    if asked is request:
        return prepared
    return quantizing(weight.shape[1], request, machine, example, weight.held.get("divisors"), prepared)


def chosen(weight: PackedWeight, request: Request, machine: Machine) -> Candidate:
    """The options of a call's kernels: what tuning found in the place of the model's choice, else that."""
    tier, asked, _ = choose(weight.facts, request, machine.arch)
    model = next(tier.candidates(weight, asked, machine))
    return Database().get(_tuning_key(tier, weight.facts, asked, machine, model)) or model


def tuning_key(weight: PackedWeight, request: Request, machine: Machine) -> str:
    """What tuning's result is kept under: calls of one kind (`Request.kind`) for which the model chooses the same
    kernel."""
    tier, asked, _ = choose(weight.facts, request, machine.arch)
    return _tuning_key(tier, weight.facts, asked, machine, next(tier.candidates(weight, asked, machine)))


def _tuning_key(tier: Tier, facts: WeightFacts, asked: Request, machine: Machine, model: Candidate) -> str:
    arch = machine.arch
    return (
        f"{tier.name} {tier.version} {arch.target} {arch.name} {arch.cores} cores {facts} {asked.kind} {named(model)}"
    )


def named(options: Candidate) -> str:
    """Options as a word, the same however they are ordered."""
    return repr(sorted(options.items()))


def candidates(weight: PackedWeight, request: Request, machine: Machine) -> list[Candidate]:
    """The options to choose among for a call, each once, the model's choice first."""
    tier, asked, _ = choose(weight.facts, request, machine.arch)
    found: dict[str, Candidate] = {}
    for options in tier.candidates(weight, asked, machine):
        found.setdefault(named(options), options)
    return list(found.values())


def quantizing(
    columns: int, request: Request, machine: Machine, example: Array, divisors: object, then: Ready
) -> Quantizing:  # fmt: skip
    """A product preceded by the quantisation of its activations."""
    assert request.quantize is not None
    kernel = quantizing_kernel(columns, request.activations, request.quantize, divisors is not None, machine.arch)
    if isinstance(divisors, np.ndarray):
        divisors = placed_like(divisors, example)
    return Quantizing(begun(kernel, example), () if divisors is None else (divisors,), dtype(request.quantize), then)


@functools.lru_cache(maxsize=256)
def quantizing_kernel(columns: int, activations: str, to: str, divisors: bool, arch: Arch) -> Kernel:
    """The kernel that quantises activations of one width, compiled once."""
    return compile(quantize_activations.trace(columns, activations, to, divisors=divisors), target=arch)
