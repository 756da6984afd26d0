"""The disk cache: one directory an entry, renamed into place, and nothing in it that is not what was put there.

An entry's key is everything that can change its files: emitted text, flags, compiler, machine. Entries are built in a
private directory and renamed, so that many processes may build the same entry at the same time and none ever sees half
of one. The manifest of an entry names its key and the size and
digest of each of its files; whoever asks for an entry gets files
that are as their manifest says, for that key. What is cut, altered, exchanged with another entry or merely unreadable
is put aside and built again.

Files of the cache are loaded into the process, so only the user may write there: directories are made for the user
alone, and one that belongs to somebody else, or that others may write to, is not used. Where there is no place on disk,
the user is told once and entries last as long as the process, as with ``TILEWRIGHT_CACHE=0``. All rooms that keep files
keep them here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import secrets
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tilewright
from tilewright.errors import TilewrightError, TilewrightWarning
from tilewright.leftovers import ENDING, begun, close, remove, unless_held
from tilewright.options import options
from tilewright.texts import utf8, write_text

MANIFEST = "entry.json"
_LONGEST = 1 << 20
_PROBE_BYTES = 1 << 16
_HINT = (
    "set TILEWRIGHT_CACHE_DIR to a directory with space that you may write, or TILEWRIGHT_CACHE=0 to keep "
    "nothing on disk"
)


class CacheUnavailable(TilewrightError):
    """The cache directory cannot be written, or must not be trusted."""

    def __init__(self, directory: Path, reason: str, hint: str = _HINT) -> None:
        super().__init__(f"cannot use the cache directory {directory}: {reason}", hint=hint)


def cached(key: str, build: Callable[[Path], None]) -> Path:
    """The entry for `key`, built by ``build(directory)`` where it is missing or not as it was built.

    Where the cache directory cannot be used, the entry is made for this process alone, with a warning.

    Raises
    ------
    CacheUnavailable : there is no place for temporary files either.
    """
    if not options().cache:
        return _entry(_of_this_process(), key, build)
    try:
        return _entry(cache_directory(), key, build)
    except CacheUnavailable as problem:
        _warn(problem)
        return _entry(_of_this_process(), key, build)


def kept(key: str) -> Path | None:
    """The entry for `key` where it is there, as it was built; nothing is built."""
    try:
        root = cache_directory()
    except CacheUnavailable:
        root = _of_this_process()
    entry = root / key[:2] / key
    return entry if _is_sound(entry, key) else None


def cache_directory() -> Path:
    """The directory for all that is kept by this version, made for the user alone; one of the process's own where
    caching is off.

    Raises
    ------
    CacheUnavailable : it cannot be made, belongs to somebody else, or others may write to it.
    """
    settings = options()
    if not settings.cache:
        return _of_this_process()
    place = settings.cache_dir / f"v{tilewright.__version__}"
    for directory in (settings.cache_dir, place):
        try:
            _check_private(directory, _found_or_made(directory))
        except OSError as error:
            raise CacheUnavailable(directory, error.strerror or str(error)) from None
    return place


def _found_or_made(directory: Path) -> os.stat_result:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    return os.stat(directory)


def _check_private(directory: Path, found: os.stat_result) -> None:
    """Raises CacheUnavailable where somebody else could have put files there."""
    if not stat.S_ISDIR(found.st_mode):
        raise CacheUnavailable(directory, "Not a directory")
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid != os.geteuid():
        raise CacheUnavailable(
            directory,
            f"it belongs to another user (number {found.st_uid}; you are {os.geteuid()}), who could put code "
            "there that you would run",
            "set TILEWRIGHT_CACHE_DIR to a directory of your own",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheUnavailable(
            directory,
            f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):04o}), and could put code there "
            "that you would run",
            f"delete what you do not trust in it and `chmod 700 {directory}`, or set TILEWRIGHT_CACHE_DIR to a "
            "directory of your own",
        )


_process_directory: list[Path] = []
_told: set[str] = set()


def _of_this_process() -> Path:
    """A directory that ends with the process, and with those that it was forked into: they all hold its lock."""
    if not _process_directory:
        root = Path(os.sep)
        try:
            root = Path(tempfile.gettempdir())
            _clear(root, "tilewright.*")
            directory, handle = begun(root, "tilewright", lambda path: path.mkdir(mode=0o700))
        except OSError as error:
            raise CacheUnavailable(root, error.strerror or str(error)) from None
        _process_directory.append(directory)
        atexit.register(_leave, directory, handle)
    return _process_directory[0]


def _leave(directory: Path, handle: int | None) -> None:
    close(handle)
    if handle is None:
        remove(directory)
    unless_held(directory, remove)


def _clear(place: Path, name: str) -> None:
    """Remove what killed processes of this user left in a directory that may be everybody's."""
    for left in place.glob(f"{name}.{ENDING}"):
        with contextlib.suppress(OSError):
            if not hasattr(os, "geteuid") or os.lstat(left).st_uid == os.geteuid():
                unless_held(left, remove)


def _warn(problem: CacheUnavailable) -> None:
    if problem.message not in _told:
        _told.add(problem.message)
        warnings.warn(
            f"{problem.message}: what is compiled lasts as long as this process\n  help: {problem.hint}",
            TilewrightWarning,
            stacklevel=4,
        )


def digest(*parts: str | bytes) -> str:
    """A key of everything given; parts cannot run into each other."""
    state = hashlib.sha256()
    for part in parts:
        data = utf8(part) if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:40]


def put_text(path: Path, text: str) -> None:
    """Put a small file in its place, or in that of an earlier one: other processes read all of it or nothing, and what
    killed ones left of it goes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path.parent, f"{path.stem}.*")
    unfinished, handle = begun(path.parent, path.stem, lambda made: made.touch(exist_ok=False))
    try:
        write_text(unfinished, text)
        os.replace(unfinished, path)
    finally:
        remove(unfinished)
        close(handle)


def get_text(path: Path) -> str:
    """What is in a small file. Raises OSError, also where it is no file: a pipe would be waited for."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise FileNotFoundError(path)
    with open(path, "rb") as file:
        return file.read(_LONGEST).decode("utf-8", "surrogateescape")


# Entries ----------------------------------------------------------------------------------------


def _entry(root: Path, key: str, build: Callable[[Path], None]) -> Path:
    entry = root / key[:2] / key
    if _is_sound(entry, key):
        return entry
    try:
        with _workspace(root) as directory:
            _built(directory, build)
            files = {path.name: _recorded(path) for path in sorted(directory.iterdir())}
            write_text(directory / MANIFEST, json.dumps({"key": key, "files": files}))
            entry.parent.mkdir(exist_ok=True)
            _put_in_place(directory, entry, key)
    except OSError as error:
        raise CacheUnavailable(root, error.strerror or str(error)) from None
    return entry


def _built(directory: Path, build: Callable[[Path], None]) -> None:
    """Build into a directory; compilers say in their own words that a disk is full, so the disk itself is asked."""
    try:
        build(directory)
    except TilewrightError:
        (directory / "probe").write_bytes(bytes(_PROBE_BYTES))
        raise


@contextlib.contextmanager
def _workspace(root: Path) -> Iterator[Path]:
    """A new directory that nobody else has, and that is gone at the end; what killed processes left beside it goes
    too."""
    place = root / "building"
    place.mkdir(exist_ok=True)
    _clear(place, "*")
    directory, handle = begun(place, "entry", Path.mkdir)
    try:
        yield directory
    finally:
        remove(directory)
        close(handle)


def _put_in_place(directory: Path, entry: Path, key: str) -> None:
    """Rename the finished directory; where another process was first, its entry stands."""
    try:
        os.rename(directory, entry)
        return
    except OSError:
        if _is_sound(entry, key):
            return
    # What is no entry for this key is in the way: move it aside, which is atomic too, then take its place.
    aside = directory.with_name(f"aside.{secrets.token_hex(8)}.{ENDING}")
    with contextlib.suppress(OSError):
        os.rename(entry, aside)
    remove(aside)
    try:
        os.rename(directory, entry)
    except OSError:
        if not _is_sound(entry, key):
            raise


def _is_sound(entry: Path, key: str) -> bool:
    """Whether an entry is there, made for this key, and every file in it is as it was."""
    try:
        record = json.loads(get_text(entry / MANIFEST))
        files = record["files"]
        return (
            record["key"] == key
            and {*files, MANIFEST} == {*os.listdir(entry)}
            and all(_is_as_recorded(entry / name, *said) for name, said in files.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _recorded(path: Path) -> tuple[int, str]:
    """What a manifest says of a file: its size, and the digest of its bytes."""
    content = path.read_bytes()
    return len(content), hashlib.sha256(content).hexdigest()


def _is_as_recorded(path: Path, size: int, sha: str) -> bool:
    """Whether a file is what a manifest says; the size first, since a file of another may be of any size."""
    found = os.lstat(path)
    return stat.S_ISREG(found.st_mode) and found.st_size == size and _recorded(path) == (size, sha)


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
