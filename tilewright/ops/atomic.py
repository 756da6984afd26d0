"""`T.atomic_add` and its kin on tiles: combine with what is in memory, whoever else does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir import GREATEST, LEAST, DType
from tilewright.ir import nodes as ir
from tilewright.ops.base import check_apart, element, elementwise, full_index, same_shape, shape_text
from tilewright.ops.rounding import cast_array, round_float, wrap

KINDS = ("add", "max", "min", "and", "or", "xor")
ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")


@ir.tile_operator("atomic")
class Atomic(ir.TileOperator):
    """``destination[...] = destination[...] op value[...]``, each element atomically.

    The scalar form, which returns the old value, is the intrinsic ``atomic_<kind>``.

    Fields
    ------
    destination : a region of a global or shared buffer.
    value : a region of the same shape, or a scalar for all elements; converted to the destination's dtype.
    kind : one of `KINDS`.
    order : memory order, one of `ORDERS`.
    """

    destination: ir.Region
    value: ir.Region | ir.Expr
    kind: str = "add"
    order: str = "relaxed"

    def check(self) -> Iterator[str]:
        dtype = self.destination.dtype
        if self.kind not in KINDS:
            yield f"the kind is {self.kind!r}, but should be one of {', '.join(KINDS)}"
        if self.order not in ORDERS:
            yield f"the memory order is {self.order!r}, but should be one of {', '.join(ORDERS)}"
        if isinstance(self.value, ir.Region) and not same_shape(self.value.tile_shape, self.destination.tile_shape):
            yield f"shapes differ: value {shape_text(self.value)}, destination {shape_text(self.destination)}"
        if isinstance(self.value, ir.Region):
            yield from check_apart(self.value, self.destination)
        if self.kind in ("and", "or", "xor") and not dtype.is_integer:
            yield f"atomic {self.kind} needs integers, but the destination is {dtype}"
        if dtype.kind == "bool" or dtype.is_packed:
            yield f"the destination is {dtype}, but atomics need numbers of 8 bits or more"
        if self.destination.buffer.scope not in ("global", "shared"):
            yield (
                f"the destination is a {self.destination.buffer.scope} buffer, but atomics need global or shared memory"
            )

    def effects(self) -> ir.Effects:
        reads = (self.destination, self.value) if isinstance(self.value, ir.Region) else (self.destination,)
        return ir.Effects(reads=reads, writes=(self.destination,), atomic=True)

    def reference(self, old: np.ndarray, value: Any) -> tuple[np.ndarray]:  # an array or a number
        dtype = self.destination.dtype
        value = cast_array(value, self.value.dtype, dtype)
        value = np.reshape(value, old.shape) if isinstance(self.value, ir.Region) else value
        return (combine(self.kind, old, value, dtype),)

    def lower(self) -> ir.Statement:
        return elementwise(self.destination, self._lower_element, span=self.span)

    def _lower_element(self, *index: ir.Expr) -> ir.Statement:
        value = element(self.value, index) if isinstance(self.value, ir.Region) else self.value
        dtype = self.destination.dtype
        place = full_index(self.destination, index)
        return ir.Evaluate(atomic_call(self.kind, self.destination, place, ir.cast(value, dtype), self.order))


def atomic_call(kind: str, destination: ir.Region, place: Sequence[ir.Expr], value: ir.Expr, order: str) -> ir.Call:
    """The scalar atomic on the element of `destination`'s buffer at `place`; its value is the old one."""
    target = ir.Region(destination.buffer, tuple(place), (1,) * len(place))
    return ir.Call(destination.dtype, f"atomic_{kind}", (target, value, order))


_COMBINE: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "max": GREATEST, "min": LEAST,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def combine(kind: str, old: np.ndarray, value: np.ndarray, dtype: DType) -> np.ndarray:
    """``old op value`` in the carrier of `dtype`, rounded or wrapped to it."""
    if kind == "add" and dtype.is_float:
        with np.errstate(invalid="ignore", over="ignore"):
            return round_float(np.asarray(old, np.float64) + np.asarray(value, np.float64), dtype)
    with np.errstate(over="ignore"):
        result = np.asarray(_COMBINE[kind](old, value))
    return wrap(result, dtype) if dtype.is_integer else result
