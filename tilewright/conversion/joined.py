"""Layers that a checkpoint has in one piece and a model in several, or the other way round: rows of codes go where
transformers puts those of dense weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.conversion.names import Names
from tilewright.errors import MissingTensor, WrongArgumentShape
from tilewright.quant.weight import QuantizedWeight


class JoinedLayers:
    """The weights of a checkpoint by the model's names, as they are read.

    Parameters
    ----------
    renamed : gives the model's names.
    layers : all names of quantised weights of the checkpoint.
    """

    def __init__(self, renamed: Names, layers: Iterable[str]) -> None:
        self._renamed = renamed
        self._targets = {name: made for name in layers if (made := renamed.made_of(name))}
        self._waiting: dict[str, dict[str, QuantizedWeight | None]] = {}
        for name, made in self._targets.items():
            self._waiting.setdefault(made[0], {})[name] = None

    def places(self, name: str) -> list[str]:
        """The model's layers that a layer of the checkpoint goes to."""
        return self._targets.get(name) or [self._renamed(name)]

    def take(self, name: str, weight: QuantizedWeight) -> dict[str, QuantizedWeight]:
        """The weights that are whole with this one, by the model's names. Raises CannotQuantize, WrongArgumentShape for
        rows that cannot be dealt out as transformers does."""
        if name not in self._targets:
            return {self._renamed(name): weight}
        target = self._targets[name][0]
        parts = self._waiting[target]
        parts[name] = weight
        there = {one: part for one, part in parts.items() if part is not None}
        if len(there) < len(parts):
            return {}
        del self._waiting[target]
        found = self._renamed.rows(target, {one: part.shape[0] for one, part in there.items()})
        return {one: of_rows(list(there.values()), rows, one) for one, rows in found.items()}

    def check(self) -> None:
        """Whether all weights have come that a layer is made of.  Raises MissingTensor."""
        for target, parts in self._waiting.items():
            missing = [name for name, part in parts.items() if part is None]
            raise MissingTensor(f"{target} is made of {', '.join(parts)}: {missing[0]} is missing")


def of_rows(parts: Sequence[QuantizedWeight], rows: np.ndarray, name: str) -> QuantizedWeight:
    """A weight, called `name` in messages, of rows of others, whose numbers count through all parts, with the numbers
    that they have there. Raises WrongArgumentShape for parts of two forms: groups, formats, orders of columns."""
    if len({one.tensor_scale for one in parts}) > 1:
        parts = [_with_factor_in_scales(one) for one in parts]
    parts = in_one_form(parts)
    first = parts[0]
    if any(_form(one) != _form(first) or not _same_order(one, first) for one in parts[1:]):
        raise WrongArgumentShape(
            f"{name} is made of weights of two forms, which cannot be the rows of one",
            hint="the model keeps them in one tensor; one whose layers are apart takes them as they are",
        )
    ends = np.cumsum([one.shape[0] for one in parts])
    part = np.searchsorted(ends, rows, "right")
    within = rows - (ends - [one.shape[0] for one in parts])[part]
    arrays = {key: _rows_of([getattr(one, key) for one in parts], parts, part, within) for key in _GROUPED}
    block = (min(max(one.block[0] for one in parts), len(rows)), first.block[1])
    kept = {key: _in_blocks(values, block[0]) for key, values in arrays.items()}
    if any(values is not None and kept[key] is None for key, values in arrays.items()):
        block, kept = (1, block[1]), arrays
    codes = np.concatenate([one.codes for one in parts])[rows]
    factors = kept["scales"], kept["zeros"], first.zeros_mode, block
    others = first.g_idx, kept["multipliers"], first.tensor_scale, first.divisors
    return QuantizedWeight(codes, first.format, *factors, *others, rotation=first.rotation)


def in_one_form(weights: Sequence[QuantizedWeight]) -> list[QuantizedWeight]:
    """Weights with the same numbers in arrays of the same kinds: readers leave out what says nothing, so some may lack
    zero points or an order of columns that others have, or have one number for all groups. Weights of different
    formats, groups or modes of zeros stay as they are.
    """
    first, modes = weights[0], {one.zeros_mode for one in weights if one.zeros is not None}
    ways = {(one.format, one.shape[1], one.block[1]) for one in weights}
    if len(ways) > 1 or len(modes) > 1:
        return list(weights)
    made: list[dict[str, Any]] = [{"zeros_mode": (modes or {first.zeros_mode}).copy().pop()} for _ in weights]
    if len({one.shape for one in weights}) == 1 < len({one.block for one in weights}):
        weights = [_by_rows(one) for one in weights]
    for key in _GROUPED:
        held = [getattr(one, key) for one in weights]
        there = [one for one in held if one is not None]
        if not there:
            continue
        kinds, columns = {one.dtype for one in there}, max(one.shape[1] for one in there)
        wide = np.float64 if np.dtype(np.float64) in kinds else np.float32
        alike = len({len(one) for one in there}) == 1 and len(there) == len(held)
        for fields, one, values in zip(made, weights, held):
            values = np.full((1, 1), key != "zeros") if values is None else values
            rows = len(values) if alike else one.group_shape[0]
            fields[key] = np.broadcast_to(values, (rows, columns)).astype(
                kinds.copy().pop() if len(kinds) == 1 else wide
            )
    for key, nothing in (("g_idx", np.arange(first.shape[1]) // first.block[1]), ("divisors", np.ones(first.shape[1]))):
        there = [getattr(one, key) for one in weights if getattr(one, key) is not None]
        for fields, one in zip(made, weights) if there else ():
            values = getattr(one, key)
            fields[key] = nothing.astype(there[0].dtype) if values is None else values
    return [replace(one, **fields) for one, fields in zip(weights, made)]


def _with_factor_in_scales(weight: QuantizedWeight) -> QuantizedWeight:
    """The same weight without a factor of all of it: in float64 the products of scales and factor are exact."""
    scales = np.ones((1, 1)) if weight.scales is None else weight.scales.astype(np.float64)
    return replace(weight, scales=scales * weight.tensor_scale, tensor_scale=1.0)


def _by_rows(weight: QuantizedWeight) -> QuantizedWeight:
    """The same weight in groups of one row."""
    rows = np.arange(weight.shape[0]) // weight.block[0]
    held = {key: getattr(weight, key) for key in _GROUPED}
    made = {key: one if one is None or len(one) == 1 else one[rows] for key, one in held.items()}
    return replace(weight, block=(1, weight.block[1]), **made)


_GROUPED = ("scales", "zeros", "multipliers")


def _form(weight: QuantizedWeight) -> object:
    arrays = [getattr(weight, key) for key in _GROUPED]
    held = [None if one is None else (one.dtype, one.shape[1]) for one in arrays]
    return weight.format, weight.shape[1], weight.block[1], weight.zeros_mode, weight.tensor_scale, held


def _same_order(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    """Whether the columns of two weights are in one order, and multiplied alike."""
    pairs = ((one.g_idx, other.g_idx), (one.divisors, other.divisors), (one.rotation, other.rotation))
    return all((a is None) == (b is None) and (a is None or b is None or np.array_equal(a, b)) for a, b in pairs)


def _rows_of(
    arrays: Sequence[np.ndarray | None], parts: Sequence[QuantizedWeight], part: np.ndarray, within: np.ndarray
) -> np.ndarray | None:
    """What each row has of an array with one row for a block of rows, or for all."""
    there = [one for one in arrays if one is not None]
    if not there:
        return None
    begun = np.cumsum([0, *(len(one) for one in there)])[part]
    each = np.array([weight.block[0] if len(one) > 1 else weight.shape[0] for one, weight in zip(there, parts)])
    return np.concatenate(there)[begun + within // each[part]]


def _in_blocks(values: np.ndarray | None, rows: int) -> np.ndarray | None:
    """One row for each block of rows, or for all; None where rows of a block differ."""
    if values is None or (values == values[:1]).all():
        return None if values is None else values[:1]
    blocks = values[::rows]
    return blocks if (np.repeat(blocks, rows, 0)[: len(values)] == values).all() else None
