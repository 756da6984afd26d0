"""Device headers by their names: those that a text includes, and what tells one set of folders from another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.errors import InternalError
from tilewright.texts import read_text

COMMON = Path(__file__).parent / "device"
"""Headers that are plain C++ for all GPUs."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def headers_of(text: str, text_of: Callable[[str], str]) -> dict[str, str]:
    """All headers that a text includes with quotes, directly and through others, with their texts."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = text_of(name)
            waiting += _INCLUDE.findall(found[name])
    return found


def header_in(folders: Sequence[Path], name: str) -> str:
    """The text of a header.

    Raises
    ------
    InternalError : none of the folders has it.
    """
    for folder in folders:
        if (folder / name).is_file():
            return read_text(folder / name)
    raise InternalError(f"the device vocabulary has no header {name!r}")


def hash_of(folders: Sequence[Path], more: str = "") -> str:
    """Hash of all headers of some folders, and of a text beside them."""
    digest = hashlib.sha256(more.encode())
    for path in sorted(path for folder in folders for path in folder.glob("*.*h")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
