"""Words of 32 bits as code of threads computes with them: numbers among the operands are words, too."""

from __future__ import annotations

from typing import TypeAlias

from tilewright.ir import UINT32, Call, Expr, binary, const

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
