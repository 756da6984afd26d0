"""Where elements live while a program is interpreted: bytes, a shadow that knows which were written, views.

A `Memory` is the bytes of one allocation, or of a caller's array.  A `View` is how one buffer sees it: element
type, shape, strides.  Types below eight bits stay packed, so that views of other types see the true bytes.
The shadow has a 1 for every bit that was ever written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from tilewright.errors import ConflictingWrites, OutOfBounds, UninitializedRead
from tilewright.interpreter.arithmetic import Numbers, carried, settle
from tilewright.interpreter.poison import poison
from tilewright.ir.dtypes import DType


@dataclass(slots=True)
class Memory:
    """Bytes of one allocation.

    Attributes
    ----------
    data : flat uint8 array, or the caller's elements as a flat array of their own type.
    shadow : as many bytes; None where nothing is checked (global memory).
    lanes : shape of the lanes that have a copy each; empty where there is one for all.
    lane_bytes : bytes of one copy.
    """

    data: np.ndarray
    shadow: np.ndarray | None = None
    lanes: tuple[int, ...] = ()
    lane_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return self.lane_bytes if self.lanes else self.data.nbytes

    def of(self, threads: slice) -> Memory:
        """The copies of some of the lanes."""
        part = slice(threads.start * self.lane_bytes, threads.stop * self.lane_bytes)
        shadow = None if self.shadow is None else self.shadow[part]
        return Memory(self.data[part], shadow, (threads.stop - threads.start,), self.lane_bytes)


def row_major(shape: Sequence[int], dtype: DType) -> tuple[int, ...]:
    """Strides in elements; rows of packed types start at whole bytes."""
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(range(len(shape))):
        strides[axis] = step
        extent = shape[axis]
        if axis == len(shape) - 1:
            extent = -(-extent // dtype.per_byte) * dtype.per_byte
        step *= extent
    return tuple(strides)


def flat_length(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, those between rows too."""
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def as_row(array: np.ndarray) -> np.ndarray:
    """The memory of an array from its first element to its last as one row, gaps between its rows included."""
    if array.size == 0 or array.flags.c_contiguous:
        return array.reshape(-1)
    reach = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
    shape, strides = (reach // array.itemsize + 1,), (array.itemsize,)
    bits = array.view(f"u{array.itemsize}")  # `as_strided` does not know every type of ml_dtypes
    return np.lib.stride_tricks.as_strided(bits, shape, strides, writeable=array.flags.writeable).view(array.dtype)


def allocate(
    shape: Sequence[int], dtype: DType, lanes: tuple[int, ...] = (), checked: bool = True, zeros: bool = False
) -> Memory:
    """Fresh poisoned memory for a buffer; where it is `checked`, reading what was never written is an error. Or
    `zeros`."""
    elements = math.prod(shape[:-1]) * (-(-shape[-1] // dtype.per_byte) * dtype.per_byte) if shape else 1
    lane_bytes = -(-dtype.nbytes(elements) // 16) * 16
    count = lane_bytes * math.prod(lanes)
    if zeros:
        return Memory(np.zeros(count, np.uint8), None, lanes, lane_bytes)
    data = np.empty(count, np.uint8)
    poison(data if dtype.is_packed else data.view(dtype.numpy), dtype)
    return Memory(data, np.zeros(count, np.uint8) if checked else None, lanes, lane_bytes)


class View:
    """A buffer's elements in a memory.

    Parameters
    ----------
    guarded : out-of-bounds reads give `safe` and writes are dropped; otherwise they are errors.
    """

    __slots__ = (
        "bits", "data", "dtype", "guarded", "lane_elements", "lane_offset", "lanes", "name", "safe", "shadow",
        "shape", "strides", "written",
    )  # fmt: skip

    def __init__(
        self, name: str, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], memory: Memory, guarded: bool
    ) -> None:
        self.name, self.dtype, self.shape, self.strides, self.guarded = name, dtype, shape, strides, guarded
        self.lanes = memory.lanes
        self.safe: Numbers = settle(np.zeros((), dtype.numpy), dtype)
        self.data: np.ndarray
        self.shadow: np.ndarray | None
        if dtype.is_packed:
            self.data, self.shadow, self.bits = memory.data.view(np.uint8), memory.shadow, np.dtype(np.uint8)
            self.written: Numbers = np.uint8((1 << dtype.bits) - 1)
            per_lane = memory.lane_bytes * dtype.per_byte
        else:
            self.bits = np.dtype(f"uint{8 * dtype.numpy.itemsize}")
            self.data = memory.data.view(dtype.numpy)
            self.shadow = None if memory.shadow is None else memory.shadow.view(self.bits)
            self.written = self.bits.type(np.iinfo(self.bits).max)
            per_lane = memory.lane_bytes // dtype.numpy.itemsize
        self.lane_offset: Numbers = 0
        self.lane_elements = per_lane if memory.lanes else 0
        if memory.lanes:
            self.lane_offset = np.arange(math.prod(memory.lanes), dtype=np.int64).reshape(memory.lanes) * per_lane

    def of(self, threads: slice) -> View:
        """The same of some of the lanes: their parts lie behind those of the lanes before."""
        made = copy(self)
        made.lanes, made.lane_offset = (threads.stop - threads.start,), np.asarray(self.lane_offset)[threads]
        return made

    # Elements by flat offset --------------------------------------------------------------------

    def gather(self, offset: Numbers) -> Numbers:
        """Elements at flat offsets, in carriers."""
        if not self.dtype.is_packed:
            return self.data[offset]
        return _from_codes(self._codes(self.data, offset), self.dtype)

    def scatter(self, offset: Numbers, values: Numbers) -> None:
        """Set elements at flat offsets and mark them written; of two values for one element the last stays."""
        if self.dtype.is_packed:
            self._scatter_codes(self.data, offset, _to_codes(values, self.dtype))
            if self.shadow is not None:
                self._scatter_codes(self.shadow, offset, np.broadcast_to(self.written, np.shape(offset)))
            return
        self.data[offset] = values
        if self.shadow is not None:
            self.shadow[offset] = self.written

    def unwritten(self, offset: Numbers) -> Numbers:
        """Which of the elements at flat offsets were never written (all False where nothing is checked)."""
        if self.shadow is None:
            return np.False_
        return (self._codes(self.shadow, offset) if self.dtype.is_packed else self.shadow[offset]) != self.written

    def _codes(self, data: np.ndarray, offset: Numbers) -> Numbers:
        place, within = np.divmod(offset, self.dtype.per_byte)
        shift = np.asarray(within * self.dtype.bits).astype(np.uint8)
        return (data[place] >> shift) & np.uint8((1 << self.dtype.bits) - 1)

    def _scatter_codes(self, data: np.ndarray, offset: Numbers, codes: Numbers) -> None:
        # One pass for each place within a byte, so that no byte is written twice in one pass.
        offset, codes = np.broadcast_arrays(np.atleast_1d(offset), codes)
        for within in range(self.dtype.per_byte):
            chosen = offset % self.dtype.per_byte == within
            shift = np.uint8(within * self.dtype.bits)
            place = offset[chosen] // self.dtype.per_byte
            kept = data[place] & np.uint8(0xFF & ~(int((1 << self.dtype.bits) - 1) << int(shift)))
            data[place] = kept | (codes[chosen].astype(np.uint8) << shift)

    # Elements by index --------------------------------------------------------------------------

    def locate(self, indices: Sequence[Numbers], width: int = 1) -> tuple[Numbers, Numbers]:
        """Flat offset of an element, or of `width` consecutive ones along a last axis, and which are inside.

        Offsets of elements outside are those of some element inside; the second result is None where all are.
        """
        offset: Numbers = self.lane_offset
        inside: Numbers = None
        if width > 1:
            indices = [i[..., None] if isinstance(i, np.ndarray) else i for i in indices]
            indices[-1] = np.asarray(indices[-1], np.int64) + np.arange(width)
            offset = offset[..., None] if isinstance(offset, np.ndarray) else offset
        for index, extent, stride in zip(indices, self.shape, self.strides, strict=True):
            if isinstance(index, np.ndarray):
                index = index.astype(np.int64)
                if index.size and (index.min() < 0 or index.max() >= extent):
                    fits = (index >= 0) & (index < extent)
                    inside = fits if inside is None else inside & fits
                    index = np.clip(index, 0, max(extent - 1, 0))
            elif not 0 <= index < extent:
                inside, index = np.False_, 0
            offset = offset + index * stride
        return offset, inside

    def span(self, indices: Sequence[Numbers], width: int) -> int:
        """Flat offset of the first of `width` consecutive elements, where that is one place inside; else -1."""
        if self.lanes or self.dtype.is_packed:
            return -1
        offset = 0
        for index, extent, stride in zip(indices, self.shape, self.strides, strict=True):
            if not isinstance(index, int) or not 0 <= index < extent:
                return -1
            offset += index * stride
        return offset if width == 1 or (indices[-1] + width <= self.shape[-1] and self.strides[-1] == 1) else -1

    def load(self, indices: Sequence[Numbers], width: int, mask: object) -> Numbers:
        """Elements at `indices`; `mask` says which lanes ask for them (None: all)."""
        if mask is None:
            first = self.span(indices, width)
            if first >= 0:
                return self._load_span(first, width)
        offset, inside = self.locate(indices, width)
        if inside is not None:
            if not self.guarded and _some(~inside if mask is None else ~inside & mask):
                raise self._outside(indices, width, inside, mask, "read")
            if self.data.size == 0:
                return self.safe
        if self.shadow is not None:
            missing = self.unwritten(offset)
            missing = missing if inside is None else missing & inside
            if _some(missing if mask is None else missing & mask):
                raise self._uninitialized(offset, missing if mask is None else missing & mask)
        values = self.gather(offset)
        if inside is not None and self.guarded:
            values = np.where(inside, values, carried(self.safe, self.dtype))
        return settle(values, self.dtype)

    def _load_span(self, first: int, width: int) -> Numbers:
        """Consecutive elements; of several, the memory itself, to be used before anything is stored."""
        if width == 1:
            if self.shadow is not None and self.shadow[first] != self.written:
                raise self._uninitialized(first, True)
            return settle(self.data[first], self.dtype)
        if self.shadow is not None:
            missing = self.shadow[first : first + width] != self.written
            if missing.any():
                raise self._uninitialized(first + np.arange(width), missing)
        return self.data[first : first + width]

    def store(self, indices: Sequence[Numbers], width: int, values: Numbers, mask: Numbers) -> None:
        """Set elements at `indices` in the lanes of `mask`."""
        if mask is None and np.ndim(values) == (width > 1):
            first = self.span(indices, width)
            if first >= 0:
                self.data[first : first + width] = carried(values, self.dtype)
                if self.shadow is not None:
                    self.shadow[first : first + width] = self.written
                return
        offset, inside = self.locate(indices, width)
        active = mask
        if inside is not None:
            if not self.guarded and _some(~inside if mask is None else ~inside & mask):
                raise self._outside(indices, width, inside, mask, "write")
            active = inside if mask is None else inside & mask
        values = carried(values, self.dtype)
        if not isinstance(offset, np.ndarray) and np.ndim(values) == 0:
            if active is None or _some(active):
                self.scatter(offset, values)
            return
        self._store_lanes(offset, values, active)

    def _store_lanes(self, offset: Numbers, values: Numbers, active: Numbers) -> None:
        if active is None:
            offset, values = np.broadcast_arrays(offset, values)
        else:
            offset, values, active = np.broadcast_arrays(offset, values, active)
            offset, values = offset[active], values[active]
        if not offset.size:
            return
        self.scatter(offset, values)
        kept = self.gather(offset)
        if not np.array_equal(as_bits(kept), as_bits(values)):
            raise ConflictingWrites(self.name, self.first_text(offset, as_bits(kept) != as_bits(values)))

    # Messages -----------------------------------------------------------------------------------

    def index_text(self, offset: int) -> str:
        """The index of the element at a flat offset."""
        if self.lane_elements:
            offset %= self.lane_elements
        index = []
        for stride in self.strides:
            index.append(offset // stride)
            offset -= index[-1] * stride
        return "[" + ", ".join(map(str, index)) + "]"

    def first_text(self, offset: Numbers, wrong: Numbers) -> str:
        """The index of the first element, of those at some offsets, with which something is wrong."""
        offset, wrong = np.broadcast_arrays(offset, wrong)
        return self.index_text(int(offset.reshape(-1)[int(np.argmax(wrong))]))

    def _uninitialized(self, offset: Numbers, missing: Numbers) -> UninitializedRead:
        return UninitializedRead(self.name, self.first_text(offset, missing))

    def _outside(self, indices: Sequence[object], width: int, inside: Numbers, mask: Numbers, verb: str) -> OutOfBounds:
        parts: list[Numbers] = [np.asarray(index) for index in indices]
        if width > 1:
            parts = [part[..., None] for part in parts]
            parts[-1] = parts[-1] + np.arange(width)
        *parts, bad = np.broadcast_arrays(*parts, ~inside if mask is None else ~inside & mask)
        first = int(np.argmax(bad))
        element = "[" + ", ".join(str(int(part.reshape(-1)[first])) for part in parts) + "]"
        return OutOfBounds(self.name, element, self.shape, verb)


class Cell:
    """A mutable scalar, with one value for each of its lanes."""

    __slots__ = ("dtype", "lanes", "name", "valid", "value")

    def __init__(self, name: str, dtype: DType, lanes: tuple[int, ...]) -> None:
        self.name, self.dtype, self.lanes = name, dtype, lanes
        self.value: Numbers = settle(np.zeros((), dtype.numpy), dtype)
        self.valid: Numbers = False

    def of(self, threads: slice) -> Cell:
        """What some of the lanes have, on their own."""
        made = Cell(self.name, self.dtype, (threads.stop - threads.start,))
        made.value, made.valid = (one[threads] if np.ndim(one) else one for one in (self.value, self.valid))
        return made

    def join(self, parts: Sequence[Cell]) -> None:
        """Take over what parts of the lanes have, one after another."""
        values = [np.broadcast_to(carried(part.value, self.dtype), part.lanes) for part in parts]
        self.value = settle(np.concatenate(values), self.dtype)
        self.valid = np.concatenate([np.broadcast_to(part.valid, part.lanes) for part in parts])

    def load(self, mask: object) -> Numbers:
        """The value; `mask` says which lanes ask for it (None: all)."""
        if self.valid is not True and _some(
            ~np.asarray(self.valid) if mask is None else mask & ~np.asarray(self.valid)
        ):
            raise UninitializedRead(self.name, "")
        return self.value

    def store(self, value: Numbers, mask: Numbers) -> None:
        """Set the value in the lanes of `mask`."""
        if max(np.ndim(value), 0 if mask is None else np.ndim(mask)) > len(self.lanes):
            value, mask = self._agreed(value, mask)
        if mask is None:
            self.value, self.valid = value, True
            return
        self.value = settle(np.where(mask, carried(value, self.dtype), carried(self.value, self.dtype)), self.dtype)
        if self.valid is not True:
            self.valid = np.asarray(self.valid) | mask

    def _agreed(self, value: Numbers, mask: Numbers) -> tuple[Numbers, Numbers]:
        """What iterations that share the scalar all store; they may not disagree."""
        mask = np.True_ if mask is None else mask
        values, active = np.broadcast_arrays(carried(value, self.dtype), mask)
        rank = len(self.lanes)
        shape = values.shape[values.ndim - rank :]
        values, active = values.reshape(-1, *shape), active.reshape(-1, *shape)
        chosen = np.take_along_axis(values, np.argmax(active, axis=0)[None], axis=0)[0]
        if _some(active & (as_bits(values) != as_bits(np.broadcast_to(chosen, values.shape)))):
            raise ConflictingWrites(self.name, "")
        return chosen, active.any(axis=0)


def _some(mask: Numbers) -> bool:
    return bool(np.any(mask))


def as_bits(values: object) -> np.ndarray:
    """Values as integers of their size, which are equal where every bit is."""
    array = np.ascontiguousarray(values)
    return array.view(f"uint{8 * array.dtype.itemsize}")


def _from_codes(codes: object, dtype: DType) -> Numbers:
    codes = np.asarray(codes, np.uint8)
    if dtype.is_float:
        return codes.view(dtype.numpy)
    if dtype.kind == "int":
        unused = np.uint8(8 - dtype.bits)
        return (codes << unused).view(np.int8) >> unused.astype(np.int8)
    return codes


def _to_codes(values: object, dtype: DType) -> np.ndarray:
    return np.asarray(values).view(np.uint8) & np.uint8((1 << dtype.bits) - 1)
