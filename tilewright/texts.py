"""Texts on disk, for compilers and for people: UTF-8 whatever the user's locale is, the system's bytes where a path is
no text."""

from __future__ import annotations

import linecache
from pathlib import Path


def utf8(text: str) -> bytes:
    """A text's bytes; parts of paths that are no UTF-8 are the bytes that the system has for them."""
    return text.encode("utf-8", "surrogateescape")


def readable(text: str, keep: str = "\n\t") -> str:
    """A text for people, and with nothing to keep for a comment: what gives a terminal orders, or ends a line, is spelt
    out."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def file_name(path: str) -> str:
    """A path as every C compiler takes it in a ``#line``, in quotes: NVRTC writes it into PTX as it is, so that a
    letter that ends or escapes a text is another one."""
    plain = path.replace("\\", "/").replace('"', "'")
    return '"' + "".join(c if c.isprintable() else "?" for c in plain) + '"'


def write_text(path: Path, text: str) -> None:
    """Make or replace a file."""
    path.write_bytes(utf8(text))


def read_text(path: Path) -> str:
    """What `write_text` wrote."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def keep_lines(text: str, file: str) -> None:
    """Let messages show the lines of a text that is in no file of this name."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
