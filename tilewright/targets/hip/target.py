"""The manifest of the hip target: building code objects, loading them, launching their host programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tilewright.ir import Function, kernels
from tilewright.machine.arch import Arch
from tilewright.passes.tile.grids.sync_grid import syncs_grid
from tilewright.targets.base import Source, Target, register_target
from tilewright.targets.gpu.emit import kernel_parameters, with_lines
from tilewright.targets.gpu.host import HostLauncher, code_of
from tilewright.targets.hip import emulation
from tilewright.targets.hip.arch import arch, detect
from tilewright.targets.hip.compiler import Binary, compile_text, compiler_key
from tilewright.targets.hip.driver import require_driver
from tilewright.targets.hip.emit import emit
from tilewright.targets.hip.launcher import HipKernel, Workspaces
from tilewright.targets.hip.lower import OVERRIDES
from tilewright.targets.hip.machine_code import code_of_kernel, hottest_loop
from tilewright.texts import write_text


def build(source: Source, arch: Arch, directory: Path) -> None:
    """Compile a text into a cache entry."""
    binary = compile_text(
        with_lines(source), arch, dict(zip(source.entries, dict(source.metadata)["shared_bytes"], strict=True))
    )
    write_text(directory / "kernel.hip", source.text)
    binary.save(directory)


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    """A callable of the entry arguments that launches the host program's kernels in the current stream.

    Raises
    ------
    DriverError : there is no GPU here, or its driver refuses.
    """
    driver = require_driver(f"launching {function.name}")
    binary = Binary.load(directory)
    prepared = []
    for kernel, name in zip(kernels(function), source.entries, strict=True):
        codes = tuple(map(code_of, kernel_parameters(kernel)))
        prepared.append(HipKernel(binary.image, name, codes, kernel.num_threads, syncs_grid(kernel)))
    return HostLauncher(function, driver, prepared, Workspaces().address)


def notes(directory: Path, arch: Arch) -> list[str]:
    """What each kernel takes of a compute unit, and the mix of instructions in its hottest loop."""
    binary = Binary.load(directory)
    found = []
    for name, one in binary.resources.items():
        scratch = f"{one.scratch_bytes} bytes of scratch" if one.scratch_bytes else "no scratch"
        registers = f"{one.vector_registers} VGPRs, {one.accumulator_registers} AGPRs, {one.scalar_registers} SGPRs"
        found.append(f"{name}: {registers}, {one.lds_bytes} bytes of LDS, {scratch}, {one.waves} waves a SIMD")
        loop = hottest_loop(code_of_kernel(binary.assembly, name))
        if loop is not None:
            mix = ", ".join(f"{count} {kind}" for kind, count in loop.mix().items())
            found.append(f"{name}: an iteration of its hottest loop is {mix}")
    return found


HIP = register_target(
    Target("hip", detect, arch, OVERRIDES, emit, compiler_key, build, load, Binary.load, emulation.HIP, notes, "cuda:0")
)
