"""Running Metal texts on a Mac: through torch's MPS backend, which compiles a text and launches its kernels on its own
tensors.

Sources: torch's ``torch.mps.compile_shader`` as its public code has it. A call takes tensors by place, Python's ints as
int64 and floats as float32; ``threads`` counts all threads of each dimension, ``group_size`` those of a threadgroup.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import MissingCapability
from tilewright.ir import Buffer, Function, Var, counted_workspaces, entry_parameters, kernels, written_parameters
from tilewright.libraries import is_mlx
from tilewright.machine.arch import Arch
from tilewright.targets.base import Promised
from tilewright.targets.gpu.emit import kernel_parameters
from tilewright.targets.gpu.host import HostProgram
from tilewright.targets.metal.mlx import MlxDoor

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
    """Runs a function's host program; called with the entry arguments, tensors for buffers.

    Arrays of MLX alone are multiplied, added up and returned by MLX; everything else by torch, in its current MPS
    stream.

    Parameters
    ----------
    library : what ``torch.mps.compile_shader`` made of the text; None to have it made.

    Attributes
    ----------
    notes : arguments that took a copy on their way, for `Kernel.explain`.

    Raises
    ------
    MissingCapability : there is neither MLX nor a torch with an MPS device here, or a kernel has more arguments than
        Metal lets it have.
    """

    takes_tensors = True
    """Metal's memory has no addresses that a host may hand over."""

    def __init__(
        self, text: str, function: Function, entries: Sequence[str], arch: Arch, library: object = None
    ) -> None:
        self.kernels = list(kernels(function))
        for kernel in self.kernels:
            count = len(kernel_parameters(kernel))
            if count > MOST_BUFFERS:
                raise MissingCapability(
                    f"this kernel has {count} arguments and Metal's have {MOST_BUFFERS} at most",
                    span=kernel.span,
                    hint="join tensors of one type, or pass sizes as parts of shapes",
                )
        if library is None and importlib.util.find_spec("mlx") is None:
            _torch_with_mps(function.name)
        self.text, self.function, self.entries, self.arch = text, function, list(entries), arch
        self.library = library
        self.written = written_parameters(function)
        self.counted = counted_workspaces(function)
        self.kept: dict[tuple[Buffer, int], Any] = {}
        self.program = HostProgram(function, self._launch, self._workspace)
        self.mlx: MlxDoor | None = None
        self.notes: list[str] = []

    def __call__(self, *entry: object) -> None:
        tensors = [value for value in entry if not isinstance(value, (bool, int, float))]
        if tensors and all(isinstance(one, Promised) or is_mlx(one) for one in tensors):
            self.mlx = self.mlx or MlxDoor(self.function, self.entries, self.arch)
            self.mlx(*entry)
            return
        torch = _torch_with_mps(self.function.name)
        if self.library is None:
            self.library = torch.mps.compile_shader(self.text)
        parameters = entry_parameters(self.function)
        self.program.run([self._tensor(param, one, torch) for param, one in zip(parameters, entry, strict=True)])

    def _tensor(self, param: Buffer | Var, value: Any, torch: Any) -> Any:
        """A tensor of torch in the same memory; what torch cannot take from another library is copied once."""
        if not hasattr(value, "__dlpack__") or isinstance(value, torch.Tensor):
            return value
        try:
            return torch.from_dlpack(value)
        except Exception as error:
            name, kind = param.name, type(value).__name__
            if param in self.written:
                raise MissingCapability(
                    f"{self.function.name} writes its argument {name!r}, and torch cannot share the memory of "
                    f"this {kind}",
                    hint="pass a tensor of torch's MPS device, or let the kernel return it",
                ) from error
            note = f"{name} is copied at each call: torch does not take the memory of a {kind}"
            if note not in self.notes:
                self.notes.append(note)
            return _copied(value, torch)

    def _launch(self, number: int, grid: tuple[int, int, int], given: list[Any]) -> None:
        if min(grid) < 1:
            return
        threads = self.kernels[number].num_threads
        getattr(self.library, self.entries[number])(
            *(_argument(value) for value in given),
            threads=(grid[0] * threads, grid[1], grid[2]),
            group_size=(threads, 1, 1),
        )

    def _workspace(self, buffer: Buffer, size: int) -> Any:
        """Memory that kernels of one call share; what atomics count in is kept from call to call, zeros at first."""
        found = self.kept.get((buffer, size))
        if found is None:
            torch = _torch_with_mps(self.function.name)
            found = torch.zeros(max(size, 1), dtype=torch.uint8, device="mps")
            if buffer in self.counted:
                self.kept[buffer, size] = found
        return found


def _copied(value: Any, torch: Any) -> Any:
    """A tensor of torch's with the bytes of another library's."""
    kind = getattr(torch, str(value.dtype).rsplit(".", 1)[-1].rstrip("_"))
    flat = value.reshape(-1)
    host = np.array(flat.view(sys.modules["mlx.core"].uint8) if is_mlx(value) else flat)  # NumPy has no bfloat16
    return torch.from_numpy(host.view(np.uint8)).to("mps").view(kind).reshape(tuple(value.shape))


def _argument(value: Any) -> Any:
    """Tensors as they are, a number as torch hands it over: unsigned ones by their bits."""
    if isinstance(value, (float, list, tuple)) or hasattr(value, "data_ptr"):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":
        return float(value)
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _torch_with_mps(name: str) -> Any:
    """Torch, where it has one of Apple's GPUs and compiles texts for it.  Raises MissingCapability."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        torch = None
    if torch is None or not torch.backends.mps.is_available() or not hasattr(torch.mps, "compile_shader"):
        raise MissingCapability(
            f"launching {name} takes a Mac and a torch with torch.mps.compile_shader",
            hint="kernel.emulate(...) runs the text on this machine",
        )
    return torch
