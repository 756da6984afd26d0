"""One program in the hunt for defects that come back: those of some defects that it shows.

The text tells which defects may show in it (`screened`).  With each of these in place it is judged in a process that is made for it, which may
die or hang without the hunt; and without the defect where it fails, so that only what the defect does counts.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import defects
import judge
import tile_fuzz
from judge import Verdict
from screened import Defects
from swapped import Headers
from tile_programs import TileProgram

from tilewright.compiler import compile_function

PATIENCE = 30.0
"""Seconds after which a compilation with a defect counts as one that hangs."""

_known: Defects | None = None


@dataclass(frozen=True)
class Task:
    """A program by its seed, the defects that are sought in it, where the headers of those of headers are, and the patches."""

    seed: int
    sought: tuple[str, ...]
    room: Path
    folder: Path = defects.HERE / "defects"


def look(task: Task) -> tuple[dict[str, str], list[str]]:
    """The defects among those sought that a program shows, and how; and all that it may show."""
    global _known
    warnings.simplefilter("ignore")
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(task.room / "cache")
    if _known is None:
        _known = known_defects(task.folder)
    program = tile_fuzz.program_of(task.seed)
    found: dict[str, str] = {}
    sound: dict[tuple[str, ...], bool] = {}
    with compiled_afresh():
        with _impatient():
            changed = _known.changed(task.seed, task.sought)
        for defect, targets in changed.items():
            put = _known.swaps[defect].put if defect in _known.swaps else Headers(task.room / defect, defects.ROOT).put
            told = apart(lambda: judged_with(program, targets, put))  # noqa: B023
            if told.kind not in ("fails", "invalid"):
                continue
            if targets not in sound:
                sound[targets] = apart(lambda: judged_with(program, targets)).kind in ("agrees", "refused")  # noqa: B023
            if sound[targets]:
                found[defect] = f"{told.way}: {told.what[:90]}"
    return found, list(changed)


def known_defects(folder: Path = defects.HERE / "defects") -> Defects:
    """All of a folder."""
    patches = {patch.stem: patch.read_text() for patch in defects.patches([], folder)}
    texts = {name: defects.patched(patch, defects.ROOT) for name, patch in patches.items()}
    return Defects(patches, {name: made for name, made in texts.items() if all(file.suffix == ".py" for file in made)})


@contextmanager
def compiled_afresh() -> Iterator[None]:
    """What the disk keeps of programs is told apart by the files of the package, and these stay as they are."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("tilewright.runtime.kernel.lowered", compile_function))
        stack.enter_context(mock.patch("tilewright.language.rewriting.kept", lambda _, __, rewrite: rewrite()))
        yield


@contextmanager
def _impatient() -> Iterator[None]:
    """Whatever takes too long in here ends with an error, each time anew."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judged_with(program: TileProgram, targets: tuple[str, ...], first: Callable[[], object] = lambda: None) -> Verdict:
    first()
    return judge.judged(program, targets)


def apart(work: Callable[[], Verdict]) -> Verdict:
    """What a copy of this process finds."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(tile_fuzz.SLOW))
            os.write(there, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        made: Any = pickle.loads(said)
        return Verdict(made.kind, made.way, made.what)
    code = os.waitstatus_to_exitcode(status)
    return Verdict("slow" if code == -signal.SIGALRM else "fails", "process", f"its process ended with {code}")
