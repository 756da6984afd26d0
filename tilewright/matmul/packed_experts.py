"""Weights of one shape and form, stacked, so that one launch serves all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import Unsupported, WrongArgumentKind, WrongArgumentShape, an
from tilewright.libraries import torch
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.matmul.arrays import kept
from tilewright.matmul.packed import PackedWeight, named
from tilewright.matmul.tiers.records import Coding, can_be_lifted, records_of
from tilewright.matmul.tiers.scaled import channel_scales
from tilewright.quant.weight import meaning
from tilewright.runtime.tensors import Array
from tilewright.targets.registry import resolve_device

Made = TypeVar("Made")


class PackedExperts(Sequence[PackedWeight]):
    """Weights of one shape and form with their arrays stacked, so that one launch serves all of them.

    Parameters
    ----------
    weights : on one device; what they hold is copied.

    Raises
    ------
    WrongArgumentShape : there are none, or they differ in shape, format, groups or the arrays that they have.

    Notes
    -----
    Each entry is a `PackedWeight` whose arrays are parts of the stacked ones.
    """

    def __init__(self, weights: Sequence[PackedWeight]) -> None:
        if not weights:
            raise WrongArgumentShape("no weights were given to stack")
        for number, weight in enumerate(weights):
            if not isinstance(weight, PackedWeight):
                raise WrongArgumentKind(f"weight {number} is {an(type(weight).__name__)}, expected a PackedWeight")
        first = weights[0]
        if any("rotation" in weight.held for weight in weights):
            raise Unsupported("experts that rotate their activations", ("weights without a rotation",))
        for number, weight in enumerate(weights):
            if _form(weight) != _form(first):
                raise WrongArgumentShape(
                    f"weight {number} is {weight!r}, weight 0 {first!r}", hint="experts that are stacked have one form"
                )
        self.held = {
            name: _stacked([weight.codes if name == "codes" else weight.held[name] for weight in weights])
            for name in first.held
        }
        """Codes row by row (gone where there are records instead), scales and the like, stacked."""
        self._weights = tuple(
            named(PackedWeight(one.format, one.shape, {k: v[number] for k, v in self.held.items()}, **meaning(one)))
            for number, one in enumerate(weights)
        )
        self._derived: dict[object, Any] = {}
        self.handle: Array | None = None
        named(self)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_derived": {}, "handle": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        named(self)

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, number: Any) -> Any:
        return self._weights[number]

    def __iter__(self) -> Iterator[PackedWeight]:
        return iter(self._weights)

    @property
    def codes(self) -> Array:  # an array of the library that the weights are of
        """Codes row by row, stacked: made again, once, where kernels hold them otherwise."""
        held = self.held.get("codes")
        return self._once("codes", lambda: _stacked([one.codes for one in self._weights])) if held is None else held

    @property
    def shape(self) -> tuple[int, int]:
        """Of one of them, ``[N, K]``."""
        return self._weights[0].shape

    @property
    def device(self) -> str:
        return self._weights[0].place

    @property
    def are_for_threads(self) -> bool:
        """Whether they are where blocks are many threads, which one launch may serve them with."""
        return self._once("threads", lambda: resolve_device(self.device)[1].has_threads)

    def to(self, device: object) -> PackedExperts:
        """The same weights as torch tensors on a device."""
        return PackedExperts([weight.to(device) for weight in self._weights])

    def channel_scales(self, example: Array) -> Array:
        """Scales of all channels, ``[experts, N]`` float32."""
        return self._once("scales", lambda: _stacked([channel_scales(weight, example) for weight in self._weights]))

    def records(self, form: FragmentRecords, coding: Coding, example: Array) -> tuple[Array, Array]:
        """Records of all weights, one below the other, and a float32 factor of each."""

        def made() -> tuple[Array, Array]:
            each = [records_of(weight, form, coding, example) for weight in self._weights]
            words, factors = _stacked([one.words for one in each]), _stacked([one.factor for one in each])
            for weight, own in zip(self._weights, words):
                if weight.order is not None:
                    weight.become(weight.order, own)
                    self.held.pop("codes", None)
            return words.reshape(-1, *words.shape[2:]), factors.reshape(-1)

        return self._once(str(form), made)

    def can_be_lifted(self, form: FragmentRecords) -> bool:
        """Whether codes of all weights can be scaled by one operation."""
        key = f"lifted {form}"
        return self._once(key, lambda: all(can_be_lifted(weight, form) for weight in self._weights))

    def _once(self, key: str, make: Callable[[], Made]) -> Made:
        if key not in self._derived:
            self._derived[key] = kept(make, self._weights[0].held["codes"], "experts are packed")
        found: Made = self._derived[key]
        return found


def _form(weight: PackedWeight) -> object:
    others = [(name, array) for name, array in weight.held.items() if name != "codes"]
    arrays = sorted((name, tuple(array.shape), str(array.dtype)) for name, array in others)
    return weight.format, weight.shape, weight.block, weight.zeros_mode, weight.place, arrays


def _stacked(arrays: Sequence[Any]) -> Array:
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    return torch.stack(list(arrays))
