"""Launches: arguments packed where the library looks for them, on the current device's current stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.nodes import Buffer
from tilewright.targets.hip.driver import Driver, require_driver


@dataclass(slots=True)
class HipKernel:
    """One kernel of a code object; call it with a grid and one value a parameter.

    Attributes
    ----------
    image : the code object.
    name : of the kernel in it.
    codes : one `struct` code a parameter.
    threads : of a block.
    cooperative : all blocks must be resident at once (`tw::grid_sync`).
    """

    image: bytes
    name: str
    codes: tuple[str, ...]
    threads: int
    cooperative: bool = False
    _functions: dict[int, ctypes.c_void_p] = field(default_factory=dict)

    def __call__(self, grid: tuple[int, int, int], values: Sequence[Any], stream: int | None = None) -> None:
        """Launch on the current device, in its current stream unless another is named; a grid without blocks launches
        nothing.

        Raises
        ------
        LaunchFailed : the library refused it.
        """
        if min(grid) < 1:
            return
        driver = require_driver(f"launching {self.name}")
        current_device, current_stream = driver.streams()
        device = current_device()
        packed = [struct.pack("<" + code, value) for code, value in zip(self.codes, values, strict=True)]
        buffers = [ctypes.create_string_buffer(one, len(one)) for one in packed]
        addresses = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(one) for one in buffers))
        driver.launch(
            self.function_on(driver, device),
            grid,
            self.threads,
            current_stream(device) if stream is None else stream,
            addresses,
            self.cooperative,
            f"launching {self.name} with a grid of {grid} and {self.threads} threads",
        )

    def function_on(self, driver: Driver, device: int) -> ctypes.c_void_p:
        """The kernel's handle on a device, loaded there at first use."""
        if device not in self._functions:
            with driver.on(device):
                self._functions[device] = driver.function(driver.load_module(self.image), self.name)
        return self._functions[device]


class Workspaces:
    """Workspaces of one host program: zeros at first, one for each stream, since its kernels run in order there."""

    def __init__(self) -> None:
        self._known: dict[tuple[Buffer, int, int], tuple[int, int]] = {}

    def address(self, buffer: Buffer, size: int) -> int:
        """Where a workspace of so many bytes is for the current stream."""
        driver = require_driver("allocating a workspace")
        current_device, current_stream = driver.streams()
        device = current_device()
        stream = current_stream(device)
        key = (buffer, device, stream)
        found = self._known.get(key)
        if found is None or found[1] < size:
            with driver.on(device):
                found = self._known[key] = (driver.allocate(size, stream), size)
        return found[0]
