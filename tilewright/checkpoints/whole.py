"""Files and directories that take their name when they are whole: an interruption or a full disk leaves nothing there.

They are written beside that name, as ``.NAME.PID-NUMBER.unfinished``, under a lock (`leftovers`); whoever writes to the
name next removes what nobody holds (`clear_leftovers`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright.errors import InvalidCheckpoint
from tilewright.leftovers import begun, close, remove, unless_held


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Any]:
    """A file to write bytes to, that takes its name when the block ends well, and leaves nothing when it does not.
    Raises InvalidCheckpoint: the disk is full, or the place may not be written to."""
    path = Path(path)
    clear_leftovers(path)
    try:
        unfinished, handle = begun(path.parent, f".{path.name}", _touch)
        try:
            with open(unfinished, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            remove(unfinished)
            close(handle)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, that takes its name (what had it before goes) when the block ends well, and is gone when it
    does not. Raises InvalidCheckpoint where there is no place for it."""
    clear_leftovers(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room, handle = begun(path.parent, f".{path.name}", Path.mkdir)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be made: {error.strerror}") from None
    try:
        yield room
        _replace(room, path)
    finally:
        remove(room)
        close(handle)


def clear_leftovers(path: Path) -> None:
    """Remove what processes that were killed have left of a name; what they had moved aside to replace it gets it
    back."""
    for found in _beside(path, "unfinished"):
        unless_held(found, remove)
    for found in _beside(path, "replaced"):
        if not found.with_suffix(".unfinished").exists():  # else it is just being replaced
            with contextlib.suppress(OSError):
                remove(found) if path.exists() else os.replace(found, path)


def _touch(path: Path) -> None:
    path.touch(exist_ok=False)


def _beside(path: Path, ending: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[-\d]+\.{ending}")
    return sorted(found for found in path.parent.glob(f".*.{ending}") if pattern.fullmatch(found.name))


def _replace(room: Path, path: Path) -> None:
    """Give a finished directory its name; what had it is moved aside first and deleted last."""
    old = room.with_suffix(".replaced")
    try:
        if path.exists():
            os.replace(path, old)
        os.replace(room, path)
    except OSError as error:
        if old.exists() and not path.exists():
            os.replace(old, path)
        raise InvalidCheckpoint(f"{path} cannot be made: {error.strerror}") from None
    remove(old)
