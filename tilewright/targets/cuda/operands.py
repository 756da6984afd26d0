"""Tiles in shared memory as the copy engine writes them and wgmma reads them: boxes, swizzles and descriptor fields.

A tile's layout enters as a function from coordinates to the byte of the element, so that every layout object
serves.  `wgmma_operand` finds out whether a descriptor can name such a tile, and with which fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.targets.cuda.tma import MAX_BOX, Swizzle

Offset = Callable[[int, int], int]
"""Byte of element (mn, k) of an operand tile, counted from the tile's base, swizzle included."""

STEP_BYTES = 32
"""Bytes along k that one wgmma takes of a K-major operand."""


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


def wgmma_operand(offset: Offset, mn: int, k: int, dtype: DType) -> WgmmaOperand | None:
    """How wgmma reads a tile of `mn` by `k` elements, or None where it cannot.

    The base of the tile is aligned to the swizzle's period.
    """
    for swizzle in (Swizzle.B128, Swizzle.B64, Swizzle.B32, Swizzle.NONE):
        for form in (_KMajor, _MNMajor):
            if form is _MNMajor and dtype.bits != 16:
                continue
            found = form(offset, mn, k, dtype, swizzle).match()
            if found is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class _Form:
    """One way in which a descriptor names a tile; subclasses know the formula."""

    offset: Offset
    mn: int
    k: int
    dtype: DType
    swizzle: Swizzle

    def linear(self, mn: int, k: int) -> int:
        """The byte before the swizzle: the permutation is its own inverse."""
        return self.swizzle.apply(self.offset(mn, k))

    @property
    def depth(self) -> int:
        """Elements along k of one instruction."""
        return STEP_BYTES * 8 // self.dtype.bits

    def match(self) -> WgmmaOperand | None:
        if self.k % self.depth or not self.fits():
            return None
        starts = tuple(self.linear(0, step) for step in range(0, self.k, self.depth))
        leading, stride = self.fields()
        in_range = all(0 <= value < 1 << 18 and value % 16 == 0 for value in (leading, stride, *starts))
        if not in_range or not all(self._agrees(start, leading, stride) for start in enumerate(starts)):
            return None
        return WgmmaOperand(self.major, self.swizzle, leading, stride, starts)

    def _agrees(self, start: tuple[int, int], leading: int, stride: int) -> bool:
        step, base = start
        return all(
            self.linear(mn, step * self.depth + k) == base + self.expected(mn, k, leading, stride)
            for mn in range(self.mn)
            for k in range(self.depth)
        )

    @property
    def major(self) -> str:
        raise NotImplementedError

    def fits(self) -> bool:
        raise NotImplementedError

    def fields(self) -> tuple[int, int]:
        raise NotImplementedError

    def expected(self, mn: int, k: int, leading: int, stride: int) -> int:
        raise NotImplementedError


class _KMajor(_Form):
    """Rows of k: groups of eight rows `stride` apart; without a swizzle, 16-byte columns `leading` apart."""

    __slots__ = ()

    @property
    def major(self) -> str:
        return "k"

    def fits(self) -> bool:
        return self.mn % 8 == 0

    def fields(self) -> tuple[int, int]:
        stride = self.linear(8, 0) - self.linear(0, 0) if self.mn > 8 else 8 * self.swizzle.span
        leading = 16 if self.swizzle is not Swizzle.NONE else self.linear(0, 128 // self.dtype.bits) - self.linear(0, 0)
        return leading, stride

    def expected(self, mn: int, k: int, leading: int, stride: int) -> int:
        byte = k * self.dtype.bits // 8
        if self.swizzle is Swizzle.NONE:
            return mn // 8 * stride + byte // 16 * leading + mn % 8 * 16 + byte % 16
        return mn // 8 * stride + mn % 8 * self.swizzle.span + byte


class _MNMajor(_Form):
    """Rows of mn, 16-bit elements: with a swizzle `stride` leads along k and `leading` along mn, without one the reverse."""

    __slots__ = ()

    @property
    def major(self) -> str:
        return "mn"

    @property
    def run(self) -> int:
        """Elements along mn that lie together."""
        return self.swizzle.span // 2

    def fits(self) -> bool:
        return self.mn % min(self.run, self.mn) == 0 and self.mn % 8 == 0 and self.mn >= self.run

    def fields(self) -> tuple[int, int]:
        along_k = self.linear(0, 8) - self.linear(0, 0)
        along_mn = self.linear(self.run, 0) - self.linear(0, 0) if self.mn > self.run else 8 * self.swizzle.span
        return (along_k, along_mn) if self.swizzle is Swizzle.NONE else (along_mn, along_k)

    def expected(self, mn: int, k: int, leading: int, stride: int) -> int:
        along_mn, along_k = (stride, leading) if self.swizzle is Swizzle.NONE else (leading, stride)
        return mn // self.run * along_mn + k // 8 * along_k + k % 8 * self.swizzle.span + mn % self.run * 2


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
        total = self.dtype.storage_bytes
        for extent in self.box:
            total *= extent
        return total

    def boxes(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """First element (innermost first) and byte in shared memory of each box."""
        total = 1
        for count in self.counts:
            total *= count
        for index in range(total):
            rest, first = index, [0] * len(self.box)
            for dimension in (*range(1, len(self.box)), 0):
                rest, at = divmod(rest, self.counts[dimension])
                first[dimension] = at * self.box[dimension]
            yield tuple(first), index * self.box_bytes

    def offset(self, *coordinates: int) -> int:
        """Byte of an element (innermost coordinate first) from the tile's base, swizzle included."""
        index, weight = 0, 1
        for dimension in (*range(1, len(self.box)), 0):
            index += coordinates[dimension] // self.box[dimension] * weight
            weight *= self.counts[dimension]
        inside, weight = 0, self.dtype.storage_bytes
        for coordinate, extent in zip(coordinates, self.box):
            inside += coordinate % extent * weight
            weight *= extent
        return self.swizzle.apply(index * self.box_bytes + inside)


def plan_boxes(extents: tuple[int, ...], dtype: DType, swizzle: Swizzle | None = None) -> BoxPlan | None:
    """Boxes that move a tile, or None where no whole number of boxes does.

    Parameters
    ----------
    extents : of the tile, innermost first.
    swizzle : None for the widest that the rows fill: its span is the box's inner size.
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
    box = [_largest_divisor(inner, MAX_BOX)] + [_largest_divisor(extent, MAX_BOX) for extent in extents[1:]]
    if box[0] * dtype.storage_bytes % 16:
        return None
    counts = tuple(extent // size for extent, size in zip(extents, box))
    return BoxPlan(tuple(box), counts, dtype, swizzle)


def _largest_divisor(value: int, most: int) -> int:
    return next(size for size in range(min(value, most), 0, -1) if value % size == 0)
