"""Workspaces of host programs: memory that a call's kernels share, kept for the next call.

Each stream has its own, since calls on different streams may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.nodes import Buffer
from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.cuda.launcher import current_stream_functions


@dataclass(frozen=True, slots=True)
class OfStream:
    """Stands for the address of a workspace in values that are recorded: a function of device and stream gives it."""

    address: Callable[[int, int], int]


class Workspaces:
    """The workspaces of one host program."""

    def __init__(self) -> None:
        self._known: dict[tuple[Buffer, int, int, int], int] = {}

    def address(self, buffer: Buffer, size: int) -> int:
        """Where a workspace of so many bytes is for the current stream."""
        current_device, current_stream = current_stream_functions(require_driver("allocating a workspace"))
        device = current_device()
        return self._find(buffer, size, device, current_stream(device))

    def on_stream(self, buffer: Buffer, size: int) -> OfStream:
        """The same for launches that are recorded."""
        return OfStream(lambda device, stream: self._find(buffer, size, device, stream))

    def _find(self, buffer: Buffer, size: int, device: int, stream: int) -> int:
        key = (buffer, size, device, stream)
        found = self._known.get(key)
        if found is None:
            driver = require_driver("allocating a workspace")
            with driver.on(device), driver.relaxed_capture():
                found = self._known[key] = driver.allocate(size)
        return found
