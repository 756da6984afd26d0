"""The device headers of HIP texts, and one text of all of them for those who compile without our folders."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from tilewright.errors import InternalError
from tilewright.texts import read_text

_DEVICE = Path(__file__).parent / "device"

SHARED = (_DEVICE, Path(__file__).parents[1] / "gpu" / "device")
"""What device and emulator both compile."""

FOLDERS = (_DEVICE / "machine", *SHARED)
"""Where clang looks for headers."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def header_text(name: str) -> str:
    """The text of one header."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return read_text(folder / name)
    raise InternalError(f"the device vocabulary has no header {name!r}")


def headers_of(text: str) -> dict[str, str]:
    """All headers that a text includes, directly and through others, with their texts."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = header_text(name)
            waiting += _INCLUDE.findall(found[name])
    return found


@functools.cache
def headers_hash() -> str:
    """Hash of the whole device vocabulary."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.*h")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
