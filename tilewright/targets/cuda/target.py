"""The manifest of the cuda target: building binaries, loading them, launching their host programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.ir.nodes import Buffer, Call, Function, TensorMap, Var
from tilewright.ir.nodes import Kernel as IrKernel
from tilewright.ir.signature import entry_parameters
from tilewright.ir.visitor import kernels, walk
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source, Target, register_target
from tilewright.targets.cuda.arch import arch, detect
from tilewright.targets.cuda.compiler import Binary, compile_text, headers_hash
from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.cuda.emit import emit, kernel_parameters
from tilewright.targets.cuda.host import HostProgram
from tilewright.targets.cuda.launcher import (
    POINTER,
    TENSOR_MAP,
    Address,
    Kernel,
    LaunchShape,
    MapOfAddress,
    PreparedKernel,
)
from tilewright.targets.cuda.lower import OVERRIDES
from tilewright.targets.cuda.nvrtc import find_nvrtc
from tilewright.targets.cuda.tma import descriptor, encoded

_CODES = {"bool": "?", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
          "int8": "b", "uint8": "B", "int16": "h", "uint16": "H"}  # fmt: skip


def cluster_of(kernel: IrKernel, arch: Arch) -> tuple[int, int, int]:
    """Blocks of a kernel's clusters along x, y, z, as far as the machine has clusters."""
    x, y, z = kernel.attribute("cluster", (1, 1, 1)) if arch.has("cluster") else (1, 1, 1)
    return x, y, z


def compiler_key(arch: Arch) -> str:
    """Identity of the compiler and of the headers that a text includes."""
    return f"{find_nvrtc().version} {headers_hash()}"


def build(source: Source, arch: Arch, directory: Path) -> None:
    """Compile a text into a cache entry."""
    binary = compile_text(source.text, arch)
    (directory / "kernel.cu").write_text(source.text)
    binary.save(directory)


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    """A callable of the entry arguments that launches the host program's kernels in the current stream.

    Raises
    ------
    DriverError : there is no GPU here, or its driver refuses.
    """
    require_driver(f"launching {function.name}")
    binary = Binary.load(directory)
    shared = dict(source.metadata)["shared_bytes"]
    prepared = []
    for kernel, name, shared_bytes in zip(kernels(function), source.entries, shared, strict=True):
        codes = tuple(_code(param) for param in kernel_parameters(kernel))
        prepared.append(
            Kernel(binary.cubin, name, codes, binary.ptx).prepare(
                LaunchShape(kernel.num_threads, shared_bytes, cluster_of(kernel, arch), dependent=_is_dependent(kernel))
            )
        )
    return Launcher(function, prepared)


def _is_dependent(kernel: IrKernel) -> bool:
    """Whether a kernel waits itself for those before it."""
    return any(isinstance(node, Call) and node.function == "griddepcontrol_wait" for node in walk(kernel))


class Launcher:
    """Runs a function's host program on the GPU; called with the entry arguments."""

    def __init__(self, function: Function, prepared: list[PreparedKernel]) -> None:
        self.function, self.prepared = function, prepared
        self.program = HostProgram(function, self._launch, functools.cache(_workspace), _describe)

    def __call__(self, *entry: Any) -> None:
        self.program.run(entry)

    def _launch(self, number: int, grid: tuple[int, int, int], values: list[Any]) -> None:
        self.prepared[number](grid, values)

    def prepare(self, entry: Sequence[Any]) -> Callable[..., None]:
        """A function of the buffers' addresses that runs again what `entry` ran: sizes and scalars are fixed.

        The host program is run once to see which kernels it launches; it has no other effect.
        """
        buffers = [param for param in self.function.params if isinstance(param, Buffer)]
        places = {Address(number): number for number in range(len(buffers))}
        addresses = iter(places)
        parameters = entry_parameters(self.function)
        given = [
            next(addresses) if isinstance(p, Buffer) else value for p, value in zip(parameters, entry, strict=True)
        ]
        launches: list[tuple[PreparedKernel, tuple[int, int, int], list[Any]]] = []

        def record(number: int, grid: tuple[int, int, int], values: list[Any]) -> None:
            launches.append((self.prepared[number], grid, values))

        HostProgram(self.function, record, self.program.allocate, _describe).run(given)
        recorded = [kernel.recorded(grid, values, Address) for kernel, grid, values in launches]
        if len(recorded) == 1:
            return recorded[0]

        def run(*pointers: int) -> None:
            for launch in recorded:
                launch(*pointers)

        return run


def _describe(node: TensorMap, address: Any, extents: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The encoded map of a tensor, or where only the place of its address is known, how to encode it."""

    def encode(at: int) -> bytes:
        return encoded(descriptor(node, at, extents, strides))

    return MapOfAddress(address.number, encode) if isinstance(address, Address) else encode(address)


def _code(param: Buffer | Var | TensorMap) -> str:
    if isinstance(param, TensorMap):
        return TENSOR_MAP
    return POINTER if isinstance(param, Buffer) else _CODES[param.dtype.name]


def _workspace(size: int) -> int:
    """Memory for a workspace; the same again for the next call, so launches allocate nothing."""
    return require_driver("allocating a workspace").allocate(size)


CUDA = register_target(Target("cuda", detect, arch, OVERRIDES, emit, compiler_key, build, load))
