"""The lines that ``print`` shows: one text for the interpreter, the emulator, a CPU and a GPU.

A line begins with the block that it comes from, and with the thread where threads come there apart.  A tile shows eight
neighbours of a row a line, each line with its place, because lines of many threads and blocks come in any order::

    [block 0 3] before acc[1, 8:16] = 1 2 3 4 5 6 7 8
    [block 0 3, thread 5] 5 0.5

Texts here have ``{}`` where a number stands, as `str.format` wants them; braces of the author's are doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.ir import DType, Expr, Region

PER_LINE = 8
"""Elements of a tile in a line."""

HOLE = "{}"


def escaped(text: str) -> str:
    """A text of the author's, whose braces are braces."""
    return text.replace("{", "{{").replace("}", "}}")


def beginning(blocks: int, apart: bool, role: str = "") -> str:
    """What a line begins with: the block by so many indices, and where threads are `apart` which one; none outside
    kernels."""
    if not blocks:
        return ""
    thread = f", {escaped(role)}{' ' if role else ''}thread {HOLE}" if apart else ""
    return f"[block {' '.join([HOLE] * blocks)}{thread}]"


def element_place(name: str, rank: int, count: int) -> str:
    """``name[i, j:k]``: where `count` neighbours lie; holes for each index, and for the last one's end where there are
    several."""
    indices = [HOLE] * rank
    if count > 1:
        indices[-1] = f"{HOLE}:{HOLE}"
    return f"{escaped(name)}[{', '.join(indices)}] = {' '.join([HOLE] * count)}"


def words_of(values: Sequence[Expr | Region | str]) -> tuple[list[str], list[Expr]]:
    """The texts of what is no tile, and the numbers in them."""
    words = [escaped(value) if isinstance(value, str) else HOLE for value in values if not isinstance(value, Region)]
    return words, [value for value in values if isinstance(value, Expr)]


def line(parts: Iterable[str]) -> str:
    """Parts that are there, with spaces between."""
    return " ".join(part for part in parts if part)


def number_format(dtype: DType) -> str:
    """How C prints a number of a type."""
    if dtype.is_float:
        return "%g"
    sign = "u" if dtype.kind == "uint" else "d"
    return f"%ll{sign}" if dtype.bits == 64 else f"%{sign}"


def show_number(value: Any, dtype: DType) -> str:  # a number of Python's or NumPy's
    """A number as C shows it."""
    return f"{float(value):g}" if dtype.is_float else str(int(value))


def c_format(text: str, dtypes: Sequence[DType]) -> str:
    """The text as the inside of a C string for ``printf``, its end of line included."""
    pieces, formats = [], iter(dtypes)
    place = 0
    while place < len(text):
        pair = text[place : place + 2]
        if pair == HOLE:
            pieces.append(number_format(next(formats)))
        elif pair in ("{{", "}}"):
            pieces.append(pair[0])
        else:
            pieces.append("%%" if text[place] == "%" else _in_c(text[place]))
            place -= 1
        place += 2
    return "".join(pieces) + "\\n"


def in_c(text: str) -> str:
    """A text as a C string."""
    return f'"{"".join(map(_in_c, text))}"'


_IN_C = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?"}


def _in_c(character: str) -> str:
    if character in _IN_C:
        return _IN_C[character]
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in character.encode())
