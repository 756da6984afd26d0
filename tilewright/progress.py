"""A bar on standard error while something takes long."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """A bar on standard error while something takes long; nothing where that is not a terminal.

    Use as a context manager; `step` says what begins now.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = stream or sys.stderr
        self.shown = self.stream.isatty()
        self.started = time.perf_counter()

    def step(self, label: str) -> None:
        """Show that `label` begins, with what came before done."""
        self._show(label)
        self.done += 1

    def at(self, done: int, label: str) -> None:
        """Show that so much is done."""
        self.done = done
        self._show(label)

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
            bar = "█" * full + "·" * (width - full)
            self.stream.write(f"\r\033[K{bar} {self.done}/{self.total} {seconds:5.1f} s  {label}")
            self.stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
