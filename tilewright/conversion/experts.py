"""Experts that a torch model keeps in tensors of three dimensions: which they are, and what takes their places."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.conversion.joined import in_one_form, of_rows
from tilewright.conversion.modules import put_in_place
from tilewright.conversion.schemes import QuantizationScheme
from tilewright.errors import MissingTensor, WrongArgumentShape
from tilewright.formats import number_format
from tilewright.matmul.arrays import as_torch, element_type
from tilewright.matmul.packed import PackedWeight
from tilewright.progress import Progress
from tilewright.quant.importers.arrays import FLOATS
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array, as_float32, as_numpy

if TYPE_CHECKING:
    import torch

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

    def dealt(
        self, hidden: torch.Tensor, routing: tuple[torch.Tensor, ...]
    ) -> tuple[Sequence[int] | torch.Tensor, torch.Tensor]:
        """Numbers of the rows of `hidden` in the order of experts, and how many each expert has, for a call of the
        module."""
        if self.form is None:
            return range(len(hidden)), routing[0]
        return self.form.dealt(hidden, routing, self.count)

    def between(self, expert: int, rows: np.ndarray, weight: QuantizedWeight) -> np.ndarray:
        """What an expert's second weight is multiplied by, for rows that its first one, rounded, is multiplied by."""
        import torch

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


def lying_by_columns(first: tuple[int, ...], second: tuple[int, ...]) -> bool | None:
    """Whether tensors of experts' first and second products are ``[experts, K, N]``; None where neither order fits."""
    (experts, a, b), (others, c, d) = first, second
    if experts != others or ((a, b) != (2 * d, c) and (a, b) != (d, 2 * c)):
        return None
    return (a, b) == (d, 2 * c)


def _orders(first: tuple[int, ...], second: tuple[int, ...]) -> list[bool]:
    """Whether tensors of experts may be ``[experts, K, N]``; both orders where experts have no gate."""
    gated = lying_by_columns(first, second)
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
    import torch

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
    """Put a `tilewright.nn.Experts` (or `ExpertWeights`) in the place of a module.

    Parameters
    ----------
    device : where they are to be; by default where the old ones are, or on the processor for those without memory.

    Raises
    ------
    WrongArgumentShape : the experts are of other forms, one in the middle for example.
    """
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


def dense_stacks(tensors: Mapping[str, Any], names: Iterable[str], skip: Callable[[str], bool]) -> dict[str, bool]:
    """Tensors of a checkpoint with the experts of a layer in floats, and whether they are ``[experts, K, N]``.

    Parameters
    ----------
    names : of tensors to look at.
    skip : says of a name that it stays as it is.
    """
    found: dict[str, bool] = {}
    given = set(names)
    for name in given:
        head, _, last = name.rpartition(".")
        second = f"{head}.{STACKED[1]}"
        if last != STACKED[0] or second not in given or skip(name):
            continue
        shapes = [tuple(tensors[one].shape) for one in (name, second)]
        columns = lying_by_columns(*shapes) if all(len(shape) == 3 for shape in shapes) else None
        if columns is not None and all(tensors[one].dtype.name in FLOATS for one in (name, second)):
            found |= {name: columns, second: columns}
    return found


def each_expert(
    tensors: Mapping[str, Any], name: str, columns: bool, how: QuantizationScheme
) -> Iterator[tuple[str, QuantizedWeight]]:
    """The weights that become of a tensor with the experts of a layer, ``name.0``, ``name.1``, ... Raises
    CannotQuantize."""
    stacked = tensors[name]
    for number in range(len(stacked)):
        numbers = stacked[number]
        yield f"{name}.{number}", how.quantize(numbers.T if columns else numbers, f"{name}[{number}]")


def each_bias(tensors: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """The biases of the experts of a tensor, ``name.0.bias``, ...; none where there is no ``name_bias``."""
    stacked = tensors.get(f"{name}_bias")
    return {} if stacked is None else {f"{name}.{number}.bias": bias for number, bias in enumerate(stacked)}


class GatheredExperts:
    """Weights of a checkpoint that belong to experts of a model, one after the other as they are read.

    A weight ``experts.gate_up_proj.3`` is one of a tensor; ``experts.3.w1``, ``w3`` and ``w2`` (or ``gate_proj``,
    ``up_proj`` and ``down_proj``, also as ``gate_proj.3``) are parts of two.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.stacks = model, stacks_of(model)
        self._found: dict[str, dict[tuple[str, int], QuantizedWeight]] = {}
        self._parts: dict[str, dict[tuple[str, int], QuantizedWeight]] = {}
        self._biases: dict[str, dict[tuple[str, int], Any]] = {}
        self._activations: dict[str, str | None] = {}

    def owner(self, name: str) -> str | None:
        """The module of experts that a layer of a checkpoint belongs to: one expert's, or all in one (mxfp4)."""
        full, _, last = name.rpartition(".")
        if full in self.stacks and last in self.stacks[full].names:
            return full
        place = self._place(name)
        return None if place is None else place[0]

    def take(self, name: str, weight: QuantizedWeight, activations: str | None) -> bool:
        """Keep a weight where it is an expert's; whether it is."""
        place = self._place(name)
        if place is None:
            return False
        full, what, number, whole = place
        self._activations[full] = activations
        (self._found if whole else self._parts).setdefault(full, {})[what, number] = weight
        return True

    def take_dense(self, name: str, values: Callable[[], Array]) -> None:
        """Keep a tensor of floats that belongs to experts whose other weights are codes: ``experts.3.w1.weight``, or
        ``experts.down_proj`` of all experts.

        Parameters
        ----------
        values : reads it.
        """
        full, _, last = name.rpartition(".")
        if full in self.stacks and last in self.stacks[full].names:
            places = [(full, last, number, True) for number in range(self.stacks[full].count)]
        else:
            place = self._place(name.removesuffix(".weight"))
            places = [place] if place is not None and name.endswith(".weight") else []
        if not places or places[0][0] not in {**self._found, **self._parts}:
            return
        read = as_numpy(values())
        if read.ndim == 1:  # the note that experts of codes leave
            return
        for (full, what, number, whole), dense in zip(places, read if read.ndim == 3 else [read]):
            lying = dense.T if whole and self.stacks[full].columns else dense
            weight = QuantizedWeight(np.ascontiguousarray(lying), number_format(element_type(lying)))
            (self._found if whole else self._parts).setdefault(full, {}).setdefault((what, number), weight)

    def take_bias(self, name: str, values: Array) -> bool:
        """Keep a tensor ``experts.gate_up_proj.3.bias``, or ``experts.gate_up_proj_bias`` of all experts, where it is
        one; whether it is."""
        full, _, last = name.rpartition(".")
        whole = last.removesuffix("_bias")
        if full in self.stacks and whole != last and whole in self.stacks[full].names:
            self._biases.setdefault(full, {}).update({(whole, number): row for number, row in enumerate(values)})
            return True
        place = self._place(name.removesuffix(".bias"))
        if place is None or not name.endswith(".bias"):
            return False
        self._biases.setdefault(place[0], {})[place[1:3]] = values
        return True

    def _place(self, name: str) -> tuple[str, str, int, bool] | None:
        """The module, the tensor (or part), and the expert of a weight's name; whether it is a tensor."""
        head, _, last = name.rpartition(".")
        if last.isdigit() and head in self.stacks and self.stacks[head].form is None:
            return head, self.stacks[head].names[0], int(last), True
        full, _, middle = head.rpartition(".")
        what, number = (middle, last) if last.isdigit() else (last, middle)
        if full in self.stacks and number.isdigit() and what in self.stacks[full].names:
            return full, what, int(number), True
        known = any(what in names for names in APART)
        if number.isdigit() and full in self.stacks and known and self.stacks[full].names == STACKED:
            return full, what, int(number), False
        return None

    def put_in_place(self, devices: Mapping[str, torch.device | str] = MappingProxyType({})) -> set[str]:
        """Replace the modules whose experts were read; their names.

        Parameters
        ----------
        devices : where modules are to be, by name; others stay where they are.

        Raises
        ------
        MissingTensor : an expert that the checkpoint lacks.
        WrongArgumentShape : experts of another shape than the model's, or a gate and what passes it that are of two
            forms.
        """
        for full in {**self._found, **self._parts}:
            stack = self.stacks[full]
            found = {**self._found.get(full, {}), **self._joined(full)}
            weights = {one: list(map(PackedWeight.pack, self._weights(full, one, found))) for one in stack.names}
            biases = {one: self._bias(full, one) for one in stack.names}
            replace_stack(self.model, full, stack, weights, biases, self._activations[full], devices.get(full))
        return {*self._found, *self._parts}

    def _weights(self, full: str, name: str, found: Mapping[tuple[str, int], QuantizedWeight]) -> list[QuantizedWeight]:
        experts, *shape = self.stacks[full].shape(name)
        weights = []
        for number in range(experts):
            weight = found.get((name, number))
            if weight is None:
                raise MissingTensor(f"{full}.{name}.{number} is missing: the model has {experts} experts")
            if list(weight.shape) != shape:
                raise WrongArgumentShape(
                    f"{full}.{name}.{number} is {list(weight.shape)} in the checkpoint, {shape} in the model"
                )
            weights.append(weight)
        return in_one_form(weights)

    def _bias(self, full: str, name: str) -> Any:
        known = self._biases.get(full, {})
        if self.stacks[full].bias(name) is None:
            return None
        experts = self.stacks[full].shape(name)[0]
        missing = next((number for number in range(experts) if (name, number) not in known), None)
        if missing is not None:
            raise MissingTensor(f"{full}.{name}.{missing}.bias is missing: the model has such a tensor")
        import torch

        like = self.stacks[full].bias(name)
        assert like is not None

        return torch.stack([as_torch(np.asarray(known[name, number]), "cpu") for number in range(experts)]).to(
            like.dtype
        )

    def _joined(self, full: str) -> dict[tuple[str, int], QuantizedWeight]:
        """Weights of gate and up as one, in the rows that the model has them in."""
        made: dict[tuple[str, int], QuantizedWeight] = {}
        if full not in self._parts:
            return made
        parts = {**self._found.get(full, {}), **self._parts[full]}
        names = next(names for names in APART if any(what in names for what, _ in self._parts[full]))
        gate, up, down = names
        for number in range(self.stacks[full].shape(STACKED[0])[0]):
            three = [parts.get((one, number)) for one in names]
            missing = next((one for one, weight in zip(names, three) if weight is None), None)
            if missing is not None:
                raise MissingTensor(f"{full}.{number}.{missing} is missing: an expert has {gate}, {up} and {down}")
            first, second, third = three
            assert first is not None and second is not None and third is not None
            joined = side_by_side(first, second, f"{full}.{number}", self.stacks[full].form.neighbours)
            made[STACKED[0], number], made[STACKED[1], number] = joined, third
        return made


def side_by_side(gate: QuantizedWeight, up: QuantizedWeight, name: str, neighbours: bool) -> QuantizedWeight:
    """Two weights as one with the rows of both: those of the first in front, or in turn.

    Raises
    ------
    WrongArgumentShape : they are of two forms: groups, formats, orders of columns.
    """
    rows = np.arange(2 * gate.shape[0])
    return of_rows([gate, up], rows.reshape(2, -1).T.reshape(-1) if neighbours else rows, f"{name} (gate and up)")
