"""The dispatch table: which tier serves a call, best first, and why the better ones do not.

A new kernel of the library joins by one entry in `TIERS`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.errors import Unsupported
from tilewright.ir.dtypes import dtype
from tilewright.kernels import FUNCTIONS, PAIRED, Request, WeightFacts
from tilewright.kernels.activation_quantization import quantize_activations
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Preprocessed, Ready, Tier, begun, kept_under, kernel_of, named
from tilewright.matmul.tiers.bytes import Bytes
from tilewright.matmul.tiers.fragments import Fragments
from tilewright.matmul.tiers.general import General
from tilewright.matmul.tiers.masked import Masked
from tilewright.matmul.tiers.panels import Panels
from tilewright.matmul.tiers.scaled import Scaled
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array
from tilewright.tuning import Candidate, Database

TIERS: tuple[Tier, ...] = (Panels(), Fragments(), Scaled(), Scaled(in_blocks=True), Bytes(), Masked(), General())
"""Best first; the last one serves everything that comes with its activations quantised."""


def choose(facts: WeightFacts, request: Request, arch: Arch) -> tuple[Tier, Request]:
    """The first tier that serves a call, and the request that it serves: where no tier quantises activations as part of
    its kernel, the one for the product with quantised ones. Raises Unsupported for a function of pairs of columns; the
    last tier serves everything else."""
    for asked in (request, after_quantisation(request)):
        for tier in TIERS:
            if tier.runs_on(arch) and _refusal(tier, facts, asked, arch) is None:
                return tier, asked
    raise Unsupported(f"{request.function} behind products of this weight by {request.activations}", FUNCTIONS)


def _refusal(tier: Tier, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
    """Why a tier of this machine does not serve a call; None where it does."""
    if request.function in PAIRED and not tier.pairs:
        return "functions of pairs of columns"
    if request.quantize is not None and not tier.quantises:
        return "activations are quantised first"
    return tier.refuses(facts, request, arch)


def explain(facts: WeightFacts, request: Request, arch: Arch) -> str:
    """Which tier serves a call, and why not the ones before it."""
    tier, asked = choose(facts, request, arch)
    first, lines = f"{tier.name} on {arch.target} {arch.name}", []
    if asked is not request:
        first += f", behind a kernel that quantises the activations to {request.quantize}"
        able = [one for one in TIERS if one.runs_on(arch) and one.quantises]
        lines = [f"not {one.name} in one kernel: {_refusal(one, facts, request, arch)}" for one in able]
    before = TIERS[: TIERS.index(tier)]
    lines += [f"not {one.name}: {_refusal(one, facts, asked, arch)}" for one in before if one.runs_on(arch)]
    elsewhere = [f"{one.name} ({one.machines})" for one in before if not one.runs_on(arch)]
    lines += [f"for other machines: {', '.join(elsewhere)}"] if elsewhere else []
    return "\n  ".join([first, *lines])


def after_quantisation(request: Request) -> Request:
    """What is left of a request when its activations have been quantised."""
    if request.quantize is None:
        return request
    return replace(
        request,
        activations=request.quantize,
        quantize=None,
        activation_scales="token",
        activation_scale_dtype="float32",
        divided=True,
    )


def prepare(
    weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate | None = None
) -> Ready:
    """A product ready to run on the device of `example`, with the options given, else with `chosen` ones."""
    tier, asked = choose(weight.facts, request, machine.arch)
    if options is None:
        options = chosen(weight, request, machine)
    prepared = tier.prepare(weight, asked, machine, example, options)
    if asked is request:
        return prepared
    return quantizing(weight.shape[1], request, machine, example, weight.held.get("divisors"), prepared)


def chosen(weight: PackedWeight, request: Request, machine: Machine) -> Candidate:
    """The options of a call's kernels: what tuning found in the place of the model's choice, else that."""
    key, model = tuning_key(weight, request, machine)
    return Database().get(key) or model


def tuning_key(weight: PackedWeight, request: Request, machine: Machine) -> tuple[str, Candidate]:
    """What tuning's result is kept under: calls of one kind (`Request.kind`) for which the model chooses the same
    kernel; and that choice."""
    tier, asked = choose(weight.facts, request, machine.arch)
    model = next(tier.candidates(weight, asked, machine))
    return kept_under(f"{tier.name} {tier.version}", weight.facts, asked, machine.arch, model), model


def candidates(weight: PackedWeight, request: Request, machine: Machine) -> list[Candidate]:
    """The options to choose among for a call, each once, the model's choice first."""
    tier, asked = choose(weight.facts, request, machine.arch)
    found: dict[str, Candidate] = {}
    for options in tier.candidates(weight, asked, machine):
        found.setdefault(named(options), options)
    return list(found.values())


def quantizing(
    columns: int, request: Request, machine: Machine, example: Array, divisors: object, then: Ready
) -> Preprocessed:
    """A product preceded by the quantisation of its activations."""
    assert request.quantize is not None
    kernel = quantizing_kernel(columns, request.activations, request.quantize, divisors is not None, machine.arch)
    if isinstance(divisors, np.ndarray):
        divisors = placed_like(divisors, example)
    held, made = () if divisors is None else (divisors,), dtype(request.quantize)
    return Preprocessed("quantised activations", begun(kernel, example), held, columns, made, True, then)


def quantizing_kernel(columns: int, activations: str, to: str, divisors: bool, arch: Arch) -> Kernel:
    """The kernel that quantises activations of one width."""
    return kernel_of(quantize_activations, arch, columns, activations, to, divisors=divisors)
