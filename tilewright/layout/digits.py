"""Digits: what a layout is made of.

A coordinate is written in mixed radix, and each of its digits counts something: threads, registers, elements of
memory, or nothing at all. A `Swizzle` spreads what they count over the banks of a memory by an exclusive or.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import InvalidLayout
from tilewright.ir.nodes import Expr, index_binary

THREAD, REGISTER, MEMORY, NOTHING = "thread", "register", "memory", "nothing"
PLACES = (THREAD, REGISTER, MEMORY)
"""What a digit may count: threads of the block, elements held by a thread, elements of a memory."""

_LETTERS = {"t": THREAD, "r": REGISTER, "m": MEMORY, "n": NOTHING}
_LETTER = {place: letter for letter, place in _LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a coordinate, or of a thread or register number that no coordinate decides.

    Attributes
    ----------
    extent : values of the digit.
    place : what it counts: a name of `PLACES`, or ``"nothing"`` where its values share one location.
    stride : steps of the place from one value to the next; 0 for ``"nothing"``.
    """

    extent: int
    place: str
    stride: int

    def __str__(self) -> str:
        return f"{self.extent}:{_LETTER[self.place]}{self.stride if self.stride else ''}"


def digit(extent: int, place: str, stride: int) -> Digit:
    """A digit, checked; one of stride 0 counts nothing."""
    if place not in _LETTER:
        raise InvalidLayout(f"a layout has no place {place!r}", hint=f"places are {', '.join(PLACES)}")
    if extent < 1 or stride < 0:
        raise InvalidLayout(
            f"a digit of extent {extent} and stride {stride}", hint="extents are positive, strides not negative"
        )
    return Digit(extent, NOTHING, 0) if stride == 0 or place == NOTHING else Digit(extent, place, stride)


def merged(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Canonical digits of one dimension, least significant first: none of extent one, neighbours joined."""
    found: list[Digit] = []
    for one in digits:
        if one.extent == 1:
            continue
        last = found[-1] if found else None
        if last is not None and last.place == one.place and one.stride == last.stride * last.extent:
            found[-1] = replace(last, extent=last.extent * one.extent)
        else:
            found.append(one)
    return tuple(found)


def sorted_by_stride(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Digits whose order has no meaning, in canonical order."""
    return merged(sorted(digits, key=lambda one: (one.place, one.stride, one.extent)))


def extent_of(digits: Iterable[Digit]) -> int:
    """How many values a dimension of these digits has."""
    total = 1
    for one in digits:
        total *= one.extent
    return total


def weighted(digits: Iterable[Digit]) -> Iterator[tuple[Digit, int]]:
    """Each digit with the weight of one step of it in the coordinate."""
    weight = 1
    for one in digits:
        yield one, weight
        weight *= one.extent


def split_at(digits: Iterable[Digit], extent: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]] | None:
    """The digits below and above the first `extent` values of a coordinate; None where no digit can be cut so."""
    low: list[Digit] = []
    high: list[Digit] = []
    reached = 1
    for one in digits:
        if reached * one.extent <= extent and extent % (reached * one.extent) == 0:
            low.append(one)
            reached *= one.extent
        else:
            part, rest = divmod(extent, reached)
            if rest or one.extent % part:
                return None
            low.append(replace(one, extent=part))
            high.append(Digit(one.extent // part, one.place, one.stride * part))
            reached = extent
    return (merged(low), merged(high)) if reached == extent else None


def text_of(digits: Iterable[Digit]) -> str:
    """``"8:t4 2:r2"``: extent, the place's first letter, stride; least significant first."""
    return " ".join(map(str, digits))


_DIGIT = re.compile(r"(\d+):(?:([trm])(\d+)|n)")


def parse_digits(text: str) -> tuple[Digit, ...]:
    """Inverse of `text_of`."""
    found = []
    for word in text.split():
        match = _DIGIT.fullmatch(word)
        if match is None:
            raise InvalidLayout(f"{word!r} is not a digit", hint="write extent:place and stride, as in '8:t4'")
        extent, letter, stride = match.groups()
        found.append(digit(int(extent), _LETTERS[letter or "n"], int(stride or 0)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``offset ^ (((offset >> (base + shift)) & (2**bits - 1)) << base)``.

    Attributes
    ----------
    bits : how many bits change.
    base : the lowest bit that changes; runs of ``2**base`` offsets stay together.
    shift : how far above stand the bits that decide; at least `bits`, so that swizzling twice changes nothing.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 1 or self.base < 0 or self.shift < self.bits:
            raise InvalidLayout(
                f"a swizzle of ({self.bits}, {self.base}, {self.shift})",
                hint="write (bits, base, shift) with at least one bit and shift >= bits",
            )

    @property
    def period(self) -> int:
        """Offsets after which the pattern repeats: tiles that are swizzled start at a multiple of it."""
        return 1 << (self.base + self.shift + self.bits)

    def __call__(self, offset: Any) -> Any:
        """The swizzled offset, of an int or of an integer array."""
        return offset ^ (((offset >> (self.base + self.shift)) & ((1 << self.bits) - 1)) << self.base)

    def expression(self, offset: Expr) -> Expr:
        """The swizzled offset of an index expression."""
        source = offset // (1 << (self.base + self.shift))
        chunk = source % (1 << self.bits)
        return index_binary("xor", offset, chunk * (1 << self.base))

    def scaled(self, factor_bits: int) -> Swizzle:
        """The same pattern on offsets counted in units ``2**factor_bits`` times smaller (or larger, if negative)."""
        return Swizzle(self.bits, self.base + factor_bits, self.shift)
