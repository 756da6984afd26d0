"""What an author's flags for the device's compiler say about the text: files and names that stand before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.language.builder import SOURCES
from tilewright.texts import read_text

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_FILES, _FOLDERS, _NAMES = ("-include", "--pre-include"), ("-I", "--include-path"), ("-D", "--define-macro")


class WrongFlag(TilewrightError):
    """A flag that says nothing, or names a file that is not there."""


def texts_of_flags(flags: object) -> tuple[str, ...]:
    """Texts for `T.import_source`: ``-D NAME=VALUE`` as definitions, then each file of ``-include``.

    A file's own ``#include "..."`` of neighbours, and of folders that ``-I`` names, are written out. Other flags say
    how a text is compiled, which is tilewright's to choose.

    Raises
    ------
    WrongFlag : a flag is no text, or lacks what it is about, or there is no such file.
    """
    given = list(flags) if isinstance(flags, (list, tuple)) else [] if flags is None else [flags]
    words = iter([word for flag in given for word in _words(flag)])
    found: dict[tuple[str, ...], list[str]] = {_FILES: [], _FOLDERS: [], _NAMES: []}
    for word in words:
        for spellings, values in found.items():
            spelling = next((one for one in spellings if word.startswith(one)), None)
            if spelling is not None:
                value = word[len(spelling) :].removeprefix("=") or next(words, "")
                if not value:
                    raise WrongFlag(f"the compile flag {word} says nothing", hint=f"write {spelling} and what it means")
                values.append(value)
                break
    folders, seen = [Path(), *map(Path, found[_FOLDERS])], set[Path]()
    names = (one.partition("=") for one in found[_NAMES])
    definitions = [f"#define {name} {value if equals else 1}" for name, equals, value in names]
    files = [_written_out(_file(name, folders), folders, seen) for name in found[_FILES]]
    return (*(["\n".join(definitions)] if definitions else []), *files)


def _words(flag: object) -> list[str]:
    if not isinstance(flag, str):
        raise WrongFlag(f"a compile flag is a text, but here {type(flag).__name__}")
    return shlex.split(flag)


@contextmanager
def said_before(texts: tuple[str, ...]) -> Iterator[None]:
    """Texts come before the kernels of what is traced inside."""
    token = SOURCES.set(texts)
    try:
        yield
    finally:
        SOURCES.reset(token)


def _file(name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise WrongFlag(f"there is no file {name!r}, which compile flags name", hint="give its whole path")


def _written_out(file: Path, folders: Sequence[Path], seen: set[Path]) -> str:
    """A file's text with the files that it includes by name in place of their directives, each once."""
    seen.add(file)

    def inner(directive: re.Match[str]) -> str:
        for folder in (file.parent, *folders):
            other = (folder / directive[1]).resolve()
            if other.is_file():
                return "" if other in seen else _written_out(other, folders, seen)
        return directive[0]

    return _INCLUDE.sub(inner, read_text(file).replace("#pragma once", ""))
