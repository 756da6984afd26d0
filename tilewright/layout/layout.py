"""Layouts: where each element of a tile lives, as mixed-radix digits of its coordinates.

Every dimension of a tile is split into digits, most significant first.  A digit is assigned to a *place* with a
stride: a thread, a register of that thread, an element of memory, or a *partial* sum.  The element at some
coordinates lives, in each place, at the sum of digit times stride.  Copies of a tile in several threads are
digits of no dimension (`replicas`).  One optional XOR swizzle acts on the memory offset.

The one description covers matrix fragments, tiles in shared memory, pipelined tiles and packed weights; extents
need not be powers of two, and a dimension may be padded: its digits then count further than its extent.

Examples
--------
The accumulator of ``mma.m16n8``: rows are ``register // 2`` and ``thread // 4``, columns ``thread % 4`` and
``register % 2``.

>>> accumulator = fragment("2@register*2 8@thread*4", "4@thread*1 2@register*1")
>>> accumulator.shape, accumulator.threads, accumulator.registers
((16, 8), 32, 4)
>>> int(accumulator.table("thread")[3, 5])
14
>>> tile = accumulator.repeat(0, 4, "thread").repeat(1, 16, "register")
>>> tile.shape, tile.threads, tile.registers
((64, 128), 128, 64)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.literals import register_record
from tilewright.ir.nodes import Const, Expr, const, index_binary

PLACES = ("thread", "register", "memory", "partial")


@register_record
@dataclass(frozen=True, slots=True)
class Digit:
    """`extent` values of a coordinate that step through `place` by `stride`."""

    extent: int
    place: str
    stride: int

    def __str__(self) -> str:
        return f"{self.extent}@{self.place}*{self.stride}"


@register_record
@dataclass(frozen=True, slots=True)
class Swizzle:
    """XOR of an offset's bits: `bits` of them, from `base` on, with those `shift` places higher.

    Offsets count elements.  The TMA and wgmma swizzle of 128 bytes is ``Swizzle(3, 3, 3)`` on 16-bit elements
    (``base`` is log2 of the elements in 16 bytes).
    """

    bits: int
    base: int
    shift: int

    @property
    def mask(self) -> int:
        """The bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + self.shift)

    @property
    def period(self) -> int:
        """Elements after which the pattern repeats."""
        return 1 << (self.bits + self.base + self.shift)

    def apply(self, offset: np.ndarray) -> np.ndarray:
        """The swizzled offsets; applying it twice gives the offsets back."""
        return offset ^ ((offset & self.mask) >> self.shift)

    def expression(self, offset: Expr) -> Expr:
        """The same on a symbolic offset."""
        moved = index_binary("shr", index_binary("and", offset, self.mask), self.shift)
        return index_binary("xor", offset, moved)


@register_record
@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tile live.

    Attributes
    ----------
    shape : extents of the tile.
    axes : the digits of each dimension, most significant first; their product is at least the extent.
    replicas : digits that no dimension has: each of their values is a place with a copy of the tile.
    swizzle : of the memory offset.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[Digit, ...], ...]
    replicas: tuple[Digit, ...] = ()
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise ValueError(f"{len(self.shape)} extents, but digits of {len(self.axes)} dimensions")
        for extent, digits in zip(self.shape, self.axes, strict=True):
            if math.prod(digit.extent for digit in digits) < extent:
                raise ValueError(f"the digits {' '.join(map(str, digits))} do not count to {extent}")

    def __str__(self) -> str:
        axes = ", ".join(" ".join(map(str, digits)) or "1" for digits in self.axes)
        copies = f"; copies {' '.join(map(str, self.replicas))}" if self.replicas else ""
        swizzle = f"; {self.swizzle}" if self.swizzle else ""
        return f"[{'x'.join(map(str, self.shape))}: {axes}{copies}{swizzle}]"

    # Sizes ---------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """What the digits count to."""
        return tuple(math.prod(digit.extent for digit in digits) for digits in self.axes)

    @property
    def is_padded(self) -> bool:
        return self.padded_shape != self.shape

    def digits(self, place: str) -> list[Digit]:
        """All digits that step through `place`, copies included, finest first."""
        found = [digit for digits in (*self.axes, self.replicas) for digit in digits if digit.place == place]
        return sorted(found, key=lambda digit: (digit.stride, digit.extent))

    def extent(self, place: str) -> int:
        """How far the layout reaches in `place`: one more than the largest position."""
        return 1 + sum((digit.extent - 1) * digit.stride for digit in self.digits(place))

    @property
    def threads(self) -> int:
        return self.extent("thread")

    @property
    def registers(self) -> int:
        """Registers (elements) that each thread holds."""
        return self.extent("register")

    @property
    def size(self) -> int:
        """Elements of memory, holes included."""
        reach = self.extent("memory")
        return reach if self.swizzle is None else -(-reach // self.swizzle.period) * self.swizzle.period

    @property
    def copies(self) -> int:
        """How many places hold each element."""
        return math.prod(digit.extent for digit in self.replicas)

    # Evaluation ----------------------------------------------------------------------------------

    def offset(self, place: str, coordinates: Sequence[Expr | int]) -> Expr:
        """The position in `place` of the element at `coordinates`, as an expression (of its first copy)."""
        total: Expr = const(0)
        for coordinate, digits in zip(coordinates, self.axes, strict=True):
            for digit, weight, top in _weighted(digits):
                if digit.place != place or digit.extent == 1:
                    continue
                value = index_binary("floordiv", coordinate, weight)
                if not top:
                    value = index_binary("floormod", value, digit.extent)
                total = index_binary("add", total, index_binary("mul", value, digit.stride))
        if place == "memory" and self.swizzle is not None:
            return self.swizzle.expression(total)
        return total

    def table(self, place: str) -> np.ndarray:
        """Positions in `place` of all elements, an int64 array of the tile's shape."""
        total = np.zeros(self.shape, np.int64)
        for axis, digits in enumerate(self.axes):
            index = np.arange(self.shape[axis], dtype=np.int64).reshape(
                [-1 if dimension == axis else 1 for dimension in range(self.rank)]
            )
            for digit, weight, _ in _weighted(digits):
                if digit.place == place:
                    total = total + index // weight % digit.extent * digit.stride
        return self.swizzle.apply(total) if place == "memory" and self.swizzle is not None else total

    def permutation(self) -> np.ndarray:
        """Memory offsets of all elements: how to pack an array."""
        return self.table("memory")

    def coordinates(self, positions: Mapping[str, Expr | int]) -> tuple[Expr, ...]:
        """The element at some position of each place: the inverse of `offset`.

        Parameters
        ----------
        positions : for each place that has digits, the position there.  A swizzled memory offset is undone.
        """
        values = dict(positions)
        if self.swizzle is not None and "memory" in values:
            values["memory"] = self.swizzle.expression(_expression(values["memory"]))
        largest = {place: max((d.stride * d.extent for d in self.digits(place)), default=1) for place in values}
        result = []
        for digits in self.axes:
            total: Expr = const(0)
            for digit, weight, _ in _weighted(digits):
                if digit.extent == 1:
                    continue
                value = index_binary("floordiv", values[digit.place], digit.stride)
                if digit.stride * digit.extent < largest[digit.place]:
                    value = index_binary("floormod", value, digit.extent)
                total = index_binary("add", total, index_binary("mul", value, weight))
            result.append(total)
        return tuple(result)

    def replica(self, place: str, position: Expr | int) -> Expr:
        """Which copy a position of `place` holds, 0 for the first."""
        total: Expr = const(0)
        weight = 1
        largest = max((d.stride * d.extent for d in self.digits(place)), default=1)
        for digit in self.replicas:
            if digit.place != place:
                continue
            value = index_binary("floordiv", position, digit.stride)
            if digit.stride * digit.extent < largest:
                value = index_binary("floormod", value, digit.extent)
            total = index_binary("add", total, index_binary("mul", value, weight))
            weight *= digit.extent
        return total

    # Making others -------------------------------------------------------------------------------

    def repeat(self, axis: int, count: int, place: str, stride: int | None = None) -> Layout:
        """`count` of these side by side along `axis`; `stride` defaults to the first free position of `place`."""
        if count == 1:
            return self
        step = self._next(place) if stride is None else stride
        axes = list(self.axes)
        axes[axis] = (Digit(count, place, step), *axes[axis])
        shape = list(self.shape)
        shape[axis] = self.padded_shape[axis] * count
        return replace(self, shape=tuple(shape), axes=tuple(axes)).canonical()

    def replicate(self, count: int, place: str = "thread", stride: int | None = None) -> Layout:
        """`count` copies, `stride` apart in `place`."""
        if count == 1:
            return self
        step = self._next(place) if stride is None else stride
        return replace(self, replicas=(*self.replicas, Digit(count, place, step))).canonical()

    def expand(self, stages: int, stride: int | None = None) -> Layout:
        """The memory layout of a tile with a leading dimension of `stages`, each stage as before.

        Stages stay aligned to the swizzle's period, so that each is swizzled alike.
        """
        step = self.size if stride is None else stride
        first = (Digit(stages, "memory", step),) if stages > 1 else ()
        return replace(self, shape=(stages, *self.shape), axes=(first, *self.axes)).canonical()

    def without(self, axis: int) -> Layout:
        """The layout of what is left when a dimension has been reduced.

        Threads along the dimension hold copies, its registers are gone and the others close up.
        """
        dropped = self.axes[axis]
        copies = tuple(digit for digit in dropped if digit.place in ("thread", "partial"))
        axes = self.axes[:axis] + self.axes[axis + 1 :]
        left = replace(
            self, shape=self.shape[:axis] + self.shape[axis + 1 :], axes=axes, replicas=(*self.replicas, *copies)
        )
        return left.compacted("register").canonical()

    def insert(self, axis: int, extent: int = 1) -> Layout:
        """With a new dimension of which all elements live in the same place."""
        if extent != 1:
            raise ValueError("only dimensions of extent 1 can be inserted")
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return replace(self, shape=shape, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def permuted(self, order: Sequence[int]) -> Layout:
        """The tile with its dimensions in another order."""
        return replace(
            self, shape=tuple(self.shape[i] for i in order), axes=tuple(self.axes[i] for i in order)
        ).canonical()

    def compacted(self, place: str) -> Layout:
        """The same order of positions in `place`, without holes."""
        steps: dict[Digit, int] = {}
        stride = 1
        for digit in self.digits(place):
            steps[digit] = stride
            stride *= digit.extent

        def move(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
            return tuple(replace(d, stride=steps[d]) if d.place == place else d for d in digits)

        return replace(self, axes=tuple(map(move, self.axes)), replicas=move(self.replicas))

    def cropped(self, shape: Sequence[int]) -> Layout:
        """The same places for a tile of at most the padded size."""
        return replace(self, shape=tuple(shape))

    def canonical(self) -> Layout:
        """Without digits of extent 1, neighbours that step alike merged, copies in order."""
        axes = tuple(_merged(digits) for digits in self.axes)
        replicas = _merged(tuple(sorted(self.replicas, key=lambda d: (d.place, -d.stride))))
        return replace(self, axes=axes, replicas=replicas)

    def _next(self, place: str) -> int:
        return max((digit.stride * digit.extent for digit in self.digits(place)), default=1)

    # Questions -----------------------------------------------------------------------------------

    def vector_width(self, place: str, axis: int = -1) -> int:
        """Consecutive elements along `axis` that lie side by side in `place`, starting at multiples of the width."""
        width = 1
        for digit, weight, _ in reversed(list(_weighted(self.axes[axis]))):
            if digit.place != place or digit.stride != weight or weight != width:
                break
            width *= digit.extent
        if place == "memory" and self.swizzle is not None:
            width = math.gcd(width, 1 << self.swizzle.base)
        return width

    def divide(self, atom: Layout) -> Layout | None:
        """The layout of whole atoms, if this tile is `atom` repeated; None where it is not.

        Positions of the result are those of the first element of each atom.
        """
        if atom.rank != self.rank or self.swizzle != atom.swizzle:
            return None
        outer = []
        for mine, inner in zip(self.axes, atom.axes, strict=True):
            rest = _strip(mine, inner)
            if rest is None:
                return None
            outer.append(rest)
        shape = tuple(math.prod(digit.extent for digit in digits) for digits in outer)
        return Layout(shape, tuple(outer), self.replicas).canonical()


def _weighted(digits: Sequence[Digit]) -> list[tuple[Digit, int, bool]]:
    """Each digit with its weight in the coordinate, and whether it is the most significant one."""
    result = []
    weight = math.prod(digit.extent for digit in digits)
    for position, digit in enumerate(digits):
        weight //= digit.extent
        result.append((digit, weight, position == 0))
    return result


def _merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    result: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        before = result[-1] if result else None
        if before is not None and before.place == digit.place and before.stride == digit.stride * digit.extent:
            result[-1] = Digit(before.extent * digit.extent, digit.place, digit.stride)
        else:
            result.append(digit)
    return tuple(result)


def _strip(digits: tuple[Digit, ...], inner: tuple[Digit, ...]) -> tuple[Digit, ...] | None:
    """`digits` without the finest ones, which must be those of `inner`."""
    left = list(digits)
    for wanted in reversed(inner):
        if not left or left[-1].place != wanted.place or left[-1].stride != wanted.stride:
            return None
        found = left.pop()
        if found.extent % wanted.extent:
            return None
        rest = found.extent // wanted.extent
        if rest > 1:
            left.append(Digit(rest, found.place, found.stride * wanted.extent))
    return tuple(left)


def _expression(value: Expr | int) -> Expr:
    return Const(const(0).dtype, value) if isinstance(value, int) else value


def fragment(*axes: str) -> Layout:
    """A layout from texts, one a dimension: digits ``extent@place*stride``, most significant first."""
    parsed = tuple(tuple(_digit(word) for word in axis.split()) for axis in axes)
    shape = tuple(math.prod(digit.extent for digit in digits) for digits in parsed)
    return Layout(shape, parsed).canonical()


def _digit(word: str) -> Digit:
    extent, _, rest = word.partition("@")
    place, _, stride = rest.partition("*")
    if place not in PLACES:
        raise ValueError(f"{word!r} is no digit: write extent@place*stride with a place of {', '.join(PLACES)}")
    return Digit(int(extent), place, int(stride or 1))


def row_major(shape: Sequence[int], pitch: int | None = None) -> Layout:
    """Contiguous memory, last dimension fastest; rows `pitch` elements apart where given."""
    axes: list[tuple[Digit, ...]] = []
    stride = 1
    for position, extent in enumerate(reversed(shape)):
        axes.append((Digit(extent, "memory", stride),))
        stride *= extent
        if position == 0 and pitch is not None:
            stride = pitch
    return Layout(tuple(shape), tuple(reversed(axes))).canonical()


def column_major(shape: Sequence[int]) -> Layout:
    """Contiguous memory, first dimension fastest."""
    return row_major(tuple(reversed(shape))).permuted(tuple(reversed(range(len(shape)))))


def swizzled(shape: Sequence[int], bits: int, span_bytes: int = 128) -> Layout:
    """A row-major tile whose 16-byte chunks are swizzled within rows of `span_bytes`, as TMA and wgmma do.

    A tile wider than the span is cut into columns of that width, one after the other.

    Parameters
    ----------
    shape : of the tile; the last extent is a multiple of the span's elements.
    bits : of one element.
    span_bytes : 128, 64 or 32.

    Source: PTX manual, "Swizzling modes"; `hardware.md` 6.2.
    """
    *outer, rows, columns = (1, *shape) if len(shape) == 1 else shape
    span = span_bytes * 8 // bits
    chunk = 128 // bits
    if columns % span:
        raise ValueError(f"{columns} columns are no multiple of the span of {span}")
    base = chunk.bit_length() - 1
    order = Swizzle((span_bytes // 16).bit_length() - 1, base, 3)
    axes: tuple[tuple[Digit, ...], ...] = (
        (Digit(rows, "memory", span),),
        (Digit(columns // span, "memory", rows * span), Digit(span, "memory", 1)),
    )
    inner = Layout((rows, columns), axes, swizzle=order).canonical()
    for extent in reversed(outer if len(shape) > 1 else []):
        inner = inner.expand(extent)
    return inner if len(shape) > 1 else inner.cropped((1, columns))


def spread(shape: Sequence[int], threads: int, width: int) -> Layout:
    """Elements dealt out for coalesced access: `width` side by side a thread, neighbours to the next thread.

    The last dimension goes to threads first, then the ones before it; what is left over becomes registers, and
    where the rows do not divide they are padded.
    """
    columns = shape[-1]
    if len(shape) == 1:
        width = math.gcd(width, max(1, columns // threads))
        count = -(-columns // (width * threads))
        digits = (Digit(count, "register", width), Digit(threads, "thread", 1), Digit(width, "register", 1))
        return Layout(tuple(shape), (digits,)).canonical()
    width = math.gcd(width, columns)
    across = math.gcd(columns // width, threads)
    rest = columns // width // across
    last = (Digit(rest, "register", width), Digit(across, "thread", 1), Digit(width, "register", 1))
    axes = [last]
    register, stride, left = width * rest, across, threads // across
    for position, extent in enumerate(reversed(shape[:-1])):
        outermost = position == len(shape) - 2
        here = left if outermost else math.gcd(left, extent)
        count = -(-extent // here)
        axes.append((Digit(count, "register", register), Digit(here, "thread", stride)))
        register, stride, left = register * count, stride * here, left // here
    return Layout(tuple(shape), tuple(reversed(axes))).canonical()
