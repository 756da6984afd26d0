"""Runs the host program of a function on a GPU that a driver library drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir.nodes import Buffer, Function
from tilewright.targets.gpu.host import Describe, HostProgram, no_map
from tilewright.targets.gpu.library import DriverLibrary


class HostLauncher:
    """Runs a function's host program on the current GPU; called with the entry arguments.

    Parameters
    ----------
    prepared : what launches each of its kernels, of a grid and the values of parameters.
    allocate, describe : as those of `HostProgram`.

    Attributes
    ----------
    current_device, on_device : the index of the calling thread's device, and a context in which another is current.
    """

    def __init__(
        self,
        function: Function,
        driver: DriverLibrary,
        prepared: Sequence[Callable[[tuple[int, int, int], list[Any]], None]],
        allocate: Callable[[Buffer, int], object],
        describe: Describe = no_map,
    ) -> None:
        self.function, self.prepared = function, prepared
        self.current_device, self.on_device = driver.streams()[0], driver.on_device
        self.program = HostProgram(function, self._launch, allocate, describe)

    def __call__(self, *entry: object) -> None:
        self.program.run(entry)

    def _launch(self, number: int, grid: tuple[int, int, int], values: list[Any]) -> None:
        self.prepared[number](grid, values)
