"""The disk cache of compiled kernels: one directory an entry, renamed into place.

An entry's key is everything that can change the binary: emitted text, flags, compiler, machine.  Entries are
built in a private directory beside the cache and renamed, so that many processes may build the same kernel
at the same time and none ever sees half an entry.  ``entry.json`` records every file's digest; an entry that
does not match its record is set aside and built again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tilewright
from tilewright.errors import TilewrightError
from tilewright.options import options


class CacheUnavailable(TilewrightError):
    """The cache directory cannot be written."""

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write the cache directory {directory}: {error.strerror or error}",
            hint="set TILEWRIGHT_CACHE_DIR to a directory with space that you may write, "
            "or TILEWRIGHT_CACHE=0 to keep nothing on disk",
        )


_process_directory: list[tempfile.TemporaryDirectory[str]] = []


def cache_root() -> Path:
    """Where entries live: the cache directory, or one that ends with the process where caching is off."""
    settings = options()
    if settings.cache:
        return settings.cache_dir / f"v{tilewright.__version__}"
    if not _process_directory:
        _process_directory.append(tempfile.TemporaryDirectory(prefix="tilewright-", ignore_cleanup_errors=True))
    return Path(_process_directory[0].name)


def digest(*parts: str | bytes) -> str:
    """A key of everything given; parts cannot run into each other."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:40]


def cached(key: str, build: Callable[[Path], None]) -> Path:
    """The entry for `key`, built by ``build(directory)`` where it is missing or damaged.

    Raises
    ------
    CacheUnavailable : the directory cannot be written (permissions, no space).
    """
    entry = cache_root() / key[:2] / key
    if _is_sound(entry):
        return entry
    with _workspace(entry.parent) as directory:
        build(directory)
        try:
            record = {path.name: _file_digest(path) for path in sorted(directory.iterdir())}
            (directory / "entry.json").write_text(json.dumps(record))
            _put_in_place(directory, entry)
        except OSError as error:
            raise CacheUnavailable(entry.parent, error) from None
    return entry


@contextlib.contextmanager
def _workspace(parent: Path) -> Iterator[Path]:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # Made with the rights that the user gives to files: others may read what is in a shared cache.
        directory = parent / f".building-{os.getpid()}-{secrets.token_hex(8)}"
        directory.mkdir()
    except OSError as error:
        raise CacheUnavailable(parent, error) from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _put_in_place(directory: Path, entry: Path) -> None:
    """Rename the finished directory; where another process was first, its entry stands."""
    try:
        os.rename(directory, entry)
        return
    except OSError:
        if _is_sound(entry):
            return
    # A damaged entry is in the way: move it aside, which is atomic too, then take its place.
    aside = tempfile.mkdtemp(prefix=".damaged-", dir=entry.parent)
    with contextlib.suppress(OSError):
        os.rename(entry, Path(aside) / "entry")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(directory, entry)
    except OSError:
        if not _is_sound(entry):
            raise


def _is_sound(entry: Path) -> bool:
    """Whether an entry is there and every file is as its record says."""
    try:
        record = json.loads((entry / "entry.json").read_text())
        return isinstance(record, dict) and all(_file_digest(entry / name) == sha for name, sha in record.items())
    except (OSError, ValueError):
        return False


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def package_state() -> str:
    """The names, sizes and times of this package's files: what tracing and lowering depend on."""
    found: list[tuple[str, int, int]] = []
    waiting: list[Any] = [Path(tilewright.__file__).parent]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.is_dir() and entry.name != "__pycache__":
                waiting.append(entry.path)
            elif entry.name.endswith((".py", ".cuh", ".h", ".c")):
                facts = entry.stat()
                found.append((entry.path, facts.st_size, facts.st_mtime_ns))
    return repr(sorted(found))
