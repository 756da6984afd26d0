"""`FragmentRecords`: low-bit weights in the order in which matrix instructions take their left operand from registers.

A record holds what belongs to `rows` rows (16 for codes of four bits and more, 32 or 64 for narrower ones) and 128
columns: the codes, then scales, then zeros.  The codes of 16 rows follow the A fragment of the m16n8 instructions,
which a warp of a register-sourced wgmma shares: lane ``4 g + t`` holds of row ``g + 8 h`` the columns
``E (t + 4 p) + e`` of each step of k, ``E`` elements to a register (`targets/cuda/instructions.py` has the rule, a test
compares).  So one load of up to 16 bytes gives a lane codes of several steps, and inside a word

    field h + 2 (p + 2 step)  of the part of the word that element e of a register comes from

so that shifts and masks alone separate the registers, and the codes of a register pair of rows differ by one field.
Codes that are looked up lie in the order of registers, the elements of each side by side, as byte look-ups leave them.

Codes that become 16 bits are plain numbers, from which an offset is taken. Codes that become 8 bits are signed, so that
registers need none: those of int8 are two's complement, those of 8-bit floats are a sign, the lowest bit, below what is
left of a number, `-v - 1` of a negative one v. `FragmentRecords.encode` makes them.

The order is a function of the codes' width, of the operand's type and of the fields alone: one packed weight serves
every number of rows of activations and every kernel.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir.dtypes import ALL, DType
from tilewright.ir.literals import register_record
from tilewright.layout.digits import MEMORY, Digit
from tilewright.layout.layout import Layout
from tilewright.layout.records import Field, RecordLayout
from tilewright.layout.threads import repeat

COLUMNS = 128
"""Columns of a record."""

ACROSS = 4
"""A row of records is padded to a multiple of this: long copies are the fast ones."""

TILE = 16
"""Rows that one warp's instruction takes."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the codes of four-bit floats."""

SIGNS = (-1.0, 1.0)
"""Values of the codes of one bit that are signs."""

LANES, _VECTOR = 32, 4

_FLOATS = {"float16": (10, 15), "bfloat16": (7, 127), "float8_e4m3fn": (3, 7)}
"""Bits of mantissa and bias of the exponent of the operands that small floats become."""

_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest numbers; what stands in the last bits of a 16-bit float, up to the lowest of its exponent, is a multiple
of it."""


@register_record
@dataclass(frozen=True, slots=True)
class FragmentRecords:
    """The order of one packed weight.

    Attributes
    ----------
    bits : of a code: 1, 2, 4 or 8.
    operand : what codes become in registers; its width decides the order.
    scale, zero : types of the scales and zeros that a record holds; None where it holds none.
    group : columns that share a scale and a zero: 16, 32, 64, or 128 for that and more.
    values : the number that each code stands for, exact in the operand's type: any 16 for 4 bits, `SIGNS` for one; None
        where a code is its own.
    floating : bits of mantissa and bias of the exponent where codes of 4 or 8 bits are small floats, the sign on top;
        None where they are none. All codes are finite: 0x7F of e4m3 is 480.
    ladder : whether the order is that of BitBLAS's int8 weights with ``propagate_b=3``: a lane's words go along 32
        columns before they go to the row 8 below, and a row of records is not padded. Four of its tiles of 16 x 32 are
        a record.

    Raises
    ------
    InvalidLayout : a width or a group for which there is no such order.
    """

    bits: int
    operand: DType
    scale: DType | None = None
    zero: DType | None = None
    group: int = COLUMNS
    values: tuple[float, ...] | None = None
    floating: tuple[int, int] | None = None
    ladder: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8) or self.operand.bits not in (8, 16) or self.bits > self.operand.bits:
            raise InvalidLayout(
                f"codes of {self.bits} bits have no order as operands of {self.operand}",
                hint="codes of 1, 2, 4 and 8 bits become operands of 8 or 16",
            )
        if self.group not in (16, 32, 64, COLUMNS):
            raise InvalidLayout(
                f"a record of {COLUMNS} columns has no groups of {self.group}",
                hint=f"groups of 16, 32, 64, or {COLUMNS} for all that are multiples of it",
            )

        plain = self.scale is None and self.zero is None and self.values is None and self.floating is None
        if self.ladder and not (self.bits == 8 and str(self.operand) == "int8" and plain):
            raise InvalidLayout(
                f"records of {self.operand} have no ladder order", hint="it is that of int8 weights without scales"
            )
        if self.values is not None and not self._holds_values():
            raise InvalidLayout(
                f"{len(self.values)} values of codes of {self.bits} bits cannot be looked up as {self.operand}",
                hint="16 numbers that the operand's 16-bit type holds exactly, for codes of 4 bits; -1 and 1 for one",
            )
        if self.floating is not None and not self._holds_floats():
            mantissa, bias = self.floating
            raise InvalidLayout(
                f"floats of {self.bits} bits, {mantissa} of mantissa, bias {bias}, cannot be decoded as {self.operand}",
                hint="4 or 8 bits, fewer than the operand, and no more of exponent and mantissa than it has",
            )

    def _holds_values(self) -> bool:
        """Whether the operand's type has every value."""
        assert self.values is not None
        wanted = np.array(self.values, np.float64)
        known = (self.bits == 4 and len(wanted) == 16) or (self.bits == 1 and self.values == SIGNS)
        exact = (wanted.astype(self.operand.numpy).astype(np.float64) == wanted).all()
        return known and self.operand.bits == 16 and self.floating is None and bool(exact)

    def _holds_floats(self) -> bool:
        """Whether exponent and mantissa have room in the operand's, and its bias is not the smaller."""
        assert self.floating is not None
        mantissa, bias = self.floating
        if str(self.operand) not in _FLOATS or self.bits not in (4, 8) or self.bits == self.operand.bits:
            return False
        most, own = _FLOATS[str(self.operand)]
        exponent = self.bits - 1 - mantissa
        return 0 <= mantissa <= most and 0 <= exponent <= self.operand.bits - 1 - most and 0 <= bias <= own

    @property
    def scales_codes(self) -> bool:
        """Whether scales are of the operand's type, or powers of two that it has: then codes can be scaled in
        registers."""
        return self.scale == self.operand or (self.scale, self.operand) == (ALL["float8_e8m0fnu"], ALL["bfloat16"])

    @property
    def small_float(self) -> tuple[int, int] | None:
        """Bits of mantissa and bias of the exponent of codes that are decoded as floats, by shifts."""
        return None if self.is_looked_up else self.floating

    @property
    def float_unit(self) -> float:
        """What a small float is too small by where its bits stand in the operand's places."""
        assert self.small_float is not None
        return 2.0 ** (_FLOATS[str(self.operand)][1] - self.small_float[1])

    @property
    def is_looked_up(self) -> bool:
        """Whether codes are places in a table of 16 numbers; 8-bit floats take those of 4 bits by shifts."""
        return self.operand.bits == 16 and self.bits == 4 and (self.values is not None or self.floating is not None)

    @property
    def is_signs(self) -> bool:
        """Whether codes are the bits of signs."""
        return self.values == SIGNS

    @property
    def numbers(self) -> np.ndarray | None:
        """The number that each code stands for, float64; None where a code is its own."""
        if self.floating is None:
            return None if self.values is None else np.array(self.values)
        mantissa, bias = self.floating
        codes = np.arange(1 << self.bits - 1)
        power, fraction = codes >> mantissa, (codes & (1 << mantissa) - 1) / (1 << mantissa)
        found = np.ldexp(fraction + (power > 0), np.maximum(power, 1) - bias)
        return np.concatenate([found, -found])

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
    def fields(self) -> int:
        """Codes in the part of a word that one element of a register comes from."""
        return self.operand.bits // self.bits

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

    # Values -------------------------------------------------------------------------------------

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Codes (uint8) of whole numbers from ``-2**(bits - 1)`` for operands of 8 bits, from 0 for others."""
        numbers = np.asarray(numbers).astype(np.int64)
        codes = np.where(numbers < 0, -2 * numbers - 1, 2 * numbers) if self.has_low_signs else numbers
        return (codes & (1 << self.bits) - 1).astype(np.uint8)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """What codes stand for, float64; eight bits of an 8-bit float are that float."""
        if self.numbers is not None:
            return self.numbers[codes.astype(int)]
        if self.operand.bits == 16:
            return codes.astype(np.float64)
        if self.bits == 8 and self.operand.is_float:
            return codes.astype(np.uint8).view(self.operand.numpy).astype(np.float64)
        if self.has_low_signs:
            rest = codes.astype(np.int64) >> 1
            return np.where(codes & 1, -rest - 1, rest).astype(np.float64)
        half = 1 << self.bits - 1
        return ((codes.astype(np.int64) ^ half) - half).astype(np.float64)

    @property
    def has_low_signs(self) -> bool:
        """Whether codes are whole numbers that become 8-bit floats: the lowest bit is the sign."""
        return self.operand.is_float and self.operand.bits == 8 and self.bits < 8 and self.numbers is None

    @property
    def raw_bias(self) -> int:
        """What `raw` codes of bfloat16 are too large by: 128 is the number whose last bits are units, and bytes are
        centred."""
        if self.is_signs:
            return 1 if self.operand == ALL["float16"] else 257
        if self.operand != ALL["bfloat16"] or self.numbers is not None:
            return 0
        return 128 if self.bits < 8 else -128

    def raw_unit(self, h: int) -> float:
        """What `raw` codes are multiples of, in rows ``g + 8 h``: a masked field of a half is a subnormal number, and
        one of int8 lies in the highest bits. The least numbers of e4m3 count up like integers, twice a code's."""
        if self.operand.bits == 8:
            if self.small_float is not None:
                return 1.0 / self.float_unit
            return 1.0 if self.bits == 8 else 2.0**-8 if self.operand.is_float else 2.0 ** (8 - self.bits)
        if self.is_signs:  # a bit is half of the difference between them
            return 0.5 * (2.0 ** (-24 if self.is_shifted(h) else -24 + h) if self.operand == ALL["float16"] else 1.0)
        if self.operand != ALL["float16"]:
            return 1.0
        if self.small_float is not None:
            return 1.0 / self.float_unit
        if self.numbers is not None:
            return 1.0
        return 2.0 ** (-24 if self.is_shifted(h) else -24 + h * self.bits)

    # Codes as bytes ---------------------------------------------------------------------------

    @property
    def has_bytes(self) -> bool:
        """Whether codes ordered for 16 bits can be taken as bytes too, by masks: four of a word's fields stand a byte
        apart."""
        return self.operand.bits == 16 and self.bits < 8 and (self.numbers is None or self.is_signs)

    def byte_column(self, k: Any) -> Any:  # of the kind of k
        """The column of a record that column `k` (0 to 127) of its codes as bytes is, for numbers, arrays or
        expressions.

        A register of bytes holds two fields, eight bits apart, of the parts of a word that two elements come from.
        """
        register, lane, element, second = k // 16, k // 4 % 4, k // 2 % 2, k % 2
        apart = self.fields // 4
        pair = register // apart * 2 * apart + register % apart + second * apart
        return 8 * pair + 2 * lane + element

    def byte_unit(self, k: Any) -> Any:  # of the kind of k
        """What the byte in column `k` is a multiple of, as its power of two: masks leave fields where they are."""
        return k // 16 % (self.fields // 4) * 2 * self.bits

    # Codes times scales in one operation ------------------------------------------------------

    def is_liftable(self, offset: int = 0) -> bool:
        """Whether codes can be `lifted`: plain integers with scales of the operand's type, the offset a power of two or
        none."""
        return (
            self.operand.bits == 16
            and self.scale == self.operand
            and self.numbers is None
            and offset & (offset - 1) == 0
        )

    @property
    def lift(self) -> int:
        """The power of two that scales are multiplied by to become factors of `lifted` codes.

        Scales of float16 of which the largest makes weights of 2^15 at most become as large as float16 has room for;
        bfloat16 has room for more than weights need.
        """
        return self.bits - 1 if self.operand == ALL["float16"] else 116

    @property
    def lifted_unit(self) -> float:
        """What `lifted` codes times lifted scales are multiples of: a masked code is a multiple of the operand's least
        number."""
        return 2.0**self.lift * _LEAST[str(self.operand)]

    def lifted_place(self, h: int) -> int:
        """The bit at which the field of rows ``g + 8 h`` is masked: the field's own, where a number is still linear in
        it."""
        linear = _FLOATS[str(self.operand)][0] + 1
        return h * self.bits if (h + 1) * self.bits <= linear else 0

    def is_shifted(self, h: int) -> bool:
        """Whether the field of rows ``g + 8 h`` is shifted to the lowest bits: where it is, it would reach the
        exponent."""
        return h > 0 and (self.operand != ALL["float16"] or (h + 1) * self.bits > 10)
