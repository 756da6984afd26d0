"""The manifest of the cuda target: building binaries, loading them, launching their host programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.ir import Buffer, Function, TensorMap, kernels
from tilewright.machine.arch import Arch
from tilewright.passes.tile.grids.sync_grid import syncs_grid
from tilewright.targets.base import Source, Target, register_target
from tilewright.targets.cuda import emulation
from tilewright.targets.cuda.arch import arch, detect
from tilewright.targets.cuda.compiler import Binary, compile_text
from tilewright.targets.cuda.driver import Driver, require_driver
from tilewright.targets.cuda.emit import emit
from tilewright.targets.cuda.headers import headers_hash
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.cuda.launcher import CudaKernel, LaunchShape, PreparedKernel
from tilewright.targets.cuda.lower import OVERRIDES
from tilewright.targets.cuda.nvrtc import nvrtc_identity
from tilewright.targets.cuda.recorder import Given, MapOfGiven, MapOfStream, record
from tilewright.targets.cuda.tma import encoded
from tilewright.targets.cuda.workspaces import OfStream, Workspaces
from tilewright.targets.gpu.copies.tensor_maps import descriptor
from tilewright.targets.gpu.emit import kernel_parameters, with_lines
from tilewright.targets.gpu.host import HostLauncher, HostProgram, cluster_of, code_of, is_dependent, prints
from tilewright.texts import write_text


def compiler_key(arch: Arch) -> str:
    """Identity of the compiler and of the headers that a text includes."""
    return f"{nvrtc_identity()} {headers_hash()}"


def build(source: Source, arch: Arch, directory: Path) -> None:
    """Compile a text into a cache entry."""
    binary = compile_text(with_lines(source), arch)
    write_text(directory / "kernel.cu", source.text)
    binary.save(directory)


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    """A callable of the entry arguments that launches the host program's kernels in the current stream.

    Raises
    ------
    DriverError : there is no GPU here, or its driver refuses.
    """
    driver = require_driver(f"launching {function.name}")
    binary = Binary.load(directory)
    shared = dict(source.metadata)["shared_bytes"]
    prepared = []
    for kernel, name, shared_bytes in zip(kernels(function), source.entries, shared, strict=True):
        codes = tuple(map(code_of, kernel_parameters(kernel)))
        code = CudaKernel(binary.image, name, codes, binary.assembly, prints(kernel))
        cluster, cooperative, dependent = cluster_of(kernel, arch), syncs_grid(kernel), is_dependent(kernel)
        prepared.append(code.prepare(LaunchShape(kernel.num_threads, shared_bytes, cluster, cooperative, dependent)))
    return Launcher(function, driver, prepared)


class Launcher(HostLauncher):
    """A launcher whose calls can be recorded."""

    prepared: Sequence[PreparedKernel]

    def __init__(self, function: Function, driver: Driver, prepared: list[PreparedKernel]) -> None:
        self.workspaces = Workspaces(function)
        super().__init__(function, driver, prepared, self.workspaces.address, _describe)

    def prepare(self, entry: Sequence[Any], device: int | None = None) -> Callable[..., None]:
        """A function of one value a parameter, addresses for buffers, that runs again what `entry` ran, on one device.

        Whole numbers among the parameters, and all sizes, are fixed.  The host program is run once to see which
        kernels it launches; it has no other effect.
        """
        count = len(self.function.params)
        place = self.current_device() if device is None else device
        if self.program.prints:

            def again(*values: object) -> None:
                with self.on_device(place):
                    self.program.run([*values, *entry[count:]])

            return again
        given: list[Any] = [
            Given(number) if isinstance(param, Buffer) or param.dtype.is_float else value
            for number, (param, value) in enumerate(zip(self.function.params, entry))
        ]
        launches: list[Callable[..., None]] = []

        def note(number: int, grid: tuple[int, int, int], values: list[Any]) -> None:
            launches.append(record(self.prepared[number], grid, values, count, place))

        HostProgram(self.function, note, self.workspaces.on_stream, _describe).run([*given, *entry[count:]])
        if len(launches) == 1:
            return launches[0]

        def run(*values: object) -> None:
            for launch in launches:
                launch(*values)

        return run


def _describe(node: TensorMap, address: Any, extents: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The encoded map of a tensor, or where only the place of its address is known, how to encode it."""

    def encode(at: int) -> bytes:
        return encoded(descriptor(node, ENGINE, at, extents, strides))

    if isinstance(address, OfStream):
        return MapOfStream(address, encode)
    return MapOfGiven(address.number, encode) if isinstance(address, Given) else encode(address)


CUDA = register_target(
    Target(
        "cuda", detect, arch, OVERRIDES, emit, compiler_key, build, load, Binary.load, emulation.CUDA, device="cuda:0"
    )
)
