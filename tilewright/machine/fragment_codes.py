"""`FragmentCodes`: what codes of few bits stand for, and what registers make of them.

Codes that become 16 bits are plain numbers, from which an offset is taken. Codes that become 8 bits are signed, so that
registers need none: those of int8 are two's complement, those of 8-bit floats are a sign, the lowest bit, below what is
left of a number, `-v - 1` of a negative one v. `FragmentCodes.encode` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir.dtypes import ALL, DType

COLUMNS = 128
"""Columns of a record."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the codes of four-bit floats."""

SIGNS = (-1.0, 1.0)
"""Values of the codes of one bit that are signs."""

_FLOATS = {"float16": (10, 15), "bfloat16": (7, 127), "float8_e4m3fn": (3, 7)}
"""Bits of mantissa and bias of the exponent of the operands that small floats become."""

_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest numbers; what stands in the last bits of a 16-bit float, up to the lowest of its exponent, is a multiple
of it."""


@dataclass(frozen=True, slots=True)
class FragmentCodes:
    """The codes of one packed weight.

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

    @property
    def fields(self) -> int:
        """Codes in the part of a word that one element of a register comes from."""
        return self.operand.bits // self.bits

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
