"""`FragmentRecords`: low-bit weights in the order in which matrix instructions take their left operand from registers.

A record holds what belongs to `rows` rows (16 for codes of four bits and more, 32 or 64 for narrower ones) and 128
columns: the codes, then scales, then zeros.  The codes of 16 rows follow the A fragment of the m16n8 instructions,
which a warp of a register-sourced wgmma shares: lane ``4 g + t`` holds of row ``g + 8 h`` the columns
``E (t + 4 p) + e`` of each step of k, ``E`` elements to a register (`left_fragment` has the rule).  So one load of up
to 16 bytes gives a lane codes of several steps, and inside a word

    field h + 2 (p + 2 step)  of the part of the word that element e of a register comes from

so that shifts and masks alone separate the registers, and the codes of a register pair of rows differ by one field.
Codes that are looked up lie in the order of registers, the elements of each side by side, as byte look-ups leave them.

The order is a function of the codes' width, of the operand's type and of the fields alone: one packed weight serves
every number of rows of activations and every kernel.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ir import ALL, register_record
from tilewright.layout import MEMORY, REGISTER, THREAD, Digit, Field, Layout, RecordLayout, repeat
from tilewright.machine.fragment_codes import COLUMNS, E2M1, FragmentCodes

ACROSS = 4
"""A row of records is padded to a multiple of this: long copies are the fast ones."""

TILE = 16
"""Rows that one warp's instruction takes."""

LANES, _VECTOR = 32, 4


@functools.cache
def left_fragment(bits: int, k: int, warps: int = 1) -> Layout:
    """What records follow: a left operand of 16 rows a warp by k, of elements of so many bits."""
    packed = 32 // bits
    rows = [(8, THREAD, 4), (2, REGISTER, packed)] + ([(warps, THREAD, LANES)] if warps > 1 else [])
    depth = ((packed, REGISTER, 1), (4, THREAD, 1), (k // (4 * packed), REGISTER, 2 * packed))
    return Layout.of(rows, depth)


def follow_records(fragment: Layout, bits: int) -> bool:
    """Whether the registers of an instruction's left operand are those in whose order records have their codes."""
    rows, k = fragment.shape
    whole = rows % TILE == 0 and k % (128 // bits) == 0
    return whole and fragment == left_fragment(bits, k, rows // TILE)


@register_record
@dataclass(frozen=True, slots=True)
class FragmentRecords(FragmentCodes):
    """The order of one packed weight, by the codes that it holds."""

    def __str__(self) -> str:
        parts = [f"u{self.bits} as {self.operand}", f"{self.rows}x{COLUMNS}", f"groups of {self.group}"]
        parts += [f"{name} {dtype}" for name, dtype in (("scales", self.scale), ("zeros", self.zero)) if dtype]
        if self.values is not None:
            table = np.array(self.values, np.float64).tobytes()
            parts.append("e2m1" if self.values == E2M1 else f"values {zlib.crc32(table):08x}")
        if self.floating is not None:
            mantissa, bias = self.floating
            parts.append(f"e{self.bits - 1 - mantissa}m{mantissa} bias {bias}")
        if self.ladder:
            parts.append("ladder")
        return f"fragments1[{', '.join(parts)}]"

    # Sizes --------------------------------------------------------------------------------------

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows in a record: as many as make the codes at least 1 KB."""
        return max(1, 4 // self.bits)

    @property
    def rows(self) -> int:
        return TILE * self.tiles

    @property
    def sets(self) -> int:
        """Groups in a record, along its columns."""
        return COLUMNS // self.group

    @property
    def tile_words(self) -> int:
        """32-bit words of the codes of 16 rows."""
        return TILE * COLUMNS * self.bits // 32

    @property
    def lane_words(self) -> int:
        """Words of those that one lane reads."""
        return self.tile_words // LANES

    @property
    def vector(self) -> int:
        """Words of one load."""
        return min(_VECTOR, self.lane_words)

    @property
    def words(self) -> int:
        """Words of a record."""
        return self.record(1, 1).record_bytes // 4

    def offset(self, field: str) -> int:
        """Byte of a record at which a field starts: ``"codes"``, ``"scales"`` or ``"zeros"``."""
        return self.record(1, 1).offset(field)

    def shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Shape in words of the records of a weight; its rows are padded to whole records, its columns to four."""
        across = 1 if self.ladder else ACROSS
        return -(-rows // self.rows), -(-columns // (COLUMNS * across)) * across, self.words

    # Orders -------------------------------------------------------------------------------------

    @property
    def packed(self) -> int:
        """Elements of the operand in a register."""
        return 32 // self.operand.bits

    @property
    def pairs(self) -> int:
        """Registers of a fragment's 16 x 128 that one row of a lane has: half of all."""
        return COLUMNS // (4 * self.packed)

    def place(self, h: int, q: int) -> tuple[int, int]:
        """The word of a lane, and the field in it, of register ``h + 2 (q % 2)`` of step ``q // 2``."""
        return divmod(self._number(h, q), self.fields)

    def _number(self, h: int, q: int) -> int:
        """Which register of a lane's 16 x 128 this is, in the order of the record."""
        return 2 * h + q % 2 + q // 2 * 4 if self.ladder else h + 2 * q

    def _position(self, number: int) -> int:
        """Elements from the first code of lane 0 to the code of register number `number`, lane 0, element 0."""
        word, field = divmod(number, self.fields)
        load, within = divmod(word, self.vector)
        between = self.packed if self.is_looked_up else 1
        return (load * LANES * self.vector + within) * (32 // self.bits) + field * between

    def codes(self) -> Layout:
        """Where the code at (row, column) of a record lies, in codes."""
        lane = self.vector * 32 // self.bits
        rows = [Digit(8, MEMORY, 4 * lane), Digit(2, MEMORY, self._position(self._number(1, 0)))]
        columns = [Digit(self.packed, MEMORY, 1 if self.is_looked_up else self.fields), Digit(4, MEMORY, lane)]
        steps = range((self.pairs - 1).bit_length())
        columns += [Digit(2, MEMORY, self._position(self._number(0, 1 << i))) for i in steps]
        tile = Layout.of(
            [(d.extent, d.place, d.stride) for d in rows], [(d.extent, d.place, d.stride) for d in columns]
        )
        return repeat(tile, 0, self.tiles, MEMORY, self.tile_words * 32 // self.bits)

    def lines(self) -> Layout:
        """Where the scale (or zero) of (row, group) lies: those of rows g and g + 8 side by side."""
        rows = [(8, MEMORY, 2), (2, MEMORY, 1), (self.tiles, MEMORY, TILE)]
        return Layout.of(rows, [(self.sets, MEMORY, self.rows)])

    def record(self, blocks_down: int, blocks_across: int) -> RecordLayout:
        """The records of a weight of so many blocks."""
        grid = Layout.of([(blocks_down, MEMORY, blocks_across)], [(blocks_across, MEMORY, 1)])
        found = [Field("codes", ALL[f"uint{self.bits}"], self.codes())]
        found += [
            Field(name, dtype, self.lines())
            for name, dtype in (("scales", self.scale), ("zeros", self.zero))
            if dtype is not None
        ]
        return RecordLayout(grid, tuple(found))

    # Packing ------------------------------------------------------------------------------------

    def pack(self, parts: Mapping[str, np.ndarray], padding: int = 0) -> np.ndarray:
        """A weight's records.

        Parameters
        ----------
        parts : ``codes`` (rows, columns), unsigned; ``scales`` and ``zeros`` where records hold them, (rows, groups)
            with groups of `group` columns, or wider ones that are multiples of 128.
        padding : the code of what is added at the ends; scales and zeros there are 0, or 1 where their type has no 0.

        Returns
        -------
        uint32 array of `shape` (rows, columns).
        """
        rows, columns = parts["codes"].shape
        down, across, words = self.shape(rows, columns)
        layout = self.record(down, across)
        padded = {}
        for field in layout.fields:
            array = np.asarray(parts[field.name])
            if field.name != "codes":
                array = self._spread(array, columns)
            ending = padding if field.name == "codes" else int(field.dtype == ALL["float8_e8m0fnu"])
            room = np.full(layout.shape(field.name), ending, field.dtype.numpy)
            room[: array.shape[0], : array.shape[1]] = array.astype(field.dtype.numpy)
            padded[field.name] = room
        return layout.pack(padded).view(np.uint32).reshape(down, across, words)

    def _spread(self, array: np.ndarray, columns: int) -> np.ndarray:
        """Scales with one column for each group of a record, those of wider groups repeated."""
        wanted = -(-columns // self.group)
        if array.shape[1] == wanted:
            return array
        return np.repeat(array, math.ceil(wanted / array.shape[1]), axis=1)[:, :wanted]

    def unpack(self, packed: np.ndarray, field: str, rows: int, columns: int) -> np.ndarray:
        """One field of a weight's records; the inverse of `pack` but for repeated scales."""
        down, across, _ = self.shape(rows, columns)
        found = self.record(down, across).unpack(np.ascontiguousarray(packed).reshape(-1).view(np.uint8), field)
        return found[:rows, : columns if field == "codes" else -(-columns // self.group)]
