"""Whole regions in and out of NumPy arrays, and tile operators through their reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tilewright.errors import OutOfBounds, UninitializedRead
from tilewright.interpreter.arithmetic import Numbers, carried
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.memory import Cell, View
from tilewright.ir.nodes import Expr, Region, TileOperator
from tilewright.ops.base import scalar_operands


def read_region(state: Evaluator, region: Region) -> np.ndarray:
    """The elements of a region, shaped as its extents (after the lanes, where each lane has its own).

    Raises
    ------
    OutOfBounds, UninitializedRead : a tile is read outside its shape, or where nothing was written.
    """
    place = state.place(region.buffer)
    if isinstance(place, Cell):
        return np.reshape(carried(place.load(state.mask), region.dtype), (1,) * len(region.extents))
    starts, extents = state.bounds(region)
    inner, outer = _clip(place, starts, extents, "read")
    if place.lanes:
        return _read_lanes(place, starts, extents, state.mask)
    if outer is None:
        return _read_inside(place, starts, extents)
    result = np.full(extents, carried(place.safe, place.dtype))
    if inner is not None:
        begins, sizes = inner
        result[outer] = _read_inside(place, begins, sizes)
    return result


def write_region(state: Evaluator, region: Region, values: Numbers) -> None:
    """Set the elements of a region: an array of as many in the same order, or one for all."""
    place = state.place(region.buffer)
    if isinstance(place, Cell):
        place.store(np.reshape(values, ())[()], state.mask)
        return
    starts, extents = state.bounds(region)
    values = np.asarray(values)
    values = np.broadcast_to(values, extents) if values.ndim == 0 else np.reshape(values, extents)
    inner, outer = _clip(place, starts, extents, "write")
    if outer is not None:
        if inner is None:
            return
        starts, extents = inner
        values = values[outer]
    if values.size == 0:
        return
    if place.dtype.is_packed:
        place.scatter(_offsets(place, starts, extents), values)
        return
    _window(place, place.data, starts, extents)[...] = values
    if place.shadow is not None:
        _window(place, place.shadow, starts, extents)[...] = place.written


Box = tuple[tuple[int, ...], tuple[int, ...]]


def _clip(
    place: View, starts: tuple[int, ...], extents: tuple[int, ...], verb: str
) -> tuple[Box | None, tuple[slice, ...] | None]:
    """What of a region lies inside its buffer, and where that is in the region; (None, None) where all does."""
    if all(s >= 0 and s + e <= n for s, e, n in zip(starts, extents, place.shape, strict=True)):
        return None, None
    if not place.guarded:
        first = [s if s < 0 else s + e - 1 for s, e in zip(starts, extents, strict=True)]
        raise OutOfBounds(place.name, "[" + ", ".join(map(str, first)) + "]", place.shape, verb)
    begins = tuple(max(s, 0) for s in starts)
    ends = tuple(min(s + e, n) for s, e, n in zip(starts, extents, place.shape, strict=True))
    if any(b >= e for b, e in zip(begins, ends, strict=True)):
        return None, tuple(slice(0) for _ in starts)
    where = tuple(slice(b - s, e - s) for s, b, e in zip(starts, begins, ends, strict=True))
    return (begins, tuple(e - b for b, e in zip(begins, ends, strict=True))), where


def _read_inside(place: View, starts: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    if place.dtype.is_packed:
        offsets = _offsets(place, starts, extents)
        missing = place.unwritten(offsets)
        values = place.gather(offsets)
    else:
        values = _window(place, place.data, starts, extents).copy()
        missing = np.False_
        if place.shadow is not None:
            missing = _window(place, place.shadow, starts, extents) != place.written
    if np.any(missing):
        first = np.unravel_index(int(np.argmax(missing)), extents)
        element = ", ".join(str(int(s + i)) for s, i in zip(starts, first, strict=True))
        raise UninitializedRead(place.name, f"[{element}]")
    return values


def _read_lanes(place: View, starts: tuple[int, ...], extents: tuple[int, ...], mask: Any) -> np.ndarray:
    """What each lane has in a region; of lanes that are not active it does not matter."""
    spread = (...,) + (None,) * len(extents)
    offsets = place.lane_offset[spread] + _offsets(place, starts, extents)
    missing = place.unwritten(offsets)
    missing = missing if mask is None else missing & np.broadcast_to(mask, place.lanes)[spread]
    if np.any(missing):
        raise UninitializedRead(place.name, place.first_text(offsets, missing))
    return place.gather(offsets)


def _window(place: View, data: np.ndarray, starts: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    """A region of flat data as a strided view."""
    first = sum(start * stride for start, stride in zip(starts, place.strides, strict=True))
    if 0 in extents:
        return data[:0].reshape(extents)
    size = data.dtype.itemsize
    return np.ndarray(extents, data.dtype, data, first * size, tuple(stride * size for stride in place.strides))


def _offsets(place: View, starts: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    offset = np.zeros((), np.int64)
    for start, extent, stride in zip(starts, extents, place.strides, strict=True):
        offset = offset[..., None] + (start + np.arange(extent, dtype=np.int64)) * stride
    return offset


def run_operator(state: Evaluator, operator: TileOperator) -> None:
    """Run a tile operator once for the block, through its reference."""
    operator = resolved(state, operator)
    effects = operator.effects()
    reads = [read_region(state, region) for region in effects.reads]
    scalars = [np.asarray(carried(state.value(value), value.dtype)) for value in scalar_operands(operator)]
    for region, result in zip(effects.writes, operator.reference(*reads, *scalars), strict=True):
        write_region(state, region, result)


def resolved(state: Evaluator, operator: TileOperator) -> TileOperator:
    """The operator with the conditions among its fields evaluated."""
    known: dict[str, Any] = {
        name: bool(state.uniform(getattr(operator, name)))
        for name in operator.conditions
        if isinstance(getattr(operator, name), Expr)
    }
    return dataclasses.replace(operator, **known) if known else operator
