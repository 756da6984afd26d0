"""The core's C structures, field by field as in ``host/core/interface.h``, and planted faults."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.emulator.reports import OPERATIONS, called

SCHEDULES = {"late": 0, "early": 1, "random": 2}
"""Schedules by the core's numbers."""


UNSETTLED, CONSTANT = 1, 2
"""What a kernel promises of memory: not to touch it before the kernels ahead have ended; that it does not change while
it runs."""

LOOK = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64)
"""Called now and then with the number of blocks that have ended; stops the run unless it gives 0."""


class Allocation(ctypes.Structure):
    """Global memory of one argument: first address, the address behind its last byte, and what the kernel promises of
    it."""

    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64), ("promises", ctypes.c_uint64)]


class CFault(ctypes.Structure):
    """A planted fault, as the core reads it."""

    _fields_ = [
        ("file", ctypes.c_char_p), ("line", ctypes.c_uint32), ("operation", ctypes.c_uint32),
        ("first", ctypes.c_uint64),
        ("last", ctypes.c_uint64), ("skip", ctypes.c_uint32), ("delta", ctypes.c_int64), ("flip", ctypes.c_uint64),
    ]  # fmt: skip


OF_LAUNCHES = (
    "warp_size", "shared_bytes", "check", "schedule", "workers", "resident", "registers", "trace", "promises",
    "fences_memory", "talks",
)  # fmt: skip
OF_MACHINES = (
    "shared_base", "spaces", "flushes", "named_barriers", "group_warps", "signal_most", "registers_least",
    "registers_most", "registers_step",
)  # fmt: skip
OF_ENGINES = ("rank", "box", "unit", "place", "step", "extent", "stride")
"""Numbers of a launch, and those that say what its machine and its machine's copy engine are like."""


class Launch(ctypes.Structure):
    """A launch, as the core reads it: sizes, schedule, memory, faults; the fields are those of `interface.h`."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in (*OF_LAUNCHES, *OF_MACHINES)),
        *((f"engine_{name}", ctypes.c_uint64) for name in OF_ENGINES),
        ("seed", ctypes.c_uint64), ("poison", ctypes.c_uint64), ("milliseconds", ctypes.c_uint64),
        ("entry", ctypes.c_void_p), ("arguments", ctypes.c_void_p),
        ("allocations", ctypes.POINTER(Allocation)), ("allocation_count", ctypes.c_uint64),
        ("arena_low", ctypes.c_uint64), ("arena_high", ctypes.c_uint64), ("text_low", ctypes.c_uint64),
        ("text_high", ctypes.c_uint64), ("faults", ctypes.POINTER(CFault)), ("fault_count", ctypes.c_uint64),
        ("look", LOOK),
    ]  # fmt: skip


def make_launch(**fields: Any) -> Launch:
    """The launch structure with extents given as tuples."""
    launch = Launch()
    for name, value in fields.items():
        if name in ("grid", "block", "cluster"):
            value = (ctypes.c_uint32 * 3)(*value)
        setattr(launch, name, value)
    return launch


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake planted while a text runs: calls of the vocabulary at one line are left out or changed.

    Attributes
    ----------
    file, line : of the calls.
    operation : their name in the vocabulary; empty for every call on the line.
    first, last : which of the executions there, counted over all threads from 0; `last` is included.
    skip : the call does nothing.
    delta : added to the call's number: bytes, count, pending groups, a coordinate.
    flip : bits flipped in its number: a parity, a barrier's id, a swizzle mode.
    """

    file: str
    line: int
    operation: str = ""
    first: int = 0
    last: int = (1 << 63) - 1
    skip: bool = False
    delta: int = 0
    flip: int = 0

    def encode(self, words: Mapping[str, str]) -> CFault:
        """The fault as the core reads it, where a vocabulary has these words."""
        number = [called(name, words) for name in OPERATIONS].index(self.operation) if self.operation else 0
        return CFault(self.file.encode(), self.line, number, self.first, self.last, self.skip, self.delta, self.flip)
