"""Kernels that run beside one another, under the emulator: whichever ends first, memory must come to hold the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.emulator.reports import Labels, make_report
from tilewright.errors import EmulationError

Run = Callable[[], None]


class SideBySide:
    """Runs kernels of a program one after the other, and those that may be beside the one before them in both
    orders."""

    def __init__(self) -> None:
        self.earlier: Run | None = None
        self.before: list[np.ndarray] = []

    def run(self, kernel: Run, memory: Sequence[np.ndarray]) -> None:
        """Run a kernel; `memory` is all that it and the one launched beside it, if there is one, touch."""
        self.earlier, self.before = kernel, [array.copy() for array in memory]
        kernel()

    def run_beside(self, kernel: Run, memory: Sequence[np.ndarray]) -> None:
        """Run a kernel that may begin before the one before it has ended.

        Raises
        ------
        EmulationError : one of them uses what the other writes.
        """
        if self.earlier is None:
            return kernel()
        before = self.before + [array.copy() for array in memory[len(self.before) :]]
        kernel()
        found = [array.copy() for array in memory]
        _put(memory, before)
        kernel()
        self.earlier()
        places = [place for place, (one, other) in enumerate(zip(memory, found)) if one.tobytes() != other.tobytes()]
        _put(memory, found)
        self.earlier = None
        if places:
            facts = {"kind": "kernels-not-independent", "site": 0, "argument": places[0]}
            raise EmulationError([make_report(facts, Labels(()), lambda site: None)])


def _put(memory: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    for array, value in zip(memory, values, strict=True):
        if array.flags.writeable:
            array[...] = value
