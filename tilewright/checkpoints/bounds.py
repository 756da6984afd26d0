"""What a file may claim of itself: sizes that are looked at before anything is computed, allocated or parsed.

A file of weights comes from somebody else. Whatever its bytes are, opening it takes time and memory in proportion to
the file, and what does not fit is `InvalidCheckpoint` with the file's name.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import numpy as np

from tilewright.errors import InvalidCheckpoint

LONGEST_HEADER = 32 << 20
"""Bytes of a header, or of a JSON file beside the weights: 250,000 tensors have room in it."""

MOST_DIMENSIONS = 64
LONGEST_NUMBER = 64
"""Digits; what counts or places may be is said by `LARGEST_SIZE`."""

DEEPEST = 64
"""Lists and tables within one another."""

LARGEST_SIZE = 1 << 63
"""Sizes and places are below it."""

MOST_VALUES = 3 << 19
"""Values of a JSON text; a tensor's entry has five or six."""

_BYTES_OF_TABLE, _BYTES_OF_LIST, _BYTES_OF_VALUE, _MOST_TIMES = 240, 80, 40, 16
"""What the least ones take in memory, and how many times its text's length all of them may take together."""


class MappedFile:
    """A regular file's bytes, mapped: they cost memory when they are looked at.

    Raises
    ------
    InvalidCheckpoint : it is no regular file (a pipe would be waited for), cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    raise InvalidCheckpoint(f"{path} cannot be read: it is not a file")
                self.size = found.st_size
                if not self.size:
                    raise InvalidCheckpoint(f"{path} cannot be read: it is empty")
                self._map = mmap.mmap(handle, self.size, access=mmap.ACCESS_READ)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            raise InvalidCheckpoint(f"{path} cannot be read: {reason(error)}") from None
        self._bytes = np.frombuffer(self._map, np.uint8)

    def window(self, begin: int, count: int) -> np.ndarray:
        """Read-only bytes of the file, as long as it is as long as it was: a process that looks behind the end of a
        mapped file that somebody has cut is killed, so its length is asked for whenever bytes are handed out. Raises
        InvalidCheckpoint."""
        if self._map.size() < self.size:
            raise InvalidCheckpoint(
                f"{self.path} was cut while it was being read, from {self.size} bytes to {self._map.size()}"
            )
        return self._bytes[begin : begin + count]

    def read(self, begin: int, count: int) -> bytes:
        """A copy of some bytes."""
        return self.window(begin, count).tobytes()


def reason(error: Exception) -> str:
    """What the system said."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def is_file(path: Path) -> bool:
    """Whether there is a regular file of a name, which may be none that a file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_named(path: Path) -> bool:
    """Whether a directory has something of a name, be it a link to nothing or a pipe: what is there is read, or
    refused."""
    return os.path.lexists(path)


def read_json(path: Path) -> dict[str, Any]:  # whatever JSON says
    """The table in a JSON file.  Raises InvalidCheckpoint."""
    mapped = MappedFile(path)
    if mapped.size > LONGEST_HEADER:
        raise InvalidCheckpoint(f"{path} is {mapped.size} bytes long; {LONGEST_HEADER} are read at most")
    return parse_table(path, mapped.read(0, mapped.size))


def parse_table(path: Path, text: bytes, what: str = "it", *, strict: bool = False) -> dict[str, Any]:
    """A JSON table whose numbers and nesting are as they should be; `what` of the file it is, for messages. Where
    `strict`, names that stand twice are refused, and numbers that JSON lacks (Infinity, which configurations have).
    Raises InvalidCheckpoint."""
    try:
        found = json_value(text, strict=strict)
        if not isinstance(found, dict):
            raise ValueError("is not a table in JSON")
    except ValueError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {what} {error}") from None
    return found


def json_value(text: str | bytes, *, strict: bool = False) -> Any:  # whatever JSON says
    """A JSON value out of a file, such as one that stands in its metadata. Raises ValueError, which says what is wrong:
    it is no JSON, or more than a file may claim."""
    try:
        # In no other encoding: `json` would guess one, in which what is looked at before would say nothing.
        text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        said = text.decode("utf-8-sig" if not strict else "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ValueError("is not JSON in UTF-8") from None
    names = _checked_text(text)
    try:
        found = json.loads(said, parse_constant=_constant if strict else None)
    except _Claim:
        raise
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if strict and _names_of(found) != names:
        raise ValueError("says a name twice")
    return found


class _Claim(ValueError):
    """What a text may not say."""


def _constant(name: str) -> NoReturn:
    raise _Claim(f"says {name}")


def _checked_text(text: bytes) -> int:
    """Refuse numbers, nesting and lists that would take long to make, after a few passes over the bytes; how many names
    the text has."""
    outside = _outside_strings(text)
    if b"0" * (LONGEST_NUMBER + 1) in _KIND[outside].tobytes():
        raise ValueError(f"has a number of more than {LONGEST_NUMBER} digits")
    tables, lists, commas, names = (int(np.count_nonzero(outside == ord(mark))) for mark in "{[,:")
    if commas > MOST_VALUES:
        raise ValueError(f"has more than {MOST_VALUES} values")
    needed = _BYTES_OF_TABLE * tables + _BYTES_OF_LIST * lists + _BYTES_OF_VALUE * commas
    if needed > _MOST_TIMES * len(text) + 100_000:
        raise ValueError("consists of little but brackets and commas")
    steps = _STEPS[outside]
    if np.cumsum(steps[steps != 0], dtype=np.int32).max(initial=0) > DEEPEST:
        raise ValueError(f"has more than {DEEPEST} lists within one another")
    return names


def _names_of(value: Any) -> int:
    """How many names a table has, with those of the tables in it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(value) * isinstance(value, dict) + sum(
        _names_of(part) for part in parts if isinstance(part, (dict, list))
    )


def _outside_strings(text: bytes) -> np.ndarray:
    """The bytes of a JSON text that are in none of its strings: what texts say is no structure."""
    plain = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    quotes = plain == ord('"')
    return plain[(np.cumsum(quotes, dtype=np.uint8) & 1) == 0]  # whether their number so far is odd


_KIND = np.full(256, ord(" "), np.uint8)
_KIND[ord("0") : ord("9") + 1] = ord("0")
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]], _STEPS[[ord("]"), ord("}")]] = 1, -1


def is_sizes(value: object) -> TypeGuard[list[int]]:
    """Whether a value of a header is a list of counts, no longer than shapes are (JSON's true and 3.0 are none)."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < LARGEST_SIZE for size in value)
    )


def check_names(path: Path, names: Iterable[str]) -> None:
    """Refuse names of tensors that are shown as something else than they are: with characters that terminals obey, or
    that turn the line round.  Raises InvalidCheckpoint."""
    for name in names:
        if not name.isprintable():
            raise InvalidCheckpoint(f"{path} has a tensor whose name is no readable text: {name!a:.200}")


def shaped(path: Path, name: str, window: np.ndarray, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes as an array. Raises InvalidCheckpoint where NumPy holds no such shape, which may be empty and yet too
    large."""
    try:
        return window.view(kind).reshape(shape)
    except ValueError as error:
        raise InvalidCheckpoint(f"{path}: {name} has the shape {list(shape)}: {error}") from None


def check_apart(path: Path, places: Iterable[tuple[int, int, str]]) -> None:
    """Refuse tensors, given as first byte, byte behind the last and name, that share bytes. Raises
    InvalidCheckpoint."""
    last, owner = 0, ""
    for begin, end, name in sorted(places):
        if begin < last and end > begin:
            raise InvalidCheckpoint(f"{path}: {name} and {owner} share bytes")
        if end > last:
            last, owner = end, name
