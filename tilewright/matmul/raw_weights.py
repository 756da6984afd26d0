"""Weights that an operator is called with as raw tensors, brought into our order once and kept while the tensors are
what they were."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import CannotQuantize
from tilewright.libraries import torch
from tilewright.matmul.arrays import is_capturing
from tilewright.matmul.packed import PackedWeight
from tilewright.runtime.tensors import is_torch


@dataclass(frozen=True, slots=True)
class _Known:
    """A packed weight, the tensors that it was made of (weakly), and how often these had been written to."""

    sources: tuple[weakref.ref[object] | None, ...]
    state: tuple[object, ...]
    packed: PackedWeight | None


class RawWeights:
    """Packed weights by the tensors that they were made of.

    A tensor is known by itself, not by its address, which another may have later; torch counts its writes, so that one
    that was written to is packed anew, and what was made of one that is gone is gone as well. Views of one tensor are
    told apart by where they lie in it. Nothing is kept of what torch does not watch: arrays of NumPy, tensors made in
    inference mode. Writes through ``tensor.data`` are not counted either: call `clear` after those.
    """

    def __init__(self) -> None:
        self._known: dict[object, _Known] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return RawWeights, ()  # a copy meets tensors of its own

    def clear(self) -> None:
        """Forget all weights."""
        self._known.clear()

    def find(self, tensors: Sequence[Any], pack: Callable[[], PackedWeight]) -> PackedWeight | None:
        """What was made of these tensors, the weight, its scales and zeros (None for those that it has not), or is made
        now by `pack`, which may raise CannotQuantize; None where nothing can be kept, or the weight has no other
        order."""
        if not all(tensor is None or is_torch(tensor) for tensor in tensors):
            return None
        bases = [None if tensor is None else tensor if tensor._base is None else tensor._base for tensor in tensors]
        if any(base is not None and base.is_inference() for base in bases):
            return None
        key = tuple((id(base), *_place(tensor)) for base, tensor in zip(bases, tensors))
        state = tuple(None if base is None else base._version for base in bases)
        known = self._known.get(key)
        if known is not None and known.state == state and _same(known.sources, bases):
            return known.packed
        if is_capturing(tensors[0]):
            return None
        try:
            packed = pack()
        except CannotQuantize:
            packed = None
        sources = tuple(
            None if base is None else weakref.ref(base, lambda _: self._known.pop(key, None)) for base in bases
        )
        self._known[key] = _Known(sources, state, packed)
        return packed


def _place(tensor: torch.Tensor | None) -> tuple[object, ...]:
    if tensor is None:
        return ()
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _same(sources: Sequence[weakref.ref[object] | None], bases: Sequence[object]) -> bool:
    return all(base is None if source is None else source() is base for source, base in zip(sources, bases))
