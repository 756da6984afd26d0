"""A bar on standard error while something takes long."""

from __future__ import annotations

import sys
import time
from typing import TextIO

PATIENCE = 2.0
"""Seconds after which something that mostly is quick shows that it goes on."""

_REDRAWN_EVERY = 0.1
"""Seconds between two drawings of a bar that only waits."""


class Progress:
    """A bar on standard error while something takes long; nothing where that is not a terminal.

    Use as a context manager; `step` says what begins now, and `wait` that something still goes on.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = stream or sys.stderr
        self.shown = self.stream is not None and not self.stream.closed and self.stream.isatty()
        self.drawn = False
        self.started = time.perf_counter()
        self.waited = self.started + PATIENCE - _REDRAWN_EVERY

    def step(self, label: str) -> None:
        """Show that `label` begins, with what came before done."""
        self._show(label)
        self.done += 1

    def at(self, done: int, label: str) -> None:
        """Show that so much is done."""
        self.done = done
        self._show(label)

    def wait(self, done: int, label: str) -> None:
        """Show that so much is done and `label` goes on, at any rate of calls; nothing within the first seconds."""
        now = time.perf_counter()
        if self.shown and now - self.waited >= _REDRAWN_EVERY:
            self.waited = now
            self.at(done, label)

    def tell(self, text: str) -> None:
        """Leave lines on the terminal for good."""
        if self.shown:
            self.stream.write(f"\r\033[K{text}\n")
            self.stream.flush()

    def _show(self, label: str) -> None:
        if self.shown:
            width = 24
            full = width * self.done // max(self.total, 1)
            seconds = time.perf_counter() - self.started
            done, left = "█·" if "utf" in (getattr(self.stream, "encoding", None) or "utf").lower() else "#."
            bar = done * full + left * (width - full)
            self.drawn = True
            self.stream.write(f"\r\033[K{bar} {self.done}/{self.total} {seconds:5.1f} s  {label}")
            self.stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.drawn:
            self.stream.write("\r\033[K")
            self.stream.flush()
