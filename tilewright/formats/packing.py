"""Packings: where the codes of a weight lie among its bytes, each as one formula for a bit position.

`Packing.pack` and `Packing.unpack` follow from the formula alone.  A layout id (``plain/1``) names the formula and its
version in files; an id is never given a second meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.errors import UnknownFormat

Positions = Callable[[int, int, int], np.ndarray]
"""``(rows, columns, bits)`` to the position of the lowest bit of every code, counted from the first byte's bit 0."""


@dataclass(frozen=True, slots=True)
class Packing:
    """An order of codes in bytes.

    Attributes
    ----------
    id : name and version.
    positions : the formula.
    row_bits : ``(columns, bits)`` to the bits of one row, padding included.
    """

    id: str
    positions: Positions
    row_bits: Callable[[int, int], int]

    def pack(self, codes: np.ndarray, bits: int) -> np.ndarray:
        """``[N, K]`` codes (uint8) to ``[N, row bytes]``; bits that belong to no code are zero."""
        rows, columns = codes.shape
        width = self.row_bits(columns, bits)
        room = np.zeros(rows * width, np.uint8)
        places = self.positions(rows, columns, bits)
        for bit in range(bits):
            room[places + bit] = codes >> np.uint8(bit) & np.uint8(1)
        return np.packbits(room, bitorder="little").reshape(rows, width // 8)

    def unpack(self, packed: np.ndarray, columns: int, bits: int) -> np.ndarray:
        """Inverse of `pack`."""
        room = np.unpackbits(np.ascontiguousarray(packed).reshape(-1), bitorder="little")
        places = self.positions(packed.shape[0], columns, bits)
        codes = np.zeros(places.shape, np.uint8)
        for bit in range(bits):
            codes |= room[places + bit] << np.uint8(bit)
        return codes


def _bytes_of(columns: int, bits: int) -> int:
    return -(-columns * bits // 8) * 8


def _plain(rows: int, columns: int, bits: int) -> np.ndarray:
    # bit(n, k) = n * row + k * bits
    return np.arange(rows)[:, None] * _bytes_of(columns, bits) + np.arange(columns) * bits


def _words_of(columns: int, bits: int) -> int:
    return -(-columns * bits // 32) * 32


def interleaved(id: str, order: tuple[int, ...]) -> Packing:
    """Codes of each 32-bit word in another order: `order` lists the elements from the word's low bits to its high
    ones."""
    slots = np.argsort(np.array(order))

    def positions(rows: int, columns: int, bits: int) -> np.ndarray:
        # bit(n, k) = n * row + 32 (k // w) + bits * slot(k % w), where a word holds w = 32 / bits codes
        k, word = np.arange(columns), 32 // bits
        assert len(order) == word
        return np.arange(rows)[:, None] * _words_of(columns, bits) + 32 * (k // word) + bits * slots[k % word]

    return Packing(id, positions, _words_of)


PLAIN = Packing("plain/1", _plain, _bytes_of)
"""Row by row, element k of a row from bit ``k * bits`` on, low bits first: a code of 3 bits may straddle two bytes."""

_EIGHT = (0, 2, 4, 6, 1, 3, 5, 7)

WORD_ORDERS: dict[tuple[str, int], tuple[int, ...]] = {
    ("float16", 4): _EIGHT,
    ("float16", 2): (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15),
    ("float16", 1): tuple(start + i for start in (0, 8, 16, 24) for i in _EIGHT),
    ("int8", 4): (0, 4, 1, 5, 2, 6, 3, 7),
    ("int8", 2): (0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
    ("int8", 1): tuple(start + i for start in (0, 16) for i in (0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15)),
    ("int4", 2): (0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15),
}
"""BitBLAS's "fast decoding" orders, by the type that codes are decoded to and their bits: the elements of a 32-bit word
from its low bits to its high ones."""

BITBLAS: dict[tuple[str, int], Packing] = {
    (target, bits): interleaved(f"bitblas-{target}-{bits}bit/1", order) for (target, bits), order in WORD_ORDERS.items()
}
"""Rows of words in those orders."""

PACKINGS: dict[str, Packing] = {packing.id: packing for packing in (PLAIN, *BITBLAS.values())}


def packing(id: str) -> Packing:
    """The packing of a layout id.

    Raises
    ------
    UnknownFormat : an id that this version does not know.
    """
    if id not in PACKINGS:
        raise UnknownFormat(id, sorted(PACKINGS), what="layout")
    return PACKINGS[id]


def pack_plain(codes: np.ndarray, bits: int) -> np.ndarray:
    """``PLAIN.pack`` for any number of dimensions, without an array of bit positions."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    if 8 % bits == 0:
        share = 8 // bits
        if codes.shape[-1] % share:
            codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % share)])
        # The codes of a byte as one number: the highest ones are moved beside the lower ones.
        words = np.ascontiguousarray(codes).view(f"<u{share}")
        packed = words.copy()
        for place in range(1, share):
            packed |= words >> np.array(place * (8 - bits), words.dtype)
        return packed.astype(np.uint8)
    stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def unpack_plain(packed: np.ndarray, columns: int, bits: int) -> np.ndarray:
    """Inverse of `pack_plain`."""
    if bits == 8:
        return packed
    if 8 % bits == 0:
        shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
        codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return np.ascontiguousarray(codes.reshape(*packed.shape[:-1], -1)[..., :columns])
    stream = np.unpackbits(packed, axis=-1, count=columns * bits, bitorder="little")
    stream = stream.reshape(*packed.shape[:-1], columns, bits)
    return np.packbits(stream, axis=-1, bitorder="little")[..., 0]
