"""`FragmentLayout`: which thread holds which element of a small tile, and at which place among its registers.

Each dimension of the tile is split into mixed-radix digits, least significant first, and each digit counts either
threads or registers, with a stride.  That is how a machine's manual describes its matrix instructions, and the
layout algebra takes it over as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

THREAD, REGISTER = "thread", "register"


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a coordinate.

    Attributes
    ----------
    dimension : of the tile.
    extent : values of the digit.
    place : what it counts, ``"thread"`` or ``"register"`` (one element a register, before packing).
    stride : threads or registers from one value to the next.
    """

    dimension: int
    extent: int
    place: str
    stride: int


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """A tile spread over threads so that every element lies in exactly one register of one thread.

    Attributes
    ----------
    shape : extents of the tile.
    digits : for each dimension from least to most significant; dimensions in any order.
    threads, registers : how many threads take part, and elements each of them holds.

    Raises
    ------
    ValueError : digits that do not cover the tile, or that put two elements in one place.
    """

    shape: tuple[int, ...]
    digits: tuple[Digit, ...]
    threads: int
    registers: int

    def __post_init__(self) -> None:
        for dimension, extent in enumerate(self.shape):
            covered = 1
            for digit in self.digits:
                covered *= digit.extent if digit.dimension == dimension else 1
            if covered != extent:
                raise ValueError(f"digits cover {covered} of {extent} elements along dimension {dimension}")
        for place, size in ((THREAD, self.threads), (REGISTER, self.registers)):
            reached = 1
            for digit in sorted((d for d in self.digits if d.place == place and d.extent > 1), key=lambda d: d.stride):
                if digit.stride != reached:
                    raise ValueError(f"{place} digits overlap or leave a hole at stride {digit.stride}")
                reached *= digit.extent
            if reached != size:
                raise ValueError(f"digits name {reached} of {size} {place}s")

    def place(self, *coordinates: int) -> tuple[int, int]:
        """Thread and register of an element."""
        rest = list(coordinates)
        found = {THREAD: 0, REGISTER: 0}
        for digit in self.digits:
            rest[digit.dimension], value = divmod(rest[digit.dimension], digit.extent)
            found[digit.place] += value * digit.stride
        return found[THREAD], found[REGISTER]

    def element(self, thread: int, register: int) -> tuple[int, ...]:
        """Coordinates of the element that a thread holds in a register."""
        index = {THREAD: thread, REGISTER: register}
        coordinates = [0] * len(self.shape)
        weight = [1] * len(self.shape)
        for digit in self.digits:
            coordinates[digit.dimension] += index[digit.place] // digit.stride % digit.extent * weight[digit.dimension]
            weight[digit.dimension] *= digit.extent
        return tuple(coordinates)

    def transposed(self) -> FragmentLayout:
        """The same places for a tile with its two dimensions exchanged."""
        digits = tuple(Digit(1 - d.dimension, d.extent, d.place, d.stride) for d in self.digits)
        return FragmentLayout(self.shape[::-1], digits, self.threads, self.registers)


def fragment(threads: int, *dimensions: tuple[tuple[int, str, int], ...]) -> FragmentLayout:
    """A layout from the digits ``(extent, place, stride)`` of each dimension, least significant first."""
    digits = tuple(Digit(at, *digit) for at, dimension in enumerate(dimensions) for digit in dimension)
    shape = []
    registers = 1
    for dimension in dimensions:
        extent = 1
        for count, place, _ in dimension:
            extent *= count
            registers *= count if place == REGISTER else 1
        shape.append(extent)
    return FragmentLayout(tuple(shape), tuple(d for d in digits if d.extent > 1), threads, registers)
