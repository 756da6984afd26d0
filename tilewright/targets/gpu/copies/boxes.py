"""Boxes between tensors and tiles in shared memory, as copy engines write them: their sizes, order and swizzles."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir import UINT8, DType
from tilewright.layout import CHUNK_BYTES
from tilewright.machine import CopyEngine


class Swizzle(enum.IntEnum):
    """How a copy engine permutes chunks of 16 bytes of shared memory: by how many bits of a row's number."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3

    @property
    def span(self) -> int:
        """Bytes of a row within which chunks are permuted; 16 for none."""
        return CHUNK_BYTES << self.value

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats: the alignment that makes it start at a tile's base."""
        return 128 if self is Swizzle.NONE else 8 * self.span

    def apply(self, offset: Any) -> Any:  # of the offset's kind
        """Where the byte at an offset (or an array of them) from a `period`-aligned base lands."""
        return offset ^ ((offset >> 7 & self.span // 16 - 1) << 4)

    @classmethod
    def of(cls, span: int) -> Swizzle:
        """The mode that permutes chunks within so many bytes; 0 for none."""
        return cls((span // CHUNK_BYTES).bit_length() - 1 if span else 0)


def moved_as(dtype: DType) -> DType:
    """The type as which the copy engine moves elements: those that share bytes, as bytes."""
    return UINT8 if dtype.is_packed else dtype


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """How the copy engine moves a tile of two or more dimensions: equal boxes, one after the other in shared memory.

    Attributes
    ----------
    box : extents of one box in elements, innermost first.
    counts : boxes along each dimension; the innermost dimension's boxes are outermost in memory.
    dtype, swizzle : of the tile.
    """

    box: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: DType
    swizzle: Swizzle

    @property
    def box_bytes(self) -> int:
        return self.dtype.storage_bytes * math.prod(self.box)

    def boxes(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """First element (innermost first) and byte in shared memory of each box."""
        for index in range(math.prod(self.counts)):
            rest, first = index, [0] * len(self.box)
            for dimension in (*range(1, len(self.box)), 0):
                rest, at = divmod(rest, self.counts[dimension])
                first[dimension] = at * self.box[dimension]
            yield tuple(first), index * self.box_bytes

    def offset(self, *coordinates: Any) -> Any:
        """Byte of an element (innermost coordinate first; arrays broadcast) from the tile's base, swizzle included."""
        index: Any = 0
        weight = 1
        for dimension in (*range(1, len(self.box)), 0):
            index = index + coordinates[dimension] // self.box[dimension] * weight
            weight *= self.counts[dimension]
        inside: Any = 0
        weight = self.dtype.storage_bytes
        for coordinate, extent in zip(coordinates, self.box):
            inside = inside + coordinate % extent * weight
            weight *= extent
        return self.swizzle.apply(index * self.box_bytes + inside)


def plan_boxes(
    extents: tuple[int, ...], dtype: DType, engine: CopyEngine, swizzle: Swizzle | None = None
) -> BoxPlan | None:
    """Boxes that move a tile, or None where no whole number of boxes does.

    Parameters
    ----------
    extents : of the tile, innermost first.
    engine : of the machine.
    swizzle : None for the widest that the rows fill: its span is the box's inner size.
    """
    row = extents[0] * dtype.storage_bytes
    if row % engine.unit:
        return None
    if swizzle is None:
        fitting = [mode for mode in (Swizzle.B128, Swizzle.B64, Swizzle.B32) if row % mode.span == 0]
        swizzle = fitting[0] if fitting else Swizzle.NONE
    inner = extents[0] if swizzle is Swizzle.NONE else swizzle.span // dtype.storage_bytes
    if extents[0] % inner:
        return None
    box = [_largest_divisor(inner, engine.box)] + [_largest_divisor(extent, engine.box) for extent in extents[1:]]
    if box[0] * dtype.storage_bytes % engine.unit:
        return None
    counts = tuple(extent // size for extent, size in zip(extents, box))
    plan = BoxPlan(tuple(box), counts, dtype, swizzle)
    several = any(count > 1 for count in counts)
    return None if several and plan.box_bytes % engine.place else plan


def _largest_divisor(value: int, most: int) -> int:
    return next(size for size in range(min(value, most), 0, -1) if value % size == 0)
