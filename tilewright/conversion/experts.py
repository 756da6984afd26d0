"""Experts that a torch model keeps in tensors of three dimensions: which they are, and what takes their places."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.conversion.modules import put_in_place
from tilewright.conversion.schemes import QuantizationScheme
from tilewright.errors import WrongArgumentShape
from tilewright.libraries import torch
from tilewright.matmul.arrays import element_type
from tilewright.matmul.packed import PackedWeight
from tilewright.progress import Progress
from tilewright.quant.importers.arrays import FLOATS
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_float32, as_numpy

STACKED = ("gate_up_proj", "down_proj")
"""Names of the two tensors of a module with experts that have gates."""

UNGATED = ("up_proj", "down_proj")
"""Names of the two tensors of a module with experts that have none."""

APART = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of gate, up and down where a checkpoint has them as one weight for each expert, ``0.w1`` and so on."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A module with experts.

    Attributes
    ----------
    module : of the model.
    names : of its parameters of three dimensions.
    form : how it computes (`nn.expert_form.ExpertForm`); None where it is one product alone, of rows in runs.
    columns : whether the tensors are ``[experts, K, N]``.
    """

    module: Any
    names: tuple[str, ...]
    form: Any
    columns: bool

    def shape(self, name: str) -> tuple[int, int, int]:
        """Experts, N and K of a tensor."""
        experts, first, second = getattr(self.module, name).shape
        return (experts, second, first) if self.columns else (experts, first, second)

    @property
    def count(self) -> int:
        """How many experts there are."""
        return int(getattr(self.module, self.names[0]).shape[0])

    def rows_by_expert(
        self, hidden: torch.Tensor, routing: tuple[torch.Tensor, ...]
    ) -> tuple[Sequence[int] | torch.Tensor, torch.Tensor]:
        """Numbers of the rows of `hidden` in the order of experts, and how many each expert has, for a call of the
        module."""
        if self.form is None:
            return range(len(hidden)), routing[0]
        return self.form.rows_by_expert(hidden, routing, self.count)

    def between(self, expert: int, rows: np.ndarray, weight: QuantizedWeight) -> np.ndarray:
        """What an expert's second weight is multiplied by, for rows that its first one, rounded, is multiplied by."""
        from tilewright.nn.expert_form import act_of

        both = torch.from_numpy(rows @ weight.to_dense().astype(np.float32).T)
        bias = self.bias(self.names[0])
        with torch.no_grad():
            both = both if bias is None else both + bias[expert].detach().float().cpu()
            return as_numpy(self.form.passed(both, act_of(self.module, self.form)))

    def bias(self, name: str) -> torch.Tensor | None:
        """Biases ``[experts, N]``, or None."""
        return self.module._parameters.get(f"{name}_bias")

    def weights(self, name: str) -> Iterator[torch.Tensor]:
        """Each expert's weight ``[N, K]``, where it is."""
        for one in getattr(self.module, name).detach():
            yield one.T if self.columns else one


def are_column_major(first: tuple[int, ...], second: tuple[int, ...]) -> bool | None:
    """Whether tensors of experts' first and second products are ``[experts, K, N]``; None where neither order fits."""
    (experts, a, b), (others, c, d) = first, second
    if experts != others or ((a, b) != (2 * d, c) and (a, b) != (d, 2 * c)):
        return None
    return (a, b) == (d, 2 * c)


def _orders(first: tuple[int, ...], second: tuple[int, ...]) -> list[bool]:
    """Whether tensors of experts may be ``[experts, K, N]``; both orders where experts have no gate."""
    gated = are_column_major(first, second)
    ungated = first[0] == second[0] and first[1:] == second[:0:-1]
    return [False, True] if ungated else [] if gated is None else [gated]


def stacks_of(model: torch.nn.Module) -> dict[str, Stack]:
    """The modules of a model with experts in tensors of three dimensions that compute in a way that is known, by
    name."""
    found, known = {}, dict[Any, Any]()
    for name, module in model.named_modules():
        three = tuple(key for key, tensor in module._parameters.items() if tensor is not None and tensor.ndim == 3)
        if not (name and three):
            continue
        # Modules of one class and size, those of all layers of a model, compute alike.
        kind = type(module), three, tuple(tuple(getattr(module, one).shape) for one in three)
        if kind not in known:
            known[kind] = _stack(module, three)
        if known[kind] is not None:
            found[name] = replace(known[kind], module=module)
    return found


def _stack(module: object, three: tuple[str, ...]) -> Stack | None:
    from tilewright.nn.expert_form import form_of

    for names in (STACKED, UNGATED):
        if set(three) == set(names):
            first, second = (tuple(getattr(module, name).shape) for name in names)
            forms = (form_of(module, names, columns) for columns in _orders(first, second))
            form = next((one for one in forms if one is not None), None)
            return None if form is None else Stack(module, names, form, form.columns)
    if three == ("weight",) and _multiplies_runs(module):
        return Stack(module, three, None, False)
    return None


def _multiplies_runs(module: Any) -> bool:
    """Whether a module with a tensor ``[experts, N, K]`` multiplies rows in runs, one expert's after the other, given
    their sizes."""
    from tilewright.nn.expert_form import probe_of
    from tilewright.nn.probing import in_float32

    if len(inspect.signature(module.forward).parameters) != 2:
        return False
    with in_float32():
        probe, (experts, _, width) = probe_of(module, {}), module.weight.shape
        x = torch.randn(experts + 1, width)
        expected = torch.cat(
            [x[:2] @ probe.weight[0].T, *(x[e + 1 : e + 2] @ probe.weight[e].T for e in range(1, experts))]
        )
        try:
            found = probe.forward(x, [2, *[1] * (experts - 1)])
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
            return False
    return found.shape == expected.shape and bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


def stacks_to_quantize(model: torch.nn.Module, skip: re.Pattern[str]) -> dict[str, Stack]:
    """`stacks_of`, without those that `skip` names."""
    return {
        name: stack
        for name, stack in stacks_of(model).items()
        if not any(skip.search(f"{name}.{one}") for one in stack.names)
    }


def quantize_stack(model: torch.nn.Module, name: str, stack: Stack, how: QuantizationScheme, bar: Progress) -> None:
    """Round the experts of a module to nearest, and put what multiplies by them in its place."""
    weights: dict[str, list[PackedWeight]] = {one: [] for one in stack.names}
    for expert, numbers in enumerate(zip(*(stack.weights(one) for one in stack.names))):
        bar.step(f"{name} {expert}")
        for one, dense in zip(stack.names, numbers):
            weights[one].append(how.pack(dense, f"{name}.{one}[{expert}]"))
    biases = {one: stack.bias(one) for one in stack.names}
    replace_stack(model, name, stack, weights, biases, how.activations)


def replace_stack(
    model: torch.nn.Module,
    name: str,
    stack: Stack,
    weights: Mapping[str, Sequence[PackedWeight]],
    biases: Mapping[str, torch.Tensor | None],
    activations: str | None,
    device: torch.device | str | None = None,
) -> None:
    """Put a `tilewright.nn.Experts` (or `ExpertWeights`) in the place of a module, on the device given, else where the
    old ones are, or on the processor for those without memory. Raises WrongArgumentShape where experts are of other
    forms, one in the middle for example."""
    from tilewright.nn import Experts, ExpertWeights
    from tilewright.nn.expert_form import act_of

    held = getattr(stack.module, stack.names[0])
    device = device or ("cpu" if held.is_meta else held.device)
    try:
        made = [
            ExpertWeights(
                _with_scales_of_one_type(weights[one]),
                biases.get(one),
                None if weights[one][0].format.is_dense else activations,
                device,
            )
            for one in stack.names
        ]
    except WrongArgumentShape as error:
        raise WrongArgumentShape(f"{name}: {error.message}", hint=error.hint) from None
    first, names = made[0], (stack.names[0], stack.names[-1])
    act_fn = None if stack.form is None else act_of(stack.module, stack.form)
    layer = first if stack.form is None else Experts(first, made[1], stack.form, names, act_fn)
    put_in_place(model, name, stack.module, layer)


def _with_scales_of_one_type(weights: Sequence[PackedWeight]) -> Sequence[PackedWeight]:
    """Experts whose scales are all float32 where some need it: a scheme gives those it to weights beyond float16."""
    kinds = {element_type(weight.held["scales"]).name if "scales" in weight.held else None for weight in weights}
    if kinds == {"float16", "float32"}:
        for weight in weights:
            weight.held["scales"] = as_float32(weight.held["scales"])
    return weights


def dense_stacks(
    tensors: Mapping[str, np.ndarray], names: Iterable[str], skip: Callable[[str], bool]
) -> dict[str, bool]:
    """Tensors of a checkpoint, among those named, with the experts of a layer in floats, and whether they are
    ``[experts, K, N]``; `skip` says of a name that it stays as it is."""
    found: dict[str, bool] = {}
    given = set(names)
    for name in given:
        head, _, last = name.rpartition(".")
        second = f"{head}.{STACKED[1]}"
        if last != STACKED[0] or second not in given or skip(name):
            continue
        shapes = [tuple(tensors[one].shape) for one in (name, second)]
        columns = are_column_major(*shapes) if all(len(shape) == 3 for shape in shapes) else None
        if columns is not None and all(tensors[one].dtype.name in FLOATS for one in (name, second)):
            found |= {name: columns, second: columns}
    return found
