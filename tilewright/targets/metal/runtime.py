"""Running Metal texts on a Mac: through torch's MPS backend, which compiles a text and launches its kernels on its own
tensors.

Sources: torch's ``torch.mps.compile_shader`` as its public code has it. A call takes tensors by place, Python's ints as
int64 and floats as float32; ``threads`` counts all threads of each dimension, ``group_size`` those of a threadgroup.
"""

from __future__ import annotations

import functools
import importlib
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

from tilewright.errors import MissingCapability
from tilewright.ir.nodes import Buffer, Function, TensorMap
from tilewright.ir.visitor import kernels
from tilewright.targets.gpu.emit import kernel_parameters
from tilewright.targets.gpu.host import HostProgram

MOST_BUFFERS = 31
"""Arguments that a Metal kernel can have."""


@functools.cache
def present_chip() -> str | None:
    """The chip of this machine as `machine.apple.CHIPS` writes it (``"m1-max"``), None where it is none of Apple's."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return None
    done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return done.stdout.strip().lower().removeprefix("apple ").replace(" ", "-") or None


class Launcher:
    """Runs a function's host program in torch's current MPS stream; called with the entry arguments, tensors for
    buffers.

    Parameters
    ----------
    library : what ``torch.mps.compile_shader`` made of the text; None to have it made.

    Raises
    ------
    MissingCapability : there is no torch with an MPS device here, or a kernel has more arguments than Metal lets it
        have.
    """

    takes_tensors = True
    """Metal's memory has no addresses that a host may hand over."""

    def __init__(self, text: str, function: Function, entries: Sequence[str], library: Any = None) -> None:
        made = list(kernels(function))
        for kernel in made:
            count = len(kernel_parameters(kernel))
            if count > MOST_BUFFERS:
                raise MissingCapability(
                    f"this kernel has {count} arguments and Metal's have {MOST_BUFFERS} at most", span=kernel.span,
                    hint="join tensors of one type, or pass sizes as parts of shapes",
                )  # fmt: skip
        self.threads = [kernel.num_threads for kernel in made]
        self.library = _torch_mps(function.name).compile_shader(text) if library is None else library
        self.entries = list(entries)
        self.program = HostProgram(function, self._launch, _workspace, _no_map)

    def __call__(self, *entry: Any) -> None:
        self.program.run(entry)

    def _launch(self, number: int, grid: tuple[int, int, int], given: list[Any]) -> None:
        if 0 in grid:
            return
        threads = self.threads[number]
        getattr(self.library, self.entries[number])(
            *(_argument(value) for value in given), threads=(grid[0] * threads, grid[1], grid[2]),
            group_size=(threads, 1, 1),
        )  # fmt: skip


def _argument(value: Any) -> Any:
    """A tensor as it is, a number as torch hands it over: unsigned ones by their bits."""
    if isinstance(value, float) or hasattr(value, "data_ptr"):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":
        return float(value)
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _torch_mps(name: str) -> Any:
    """Torch's module for Apple's GPUs, where there is one that compiles texts."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        torch = None
    if torch is None or not torch.backends.mps.is_available() or not hasattr(torch.mps, "compile_shader"):
        raise MissingCapability(
            f"launching {name} takes a Mac and a torch with torch.mps.compile_shader",
            hint="kernel.emulate(...) runs the text on this machine",
        )
    return torch.mps


def _workspace(buffer: Buffer, size: int) -> Any:
    """Memory that kernels of one call share, zeros at first."""
    return importlib.import_module("torch").zeros(
        max(size, 1), dtype=importlib.import_module("torch").uint8, device="mps"
    )


def _no_map(node: TensorMap, tensor: Any, extents: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    raise AssertionError("no pass makes maps of tensors for a machine without a copy engine")
