"""Unfinished files and directories under a lock of the operating system, by which what killed processes leave is told
and removed.

A process that is killed cannot clean up behind itself, but its locks go with it: whoever comes next removes what nobody
holds. Process numbers would not do, where several machines or containers share a disk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves stays there
    fcntl = None  # type: ignore[assignment]

_NUMBERS = itertools.count()
ENDING = "unfinished"


def begun(directory: Path, stem: str, make: Callable[[Path], None]) -> tuple[Path, int | None]:
    """A new file or directory, ``STEM.PID-NUMBER.unfinished``, and a handle that locks it, where there are locks."""
    while True:
        made = directory / f"{stem}.{os.getpid()}-{next(_NUMBERS)}.{ENDING}"
        try:
            make(made)
        except FileExistsError:  # of a process that was killed, with this one's number
            unless_held(made, remove)
            continue
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


def close(handle: int | None) -> None:
    """Give up a lock."""
    if handle is not None:
        os.close(handle)


def unless_held(found: Path, work: Callable[[Path], None]) -> None:
    """Do something to a file or directory that no process has locked."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):  # it is gone, or held
        handle = os.open(found, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name must not be waited for
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            work(found)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Delete a file or a directory, where there is one; a link itself, never what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
