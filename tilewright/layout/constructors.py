"""The layouts that memories and machines ask for, by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import InvalidLayout
from tilewright.layout.digits import MEMORY, Digit, Swizzle
from tilewright.layout.layout import Layout

CHUNK_BYTES = 16
"""What a swizzle keeps together: the widest access of a thread, a row of a matrix that ldmatrix reads."""

LINE_BYTES = 128
"""All banks of a GPU's shared memory once: 32 of four bytes."""

PATTERN_ROWS = 8
"""After so many rows a swizzle repeats."""


def row_major(shape: Sequence[int], place: str = MEMORY) -> Layout:
    """The last dimension contiguous, then the one before it."""
    return strided(shape, _strides(shape), place)


def column_major(shape: Sequence[int], place: str = MEMORY) -> Layout:
    """The first dimension contiguous."""
    return strided(shape, _strides(shape[::-1])[::-1], place)


def strided(shape: Sequence[int], strides: Sequence[int], place: str = MEMORY) -> Layout:
    """Any strides, in elements."""
    return Layout(tuple((Digit(extent, place, stride),) for extent, stride in zip(shape, strides)))


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


def padded(shape: Sequence[int], padding: int) -> Layout:
    """Row-major, with `padding` unused elements after each row."""
    pitch = [*shape[:-1], shape[-1] + padding]
    return strided(shape, _strides(pitch))


def swizzled(shape: Sequence[int], bits: int, span: int = LINE_BYTES) -> Layout:
    """What a tensor copy (TMA) writes in its swizzle mode of `span` bytes, and what wgmma reads.

    Rows of the last dimension are cut into boxes of `span` bytes; the boxes follow each other, each with its rows
    dense; within each, chunks of 16 bytes are exchanged by bits of the row.  Rows narrower than the span are
    padded to it.  The tile starts at a multiple of ``8 * span`` bytes.

    Parameters
    ----------
    shape : of the tile; leading dimensions count as rows.
    bits : of an element.
    span : 128, 64 or 32 bytes.
    """
    modes = {128: 3, 64: 2, 32: 1}
    if span not in modes:
        raise InvalidLayout(f"there is no swizzle of {span} bytes", hint="spans are 128, 64 and 32 bytes")
    if CHUNK_BYTES * 8 % bits or bits & (bits - 1):
        raise InvalidLayout(f"elements of {bits} bits do not fill chunks of 16 bytes")
    width, rows = span * 8 // bits, math.prod(shape[:-1])
    columns = shape[-1]
    if columns > width and columns % width:
        raise InvalidLayout(
            f"rows of {columns} elements of {bits} bits are no whole number of {span}-byte boxes",
            hint="take a narrower swizzle, or pad the tile",
        )
    inside = min(columns, width)
    last = (Digit(inside, MEMORY, 1), Digit(columns // inside, MEMORY, rows * width))
    leading = [Digit(extent, MEMORY, stride * width) for extent, stride in zip(shape[:-1], _strides(shape[:-1]))]
    # On byte offsets every mode is (bits, 4, 3): chunks of 16 bytes, by the 128-byte lines.
    return Layout((*((one,) for one in leading), last), swizzle=byte_swizzle(modes[span], bits))


def byte_swizzle(chunk_bits: int, bits: int, shift: int = 3) -> Swizzle:
    """The swizzle that exchanges ``2**chunk_bits`` chunks of 16 bytes, on offsets in elements of `bits` bits."""
    return Swizzle(chunk_bits, (CHUNK_BYTES * 8 // bits).bit_length() - 1, shift)
