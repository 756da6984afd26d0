"""Experts of a checkpoint, gathered weight by weight until a layer of a model has all of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from tilewright.conversion.experts import APART, STACKED, replace_stack, stacks_of
from tilewright.conversion.joined import in_one_form, of_rows
from tilewright.conversion.schemes import QuantizationScheme
from tilewright.errors import MissingTensor, WrongArgumentShape
from tilewright.formats import number_format
from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch, element_type
from tilewright.matmul.packed import PackedWeight
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array, as_numpy


def each_expert(
    tensors: Mapping[str, np.ndarray], name: str, columns: bool, how: QuantizationScheme
) -> Iterator[tuple[str, QuantizedWeight]]:
    """The weights that become of a tensor with the experts of a layer, ``name.0``, ``name.1``, ... Raises
    CannotQuantize."""
    stacked = tensors[name]
    for number in range(len(stacked)):
        numbers = stacked[number]
        yield f"{name}.{number}", how.quantize(numbers.T if columns else numbers, f"{name}[{number}]")


def each_bias(tensors: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
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
        self._biases: dict[str, dict[tuple[str, int], Array]] = {}
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
        """Keep a tensor of floats, which `values` reads, that belongs to experts whose other weights are codes:
        ``experts.3.w1.weight``, or ``experts.down_proj`` of all experts."""
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
        """Keep a tensor ``experts.gate_up_proj.3.bias``, or one of all experts (``experts.gate_up_proj_bias``, MLX's
        ``experts.up_proj.bias``), where it is one; whether it is."""
        full, _, last = name.rpartition(".")
        whole = last.removesuffix("_bias")
        if full in self.stacks and whole != last and whole in self.stacks[full].names:
            self._biases.setdefault(full, {}).update({(whole, number): row for number, row in enumerate(values)})
            return True
        layer, rows = name.removesuffix(".bias"), {"": values}
        if values.ndim == 2:  # of all experts (MLX)
            rows = {f".{number}": row for number, row in enumerate(values)}
        places = {number: self._place(layer + number) for number in rows if name.endswith(".bias")}
        for number, place in places.items():
            if place is not None:
                self._biases.setdefault(place[0], {})[place[1:3]] = rows[number]
        return any(places.values())

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
        """Replace the modules whose experts were read, on the devices that are given by name, else where they are;
        their names. Raises MissingTensor for an expert that the checkpoint lacks, WrongArgumentShape for one of another
        shape than the model's, or a gate and what passes it that are of two forms."""
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

    def _bias(self, full: str, name: str) -> torch.Tensor | None:
        known, stack = dict(self._biases.get(full, {})), self.stacks[full]
        if stack.bias(name) is None:
            return None
        for gate, up, down in APART if stack.names == STACKED else ():
            for (what, number), values in list(known.items()):
                if what == gate and (up, number) in known:
                    both = np.stack([as_numpy(values), as_numpy(known[up, number])])
                    known[STACKED[0], number] = (both.T if stack.form.neighbours else both).reshape(-1)
                elif what == down:
                    known[STACKED[1], number] = values
        experts = self.stacks[full].shape(name)[0]
        missing = next((number for number in range(experts) if (name, number) not in known), None)
        if missing is not None:
            raise MissingTensor(f"{full}.{name}.{missing}.bias is missing: the model has such a tensor")
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
    """Two weights as one with the rows of both: those of the first in front, or in turn. Raises as `of_rows`."""
    rows = np.arange(2 * gate.shape[0])
    return of_rows([gate, up], rows.reshape(2, -1).T.reshape(-1) if neighbours else rows, f"{name} (gate and up)")
