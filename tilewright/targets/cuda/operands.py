"""Tiles in shared memory as the copy engine writes them and wgmma reads them: boxes, swizzles and descriptor fields.

A tile's layout enters as a function from coordinates to the byte of the element, so that every layout object
serves.  `wgmma_operand` finds out whether a descriptor can name such a tile, and with which fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.targets.cuda.tma import MAX_BOX, Swizzle

Offset = Callable[[Any, Any], Any]
"""Byte of element (mn, k) of an operand tile, counted from the tile's base, swizzle included; of index arrays too."""

BOX_ALIGNMENT = 128
"""Bytes to which a box's place in shared memory is aligned."""

STEP_BYTES = 32
"""Bytes along k that one wgmma takes of a K-major operand; of the dense operand of a sparse product twice as many."""


@dataclass(frozen=True, slots=True)
class WgmmaOperand:
    """An operand tile as wgmma descriptors name it.

    Attributes
    ----------
    major : ``"k"`` or ``"mn"``, the contiguous dimension.
    swizzle : of 16-byte chunks.
    leading, stride : the descriptor's byte offsets (LBO and SBO).
    steps : bytes from the tile's base to the start address of each instruction along k.
    """

    major: str
    swizzle: Swizzle
    leading: int
    stride: int
    steps: tuple[int, ...]

    @property
    def descriptor(self) -> int:
        """The 64 bits without the start address."""
        return self.swizzle.wgmma_field << 62 | (self.stride >> 4) << 32 | (self.leading >> 4) << 16


def wgmma_operand(offset: Offset, mn: int, k: int, dtype: DType, step_bytes: int = STEP_BYTES) -> WgmmaOperand | None:
    """How wgmma reads a tile of `mn` by `k` elements, `step_bytes` along k at once, or None where it cannot.

    The base of the tile is aligned to the swizzle's period.
    """
    depth = step_bytes * 8 // dtype.bits
    if k % depth or mn % 8:
        return None
    table = np.broadcast_to(offset(np.arange(mn)[:, None], np.arange(k)[None, :]), (mn, k)).astype(np.int64)
    for swizzle in (Swizzle.B128, Swizzle.B64, Swizzle.B32, Swizzle.NONE):
        linear = swizzle.apply(table)  # the permutation is its own inverse
        forms = (_k_major, _mn_major) if dtype.bits == 16 else (_k_major,)
        for form in forms:
            found = form(linear, swizzle, depth, dtype)
            if found is not None:
                return found
    return None


def _k_major(linear: np.ndarray, swizzle: Swizzle, depth: int, dtype: DType) -> WgmmaOperand | None:
    """Rows of k: groups of eight rows `stride` apart; without a swizzle, 16-byte columns `leading` apart."""
    mn = linear.shape[0]
    rows, bytes_of_k = np.arange(mn)[:, None], np.arange(depth)[None, :] * dtype.bits // 8
    stride = int(linear[8, 0] - linear[0, 0]) if mn > 8 else 8 * swizzle.span
    if swizzle is Swizzle.NONE:
        leading = int(linear[0, 128 // dtype.bits] - linear[0, 0])
        expected = rows // 8 * stride + bytes_of_k // 16 * leading + rows % 8 * 16 + bytes_of_k % 16
    else:
        leading = 16
        expected = rows // 8 * stride + rows % 8 * swizzle.span + bytes_of_k
    return _agreed("k", linear, expected, swizzle, leading, stride)


def _mn_major(linear: np.ndarray, swizzle: Swizzle, depth: int, dtype: DType) -> WgmmaOperand | None:
    """Rows of mn, 16-bit elements: with a swizzle `stride` leads along k and `leading` along mn, without one the
    reverse."""
    mn, run = linear.shape[0], swizzle.span // 2
    if mn % run:
        return None
    columns, rows = np.arange(mn)[:, None], np.arange(depth)[None, :]
    along_k = int(linear[0, 8] - linear[0, 0])
    along_mn = int(linear[run, 0] - linear[0, 0]) if mn > run else 8 * swizzle.span
    expected = columns // run * along_mn + rows // 8 * along_k + rows % 8 * swizzle.span + columns % run * 2
    leading, stride = (along_k, along_mn) if swizzle is Swizzle.NONE else (along_mn, along_k)
    return _agreed("mn", linear, expected, swizzle, leading, stride)


def _agreed(
    major: str, linear: np.ndarray, expected: np.ndarray, swizzle: Swizzle, leading: int, stride: int
) -> WgmmaOperand | None:
    """The operand where every step along k has its elements where the descriptor's formula expects them."""
    steps = tuple(int(start) for start in linear[0, :: expected.shape[1]])
    if any(value % 16 or not 0 <= value < 1 << 18 for value in (leading, stride, *steps)):
        return None
    tiles = linear.reshape(linear.shape[0], len(steps), -1)
    if not all(np.array_equal(tiles[:, index], start + expected) for index, start in enumerate(steps)):
        return None
    return WgmmaOperand(major, swizzle, leading, stride, steps)


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
    extents: tuple[int, ...], dtype: DType, swizzle: Swizzle | None = None, longest: int = MAX_BOX
) -> BoxPlan | None:
    """Boxes that move a tile, or None where no whole number of boxes does.

    Parameters
    ----------
    extents : of the tile, innermost first.
    swizzle : None for the widest that the rows fill: its span is the box's inner size.
    longest : elements of a box along a dimension, at most.
    """
    row = extents[0] * dtype.storage_bytes
    if row % 16:
        return None
    if swizzle is None:
        fitting = [mode for mode in (Swizzle.B128, Swizzle.B64, Swizzle.B32) if row % mode.span == 0]
        swizzle = fitting[0] if fitting else Swizzle.NONE
    inner = extents[0] if swizzle is Swizzle.NONE else swizzle.span // dtype.storage_bytes
    if extents[0] % inner:
        return None
    box = [_largest_divisor(inner, longest)] + [_largest_divisor(extent, longest) for extent in extents[1:]]
    if box[0] * dtype.storage_bytes % 16:
        return None
    counts = tuple(extent // size for extent, size in zip(extents, box))
    plan = BoxPlan(tuple(box), counts, dtype, swizzle)
    several = any(count > 1 for count in counts)
    return None if several and plan.box_bytes % BOX_ALIGNMENT else plan


def _largest_divisor(value: int, most: int) -> int:
    return next(size for size in range(min(value, most), 0, -1) if value % size == 0)
