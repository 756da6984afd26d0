"""Workspaces of host programs: global memory that a call's kernels share with one another.

Most hold nothing when the call has ended, so all programs that a thread launches into a stream use the same memory:
kernels of a stream run in order, and one that begins early touches no workspace before it has waited for those ahead of
it (the emulator checks that). Words that atomics count in are a program's own: zeros at first, later what the call
before left.

Launches that are captured into a graph run whenever it is replayed, in any stream, so a capture has workspaces of its
own (`graph_memory`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import Allocate, Buffer, Function, counted_workspaces, find
from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.cuda.graph_memory import GRAPHS
from tilewright.targets.gpu.library import loaded_torch


@dataclass(frozen=True, slots=True)
class OfStream:
    """Stands for the address of a workspace in values that are recorded: a function of device and stream gives it."""

    address: Callable[[int, int], int]


class StreamMemory:
    """The memory of workspaces that hold nothing between calls: so many pieces for each thread and stream.

    A piece that has become too small is replaced by one of twice the size or more; the old one stays, since launches of
    it may be on their way.

    Attributes
    ----------
    held : bytes of all pieces.
    """

    def __init__(self) -> None:
        self.held = 0
        self._known: dict[tuple[int, int, int, int], tuple[int, int]] = {}

    def address(self, number: int, size: int, device: int, stream: int) -> int:
        """Where piece `number` of the calling thread's is, which has at least so many bytes."""
        if _ASKED[0]() if _ASKED else _capturing():
            return GRAPHS.address(number, size, device, stream)
        key = (threading.get_ident(), device, stream, number)
        found = self._known.get(key)
        if found is None or found[1] < size:
            rounded = 1 << max(size - 1, 1).bit_length()
            found = self._known[key] = (allocated(rounded, device), rounded)
            self.held += rounded
        return found[0]


MEMORY = StreamMemory()


class Workspaces:
    """The workspaces of one host program."""

    def __init__(self, function: Function) -> None:
        self._kept = counted_workspaces(function)
        made = [node.buffer for node in find(function.body, Allocate)]
        others = [b for b in made if b.scope == "global" and not b.placed and b not in self._kept]
        self._numbers = {buffer: number for number, buffer in enumerate(others)}
        self._known: dict[tuple[Buffer, int, int, int], int] = {}

    def address(self, buffer: Buffer, size: int) -> int:
        """Where a workspace of so many bytes is for the current stream."""
        current_device, current_stream = require_driver("allocating a workspace").streams()
        device = current_device()
        return self.on_stream(buffer, size).address(device, current_stream(device))

    def on_stream(self, buffer: Buffer, size: int) -> OfStream:
        """The same for launches that are recorded."""
        if buffer in self._kept:
            return OfStream(lambda device, stream: self._words(buffer, size, device, stream))
        number = self._numbers[buffer]
        return OfStream(lambda device, stream: MEMORY.address(number, size, device, stream))

    def _words(self, buffer: Buffer, size: int, device: int, stream: int) -> int:
        """Memory of the program's own."""
        if _capturing():
            return GRAPHS.address((buffer, size), size, device, stream, zeros=True)
        key = (buffer, size, device, stream)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = allocated(size, device, zeros_in=stream)
        return found


def allocated(size: int, device: int, zeros_in: int | None = None) -> int:
    """New memory on a device, whatever is being captured; where a stream is named, zeros for what is launched into it.

    The call waits for no work, of that stream or of another."""
    driver = require_driver("allocating a workspace")
    with driver.on(device), driver.relaxed_capture():
        address = driver.allocate(size)
        if zeros_in is not None:
            driver.clear(address, max(size, 1), zeros_in)
        return address


def _capturing() -> bool:
    """Whether the current stream is captured.  Without torch that is the default stream, which cannot be."""
    if not _ASKED:
        torch = loaded_torch()
        if torch is None:
            return False
        _ASKED.append(torch._C._cuda_isCurrentStreamCapturing)
    return _ASKED[0]()


_ASKED: list[Callable[[], bool]] = []
"""Torch's function that says it, once that is known: it is asked at every launch."""
