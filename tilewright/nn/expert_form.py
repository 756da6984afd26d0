"""`ExpertForm`: how a module with experts in tensors of three dimensions computes, told by what it does.

Models differ in where gate and up stand, in which way the tensors lie and in what the module is called with. A
candidate is taken when the module, with small random numbers in the place of its weights, gives what the candidate
says.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.nn.probing import in_float32
from tilewright.runtime.tensors import Array

CLAMPED = "clamped_swiglu"
"""The epilogue's name for what gpt-oss computes of neighbouring columns."""

ALPHA, LIMIT = 1.702, 7.0

MOST_NUMBERS = 1 << 24
"""Weights that are tried out whole; larger ones with the same numbers along the rest of an axis."""


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """How experts compute.

    Attributes
    ----------
    columns : whether the tensors are ``[experts, K, N]``, not ``[experts, N, K]``.
    neighbours : whether a gate and what passes it are neighbours among the columns of the first product, not in halves.
    clamped : whether the gate's function is that of gpt-oss.
    whole : whether what lies between the products is a function of the whole first one: no gate, or one of the
        module's own.
    call : ``"tokens"``: experts and factors of each token ``[tokens, k]``; ``"scores"``: factors ``[tokens, experts]``;
        ``"even"``: as many rows for each expert, one after the other.
    """

    columns: bool
    neighbours: bool
    clamped: bool
    call: str
    whole: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether the function is part of the first product."""
        return self.neighbours and self.clamped

    def passed(self, both: torch.Tensor, act_fn: Callable[[Any], Any] | None) -> torch.Tensor:
        """What passes the gates."""
        if self.whole:
            assert act_fn is not None
            return act_fn(both)
        gate, up = (both[..., ::2], both[..., 1::2]) if self.neighbours else both.chunk(2, dim=-1)
        if not self.clamped:
            assert act_fn is not None
            return act_fn(gate) * up
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return gate * torch.sigmoid(gate * ALPHA) * (up + 1)

    def routed(
        self, hidden: torch.Tensor, routing: tuple[object, ...], experts: int, products: Callable[[Any, Any], Any]
    ) -> torch.Tensor:
        """The experts' results, multiplied and added up for each token; `products` makes them of rows in the order of
        experts, and of the number of rows of each."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        if self.call == "even":
            return products(rows, self._even(rows, experts)).reshape(-1, hidden.shape[-1])
        index, factors = _told(routing)
        if self.call == "scores":
            factors = factors.gather(1, index)
        each = index.shape[1]
        order, sizes = _ordered(index, experts)
        found = products(rows[order // each], sizes[:experts])
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        of_tokens = found[back].reshape(len(rows), each, found.shape[-1])
        of_tokens = of_tokens.masked_fill((index >= experts)[..., None], 0.0) * factors[..., None]
        return of_tokens.sum(1).to(hidden.dtype).reshape(hidden.shape)

    def rows_by_expert(
        self, hidden: torch.Tensor, routing: tuple[object, ...], experts: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which rows of `hidden` the experts multiply: their numbers in the order of experts, and how many each has."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        if self.call == "even":
            return torch.arange(len(rows)), self._even(rows, experts)
        index, _ = _told(routing)
        order, sizes = _ordered(index, experts)
        return order[: sizes[:experts].sum()] // index.shape[1], sizes[:experts]

    @staticmethod
    def _even(rows: torch.Tensor, experts: int) -> torch.Tensor:
        return torch.full((experts,), len(rows) // experts, dtype=torch.int32, device=rows.device)


def _told(routing: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and factors of each token: by name they come in any order."""
    index, factors = sorted(routing, key=torch.is_floating_point)
    return index.reshape(-1, index.shape[-1]), factors.reshape(-1, factors.shape[-1])


def _ordered(index: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of `index` sorted by expert, and how many each expert has."""
    flat = index.reshape(-1)
    # One place more for tokens that are another machine's, whose expert is the number behind the last.
    sizes = torch.zeros(experts + 1, dtype=torch.int32, device=index.device)
    sizes = sizes.scatter_add(0, flat.long(), torch.ones_like(flat, dtype=torch.int32))
    return torch.argsort(flat, stable=True), sizes


@in_float32()
def form_of(module: object, names: tuple[str, str], columns: bool) -> ExpertForm | None:
    """How a module with two parameters of three dimensions, ``[experts, K, N]`` where they are `columns`, computes;
    None where no candidate gives what it gives."""
    # Columns of the first product differ, and experts of the second.
    probe = probe_of(module, {names[0]: 2 if columns else 1, names[1]: 0})
    gated = getattr(module, names[0]).shape[2 if columns else 1] != getattr(module, names[1]).shape[1 if columns else 2]
    # A clamp shows itself only where numbers are large.
    for form in _candidates(module, columns, gated):
        if all(_agrees(probe, names, form, scale) for scale in (0.5, 6.0, 300.0)):
            return form
    return None


def _candidates(module: Any, columns: bool, gated: bool) -> Iterator[ExpertForm]:
    asked = [
        one
        for one in inspect.signature(module.forward).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    calls = ("even",) if len(asked) == 1 else ("tokens", "scores") if len(asked) == 3 else ()
    functions = [clamped for clamped in (False, True) if gated and (clamped or _function(module) is not None)]
    for call, clamped, neighbours in itertools.product(calls, functions, (False, True)):
        yield ExpertForm(columns, neighbours, clamped, call)
    for call in calls if _own_gate(module) or not gated else ():
        yield ExpertForm(columns, False, False, call, whole=True)


def act_of(module: torch.nn.Module, form: ExpertForm) -> Callable[..., Any] | None:  # as the module has it
    """What a form asks of a module beside its products: the function of its gates, or all that lies between."""
    if not form.whole or not _own_gate(module):
        return _function(module)
    alone: Any = copy.copy(module)
    alone.__dict__["_parameters"] = {}
    gate: Callable[..., Any] = alone._apply_gate
    return gate


def _function(module: object) -> Callable[..., object] | None:
    return next((getattr(module, name) for name in ("act_fn", "act", "activation_fn") if hasattr(module, name)), None)


def _own_gate(module: object) -> bool:
    """Whether a module's class says itself what lies between its products, as transformers' may, in `_apply_gate`."""
    kind: object = type(module)
    return getattr(getattr(kind, "_apply_gate", None), "__module__", None) == kind.__module__


def probe_of(module: Any, alike: dict[str, int]) -> Any:  # a module of the same class
    """A module with random float32 on the CPU in the place of its parameters. For those that may be too large to try
    out whole, `alike` says the axis along which numbers differ then."""
    generator = torch.Generator("cpu").manual_seed(0)
    probe = copy.copy(module)
    made = {}
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        shape = tuple(parameter.shape)
        small = shape
        if name in alike and parameter.numel() > MOST_NUMBERS:
            small = tuple(extent if axis == alike[name] else 1 for axis, extent in enumerate(shape))
        values = torch.randn(small, generator=generator).expand(shape)
        made[name] = torch.nn.Parameter(values, requires_grad=False)
    probe.__dict__["_parameters"] = made
    probe.training = False
    return probe


def _agrees(probe: Any, names: tuple[str, str], form: ExpertForm, scale: float) -> bool:
    """Whether a module gives what a form says, for a few tokens."""
    first, second = (getattr(probe, name) for name in names)
    biases = [getattr(probe, f"{name}_bias", None) for name in names]
    experts, width = len(first), first.shape[1 if form.columns else 2]
    generator = torch.Generator("cpu").manual_seed(1)
    tokens = 5
    rows = experts if form.call == "even" else tokens
    x = torch.randn(rows, width, generator=generator) * scale * width**-0.5
    routing: tuple[Any, ...] = ()
    if form.call != "even":
        each = min(2, experts)
        index = torch.stack([torch.randperm(experts, generator=generator)[:each] for _ in range(tokens)])
        factors = torch.rand(tokens, each, generator=generator)
        if form.call == "scores":
            factors = torch.zeros(tokens, experts).scatter_(1, index, factors)
        routing = (index, factors)

    def product(rows: torch.Tensor, sizes: torch.Tensor, of: Any, bias: Array | None) -> torch.Tensor:
        parts = []
        for expert, own in enumerate(rows.split(sizes.tolist())):
            if len(own):
                result = own @ (of[expert] if form.columns else of[expert].T)
                parts.append(result if bias is None else result + bias[expert])
        return torch.cat(parts)

    def products(rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        between = form.passed(product(rows, sizes, first, biases[0]), act_of(probe, form))
        return product(between, sizes, second, biases[1])

    try:
        found = probe.forward(x, *routing)
        expected = form.routed(x, routing, experts, products)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())
