"""Other programs, run to their end: compilers and what asks about machines.  Interrupted, none of them goes on."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from tilewright.progress import Progress

_LOOK_EVERY = 0.002
"""Seconds between looks whether a program has ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended: its exit status and what it said."""

    status: int
    output: str
    complaint: str


def zig() -> Path | None:
    """The program of the package `ziglang`, which is a clang and its linker for many machines; None where it is not
    installed."""
    package = importlib.util.find_spec("ziglang")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(next(iter(package.submodule_search_locations))) / ("zig.exe" if os.name == "nt" else "zig")


def run(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a program, as `run_together` does.  Raises OSError where it cannot be started."""
    return run_together([command], what, environment)[0]


def run_together(
    commands: Sequence[Sequence[str]], what: str, environment: Mapping[str, str] | None = None
) -> list[Finished]:
    """Run programs side by side, one a processor; KeyboardInterrupt (or any other exception) ends them all, with their
    children.

    No threads: an interruption reaches the main thread alone, which must not wait for others.

    Parameters
    ----------
    commands : their words.
    what : what they do, for the bar that is shown where they take long.
    environment : variables in place of this process's.

    Raises
    ------
    OSError : one cannot be started.
    """
    waiting, running, most = list(enumerate(commands)), dict[int, _Running](), os.cpu_count() or 1
    finished: dict[int, Finished] = {}
    bar = Progress(len(commands))
    try:
        while waiting or running:
            while waiting and len(running) < most:
                number, command = waiting.pop(0)
                with _uninterrupted():
                    running[number] = _Running(command, environment)
            ended = [number for number, one in running.items() if one.process.poll() is not None]
            for number in ended:
                finished[number] = running.pop(number).finish()
            if not ended:
                time.sleep(_LOOK_EVERY)
                bar.wait(len(finished), what)
    finally:
        bar.__exit__()
        for left in running.values():
            left.end()
    return [finished[number] for number in range(len(commands))]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interruption waits until a program that is being started is known, so that it is ended with the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(*came[0])


class _Running:
    """A program under way, in a session of its own, so that its children can be ended with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> None:
        # Files, not pipes: who waits for one program must not have to empty the others' pipes.
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the program has ended)
        self.complaint: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.complaint,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise

    def finish(self) -> Finished:
        status = self.process.wait()
        found = Finished(status, _text(self.output), _text(self.complaint))
        self._close()
        return found

    def end(self) -> None:
        """Kill it and its children, unless it has ended by itself."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        self.output.close()
        self.complaint.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
