"""What the outside sees and says of a run under way: its progress, and that it is to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from tilewright.emulator.structures import LOOK
from tilewright.progress import Progress


class Watch:
    """Keeps a run in the core interruptible, and shows how far it is.

    Use as a context manager; `look` is for the core, which calls it ten times a second. Python's own handler of an
    interrupt could not raise out of that call, so that it is called when the core has returned.
    """

    def __init__(self, blocks: int) -> None:
        self.interrupted = False
        self.before: Any = None
        self.bar = Progress(blocks)
        self.look = LOOK(self._look)

    def _look(self, ended: int) -> int:
        self.bar.wait(ended, "blocks emulated")
        return self.interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__()
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            if self.interrupted:
                self.before(signal.SIGINT, None)
