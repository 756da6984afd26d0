"""Files and directories that take their name when they are whole: an interruption or a full disk leaves nothing there.

They are written beside that name, as ``.NAME.PID-NUMBER.unfinished``, under a lock of the operating system.  A process that is killed
cannot clean up behind itself, but its locks go with it: whoever writes to the name next removes what nobody holds (`clear_leftovers`).
Process numbers would not do, where several machines or containers share a disk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tilewright.errors import InvalidCheckpoint

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves stays there
    fcntl = None  # type: ignore[assignment]

_NUMBERS = itertools.count()


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Any]:
    """A file to write bytes to, that takes its name when the block ends well, and leaves nothing when it does not.

    Raises
    ------
    InvalidCheckpoint : the disk is full, or the place may not be written to.
    """
    path = Path(path)
    clear_leftovers(path)
    try:
        unfinished, handle = _begun(path, Path.touch)
        try:
            with open(unfinished, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            _remove(unfinished)
            _close(handle)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, that takes its name (what had it before goes) when the block ends well, and is gone when it does not.

    Raises
    ------
    InvalidCheckpoint : there is no place for it.
    """
    clear_leftovers(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room, handle = _begun(path, Path.mkdir)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be made: {error.strerror}") from None
    try:
        yield room
        _replace(room, path)
    finally:
        _remove(room)
        _close(handle)


def clear_leftovers(path: Path) -> None:
    """Remove what processes that were killed have left of a name; what they had moved aside to replace it gets it back."""
    for found in _beside(path, "unfinished"):
        _unless_held(found, _remove)
    for found in _beside(path, "replaced"):
        if not found.with_suffix(".unfinished").exists():  # else it is just being replaced
            with contextlib.suppress(OSError):
                _remove(found) if path.exists() else os.replace(found, path)


def _beside(path: Path, ending: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[-\d]+\.{ending}")
    return sorted(found for found in path.parent.glob(f".*.{ending}") if pattern.fullmatch(found.name))


def _begun(path: Path, make: Callable[[Path], None]) -> tuple[Path, int | None]:
    """A new file or directory beside a name, and a handle that locks it, where there are locks."""
    while True:
        made = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.unfinished")
        make(made)
        if fcntl is None:
            return made, None
        # Another process may take it for a leftover before it is locked.
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(made, os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # file systems without locks
                    fcntl.flock(handle, fcntl.LOCK_EX)
                os.stat(made)
                return made, handle
            except FileNotFoundError:
                os.close(handle)
                raise


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _unless_held(found: Path, work: Callable[[Path], None]) -> None:
    """Do something to a file or directory that no process has locked."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):  # it is gone, or held
        handle = os.open(found, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            work(found)
        finally:
            os.close(handle)


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
    _remove(old)


def _remove(path: Path) -> None:
    """Delete a file or a directory, where there is one."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
