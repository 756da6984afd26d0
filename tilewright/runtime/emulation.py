"""Running a compiled program's device text under the emulator, host program included."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.compiler import Program
from tilewright.emulator import emulate
from tilewright.errors import EmulationFailed
from tilewright.ir.visitor import kernels
from tilewright.runtime.arguments import Binder
from tilewright.targets.cuda.emit import with_lines
from tilewright.targets.cuda.host import HostProgram


def emulate_program(program: Program, values: list[Any], **options: Any) -> list[np.ndarray]:
    """Run on host arrays, written in place where the program writes them; returns its outputs.

    Raises
    ------
    EmulationFailed : the target's programs are no device text.
    EmulationError : the emulator found mistakes.
    """
    if program.source.language != "cu":
        raise EmulationFailed(
            f"{program.target.name} code runs on this machine as it is", hint='compile with target="cuda -arch=sm_80"'
        )
    text = with_lines(program.source)
    shared = dict(program.source.metadata)["shared_bytes"]
    blocks = [kernel.threads for kernel in kernels(program.final)]
    binder = Binder(program.traced, "cpu")
    bound = binder.bind(values, {})
    arrays = dict(zip(program.final.params, binder.arguments(values, bound.outputs), strict=True))
    entry = [arrays.get(param, value) for param, value in zip(binder.entry_parameters, bound.entry, strict=True)]

    def launch(number: int, grid: tuple[int, int, int], given: list[Any]) -> None:
        if 0 in grid:
            return
        x, y, z = blocks[number]
        emulate(
            text, program.source.entries[number], [_flat(value) for value in given], grid=grid, block=(x * y * z, 1, 1),
            shared_bytes=shared[number], **options,
        )  # fmt: skip

    HostProgram(program.final, launch, lambda size: np.empty(size, np.uint8)).run(entry)
    return bound.outputs


def _flat(value: Any) -> Any:
    """A contiguous array as the emulator takes it; scalars as they are."""
    return value.reshape(-1) if isinstance(value, np.ndarray) else value
