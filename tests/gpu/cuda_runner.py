"""Runs one kernel of a text on NumPy arrays: on the GPU here, on the emulator by a class with the same method.

No torch is needed: memory comes from the driver.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.machine.arch import Arch
from tilewright.targets.cuda.arch import detect
from tilewright.targets.cuda.compiler import Binary, compile_text
from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.cuda.launcher import TENSOR_MAP, CudaKernel, LaunchShape, PreparedKernel
from tilewright.targets.cuda.tma import encoded
from tilewright.targets.gpu.copies.boxes import Swizzle
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor
from tilewright.targets.gpu.host import POINTER

TEXTS = Path(__file__).parent / "texts"


def text(*names: str) -> str:
    """The texts of these names, one after the other."""
    return "".join((TEXTS / f"{name}.cu").read_text() for name in names)


@dataclass(frozen=True)
class Scalar:
    """A scalar argument with its `struct` code."""

    code: str
    value: Any


@dataclass(frozen=True, eq=False)
class Map:
    """A tensor map over an array that is also passed, or only mapped; sizes innermost first, strides in bytes."""

    array: np.ndarray
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    nan_fill: bool = False

    def descriptor(self, address: int) -> BoxDescriptor:
        """The map once the array's address is known."""
        return BoxDescriptor(
            ENGINE, self.dtype, address, self.extents, self.strides, self.box, self.swizzle, nan_fill=self.nan_fill
        )


@dataclass(frozen=True)
class Launch:
    """One of several launches in a row."""

    kernel: str
    grid: int
    threads: int
    arguments: Sequence[Any]


Argument = Any
"""An array (copied in and back), a `Scalar` or a `Map`."""


@dataclass
class DeviceRunner:
    """Kernels on the current GPU.

    Attributes
    ----------
    arch : of the GPU, or an older one, whose code it runs too.
    """

    arch: Arch = field(default_factory=lambda: detect())  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.driver = require_driver("running the facts")
        self.binaries: dict[str, Binary] = {}
        self.kernels: dict[tuple[str, str], CudaKernel] = {}

    def compile(self, source: str) -> Binary:
        """The binary of a text, made once."""
        if source not in self.binaries:
            self.binaries[source] = compile_text(source, self.arch)
        return self.binaries[source]

    def run(
        self, source: str, kernel: str, grid: int, threads: int, arguments: Sequence[Argument], *,
        shared: int = 0, cluster: int = 1, cooperative: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays to the device, launch, wait, and copy them back."""
        self._run(
            source,
            [(Launch(kernel, grid, threads, arguments), LaunchShape(threads, shared, (cluster, 1, 1), cooperative))],
        )

    pairs = 200
    """How many launches in a row show what dependent ones see."""

    def run_dependent(self, source: str, launches: Sequence[Launch]) -> None:
        """Launches one after the other, each of which may begin before the one before has ended."""
        self._run(source, [(one, LaunchShape(one.threads, dependent=True)) for one in launches])

    def _run(self, source: str, launches: Sequence[tuple[Launch, LaunchShape]]) -> None:
        with self.driver.on(0):
            memory = Memory(self.driver)
            try:
                ready = []
                for launch, shape in launches:
                    codes, values = zip(*map(memory.value, launch.arguments))
                    if (source, launch.kernel) not in self.kernels:
                        binary = self.compile(source)
                        made = CudaKernel(binary.image, launch.kernel, codes, binary.assembly)
                        self.kernels[source, launch.kernel] = made
                    ready.append((self.kernels[source, launch.kernel].prepare(shape), launch.grid, values))
                for prepared, grid, values in ready:
                    prepared((grid, 1, 1), values)
                names = ", ".join(dict.fromkeys(launch.kernel for launch, _ in launches))
                self.driver.check(self.driver.library.cuCtxSynchronize(), "cuCtxSynchronize", f"running {names}")
                memory.copy_back()
            finally:
                memory.free()


class Memory:
    """Device memory for the arrays of one launch."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.addresses: dict[int, tuple[np.ndarray, int]] = {}

    def value(self, argument: Argument) -> tuple[str, Any]:
        """Parameter code and value of an argument."""
        if isinstance(argument, Scalar):
            return argument.code, argument.value
        if isinstance(argument, Map):
            return TENSOR_MAP, encoded(argument.descriptor(self.address(argument.array)))
        return POINTER, self.address(argument)

    def address(self, array: np.ndarray) -> int:
        if id(array) not in self.addresses:
            assert array.flags.c_contiguous
            pointer = ctypes.c_uint64()
            library = self.driver.library
            self.driver.check(
                library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(array.nbytes, 1))), "cuMemAlloc"
            )
            self.addresses[id(array)] = (array, pointer.value)
            self.driver.check(
                library.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)),
                "cuMemcpyHtoD",
            )
        return self.addresses[id(array)][1]

    def copy_back(self) -> None:
        for array, address in self.addresses.values():
            self.driver.check(
                self.driver.library.cuMemcpyDtoH_v2(
                    ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes)
                ),
                "cuMemcpyDtoH",
            )

    def free(self) -> None:
        for _, address in self.addresses.values():
            self.driver.library.cuMemFree_v2(ctypes.c_uint64(address))


def host_seconds(
    prepared: PreparedKernel, grid: tuple[int, int, int], values: Sequence[Any], count: int = 2000
) -> float:
    """Host time of one launch in a row of launches, in seconds (the best of five rows)."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            prepared(grid, values)
        best = min(best, (time.perf_counter() - start) / count)
    return best
