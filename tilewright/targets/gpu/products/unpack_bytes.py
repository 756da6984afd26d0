"""Words of 32 bits as code of threads computes with them, and codes of packed weights as registers of four 8-bit
operands: int8, and small whole numbers as 8-bit floats.

Two's complement in the highest bits of a byte is the code times a power of two, which scales take back: a shift and a
mask for four codes. With zeros or second-level scales a register is ``codes * scale + bias`` in 32-bit arithmetic, all
four bytes at once: what belongs to a byte lies between 0 and 255 once 128 is added to it, so that nothing carries over.

An 8-bit float whose exponent is least counts up like an integer, up to twice the numbers that its mantissa holds, and
from there to twice as many in steps of two.  So twice a small whole number is its own bit pattern, times the least
subnormal, and a negative one needs the sign beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tilewright.ir import UINT32, Call, Expr, binary, const
from tilewright.machine.fragment_records import FragmentRecords

SIGN_OF_EACH = 0xBA98
"""What selects the highest bit of each byte, eight times."""

SIGNS, ONES = 0x80808080, 0x01010101


class Affine(NamedTuple):
    """``codes * scale + bias`` for the four bytes of a register; no scale is 1.  Plain ones leave codes as they are."""

    scale: Expr | None
    bias: Expr
    plain: bool


def affine(
    form: FragmentRecords, offset: int, zero: Expr | None, scale: Expr | None, named: Callable[[str, Expr], Expr]
) -> Affine:
    """What makes unsigned codes ``(number - offset - zero) * scale + 128``, of one row and group.

    Parameters
    ----------
    zero, scale : words, signed; None for 0 and 1.
    named : gives an expression a name, so that it is worked out once.
    """
    less: Expr = const(offset + (1 << form.bits - 1) & 0xFFFFFFFF, UINT32)
    if zero is not None:
        less = combined("add", zero, less)
    if scale is not None:
        scale = named("scale", scale)
        less = combined("mul", less, scale)
    bias = combined("mul", combined("sub", 128, less), ONES)
    return Affine(scale, named("bias", bias), scale is None and zero is None and offset == 0)


def byte_register(form: FragmentRecords, word: Expr, field: int, factors: Affine | None) -> Expr:
    """The four codes of one field of a word's bytes, as they come fastest or by way of `factors`."""
    if factors is not None and factors.plain and form.bits < 8:
        return _extended(form, word, field)
    if factors is not None:
        codes = _unsigned(form, word, field)
        product = codes if factors.scale is None else combined("mul", codes, factors.scale)
        return combined("xor", combined("add", product, factors.bias), SIGNS)
    if form.bits == 8:
        return word
    if form.small_float is not None:
        return _small_float(word, field, form.small_float[0])
    low = _mask(form.bits)
    if form.operand.is_integer:
        return masked(shifted(word, 8 - form.bits * (field + 1)), low << 8 - form.bits)
    # Twice a number and its sign: of a negative number v, held as -v - 1, the pattern is -2 v beside the highest bit.
    codes = shifted(word, -form.bits * field)
    return combined("add", combined("mul", masked(codes, ONES), 0x81), masked(codes, low))


def _small_float(word: Expr, field: int, mantissa: int) -> Expr:
    """Codes that are floats of four bits: sign, exponent and mantissa in their places."""
    place = 3 - mantissa
    rest = masked(shifted(word, place - 4 * field), 7 * ONES << place)
    return lop3(AND_OR, shifted(word, 4 - 4 * field), SIGNS, rest)


def _extended(form: FragmentRecords, word: Expr, field: int) -> Expr:
    """The numbers of a field in the lowest bits of bytes, and their signs in the others."""
    high, low = shifted(word, 8 - form.bits * (field + 1)), shifted(word, -form.bits * field)
    return lop3(CHOICE, _mask(form.bits), low, prmt(high, 0, SIGN_OF_EACH))


def _unsigned(form: FragmentRecords, word: Expr, field: int) -> Expr:
    """The numbers of a field plus half their range."""
    if form.bits == 8:
        return combined("xor", word, SIGNS)
    return lop3(AND_XOR, shifted(word, -form.bits * field), _mask(form.bits), ONES << form.bits - 1)


def _mask(bits: int) -> int:
    """The lowest `bits` of every byte."""
    return ((1 << bits) - 1) * ONES


Word: TypeAlias = "Expr | int"

AND_OR, AND_XOR, CHOICE = 0xEA, 0x6A, 0xCA
"""Tables of `lop3`: ``(a & b) | c``, ``(a & b) ^ c`` and ``(a & b) | (~a & c)``."""


def call(function: str, *words: Word) -> Call:
    """What a function of words gives, a word."""
    return Call(UINT32, function, tuple(map(_word, words)))


def lop3(table: int, a: Word, b: Word, c: Word) -> Call:
    """A function of three bits, for all bits of three words at once."""
    return Call(UINT32, "lop3", (const(table), _word(a), _word(b), _word(c)))


def prmt(low: Word, high: Word, selector: Word) -> Call:
    """Four of the eight bytes of two words, each by four bits of the selector."""
    return call("prmt", low, high, selector)


def combined(operation: str, a: Word, b: Word) -> Expr:
    """Two words by an operation of integers."""
    return binary(operation, _word(a), _word(b))


def shifted(word: Expr, left: int) -> Expr:
    """A word shifted to the left, or to the right for less than nothing."""
    return word if left == 0 else combined("shl" if left > 0 else "shr", word, abs(left))


def masked(word: Expr, mask: int) -> Expr:
    """The bits of a word that a mask has."""
    return combined("and", word, mask)


def _word(value: Word) -> Expr:
    return const(value, UINT32) if isinstance(value, int) else value
