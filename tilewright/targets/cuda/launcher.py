"""Launches through the driver: prepared once, then as little host work as possible each time.

A `CudaKernel` is machine code that loads itself on each device it is used on.  `CudaKernel.prepare` fixes what does
not change between launches; calling the result packs the arguments into a buffer and calls the driver, on the
current stream, with no allocation and no synchronisation, so launches can be captured into CUDA graphs.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import GridTooLarge, LaunchFailed
from tilewright.targets.cuda.driver import (
    _INVALID_CONTEXT,
    Attribute,
    Driver,
    FunctionAttribute,
    LaunchAttribute,
    LaunchConfig,
    require_driver,
)
from tilewright.targets.gpu.host import TENSOR_MAP

_CONFIG = "<3I3II4xQQI4x"
"""CUlaunchConfig for `struct`: grid, block, shared bytes, stream, attributes and their count."""

_ALIGNMENT = {TENSOR_MAP: 64}
_PORTABLE_CLUSTER = 8
_TOO_LARGE = 720
"""What the driver answers where a cooperative launch does not fit."""
_STATIC_SHARED = 48 << 10


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What does not change between launches of a kernel.

    Attributes
    ----------
    threads : of a block, along x.
    shared_bytes : dynamic shared memory of a block.
    cluster : blocks of a cluster along x, y, z.
    cooperative : all blocks must be resident at once (`tw::grid_sync`).
    dependent : the launch may begin before the one before it in the stream has ended (griddepcontrol).
    """

    threads: int
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    dependent: bool = False


class LaunchState:
    """What one launch hands the driver: its CUlaunchConfig, the arguments, and the table of their addresses.

    All of it lies in one block of memory that a single ``struct`` call fills.

    Attributes
    ----------
    config, addresses : what ``cuLaunchKernelEx`` takes.
    words : the block of memory, by words of 8 bytes.
    """

    __slots__ = ("_buffer", "_fixed", "_keep", "_offsets", "_pack", "addresses", "config", "words")

    def __init__(self, codes: Sequence[str], shape: LaunchShape) -> None:
        offsets, text, end = [], _CONFIG, struct.calcsize(_CONFIG)
        for code in codes:
            size = struct.calcsize("<" + code)
            start = -(-end // _ALIGNMENT.get(code, size)) * _ALIGNMENT.get(code, size)
            text += f"{start - end}x{code}"
            offsets.append(start)
            end = start + size
        attributes = launch_attributes(shape)
        array = (LaunchAttribute * max(len(attributes), 1))(*attributes)
        self._fixed = (shape.threads, 1, 1, shape.shared_bytes)
        self._keep = (array, ctypes.addressof(array), len(attributes))
        self._buffer = ctypes.create_string_buffer(-(-end // 8) * 8)
        self._offsets = offsets
        self.words = memoryview(self._buffer).cast("B").cast("Q")
        base = ctypes.addressof(self._buffer)
        self.config = ctypes.c_void_p(base)
        self.addresses = (ctypes.c_void_p * max(len(codes), 1))(*(base + offset for offset in offsets))
        self._pack = struct.Struct(text).pack_into

    def word(self, parameter: int) -> int:
        """Where an address among the arguments stands in `words`."""
        return self._offsets[parameter] // 8

    def set(self, grid: tuple[int, int, int], stream: int, values: Sequence[object]) -> None:
        """Write everything that a launch has of its own."""
        _, attributes, count = self._keep
        self._pack(self._buffer, 0, *grid, *self._fixed, stream, attributes, count, *values)


@dataclass(slots=True)
class CudaKernel:
    """One kernel of a binary.

    Attributes
    ----------
    cubin : the binary.
    name : of the kernel in it.
    codes : one `struct` code a parameter: `gpu.host.POINTER`, `TENSOR_MAP`, ``"i"``, ``"q"``, ``"f"``, ...
    ptx : the assembly, for devices of a newer generation than the binary.
    prints : whether it shows lines, which the driver keeps until the host waits for the device.
    """

    cubin: bytes
    name: str
    codes: tuple[str, ...]
    ptx: str = ""
    prints: bool = False
    _modules: dict[int, ctypes.c_void_p] = field(default_factory=dict)

    def function(self, driver: Driver, device: int) -> ctypes.c_void_p:
        """The kernel's handle on a device, loaded there at first use."""
        with driver.on(device):
            if device not in self._modules:
                if self.prints:
                    driver.keep_lines()
                self._modules[device] = driver.load_module(self.cubin, self.ptx)
            return driver.function(self._modules[device], self.name)

    def prepare(self, shape: LaunchShape) -> PreparedKernel:
        """The kernel ready to be launched in one shape.  Raises DriverError without a GPU."""
        return PreparedKernel(require_driver(f"launching {self.name}"), self, shape)


class PreparedKernel:
    """A kernel with its launch attributes; call it with a grid and values.

    It may be used from several threads at once: each launch takes a state of its own out of a pool.
    """

    def __init__(self, driver: Driver, kernel: CudaKernel, shape: LaunchShape) -> None:
        self.kernel, self.shape = kernel, shape
        self._driver = driver
        self.launch = driver.library.cuLaunchKernelEx
        self.functions: dict[int, ctypes.c_void_p] = {}
        self._states: list[LaunchState] = []
        self.current_device, self.current_stream = driver.streams()

    def __call__(self, grid: tuple[int, int, int], values: Sequence[Any], stream: int | None = None) -> None:
        """Launch on the current device.

        Parameters
        ----------
        grid : blocks along x, y, z; a grid with no blocks launches nothing.
        values : one a parameter, in order; addresses as ints.
        stream : handle of a stream; None for torch's current one, or the default stream without torch.

        Raises
        ------
        LaunchFailed : the driver refused it; the message says what does not fit.
        """
        if min(grid) < 1:
            return
        device = self.current_device()
        function = self.function_on(device)
        state = self._states.pop() if self._states else LaunchState(self.kernel.codes, self.shape)
        try:
            state.set(grid, self.current_stream(device) if stream is None else stream, values)
            result = self.launch(state.config, function, state.addresses, None)
            if result:
                self.refused(result, state.config, function, state.addresses, grid)
        finally:
            self._states.append(state)

    def function_on(self, device: int) -> ctypes.c_void_p:
        """The kernel's handle on a device, ready to be launched."""
        function = self.functions.get(device)
        if function is None:
            function = self.functions[device] = self._load(device)
        return function

    def refused(
        self, result: int, config: object, function: object, addresses: object, grid: tuple[int, int, int]
    ) -> None:
        """Launch once more in the device's context where the thread had none; raise what the driver answered.

        Raises
        ------
        LaunchFailed : the driver refuses the launch.
        """
        if result == _INVALID_CONTEXT:
            with self._driver.on(self.current_device()):
                result = self.launch(config, function, addresses, None)
        if result:
            self._fail(result, grid)

    def active_clusters(self) -> int:
        """Clusters (blocks, without clusters) of this kernel that the current device holds at once."""
        device = self.current_device()
        function = self.function_on(device)
        attributes = launch_attributes(self.shape)
        config = LaunchConfig(self.shape.cluster, (self.shape.threads, 1, 1), self.shape.shared_bytes)
        config.attributes = (LaunchAttribute * max(len(attributes), 1))(*attributes)
        config.attribute_count = len(attributes)
        with self._driver.on(device):
            return self._driver.active_clusters(function, config)

    def resident_blocks(self) -> int:
        """Blocks of this kernel that the current device runs at once."""
        device = self.current_device()
        function = self.function_on(device)
        with self._driver.on(device):
            each = self._driver.active_blocks(function, self.shape.threads, self.shape.shared_bytes)
            return each * self._driver.attribute(device, Attribute.MULTIPROCESSORS)

    def _load(self, device: int) -> ctypes.c_void_p:
        function = self.kernel.function(self._driver, device)
        with self._driver.on(device):
            doing = f"giving {self.kernel.name} {self.shape.shared_bytes} bytes of shared memory"
            if self.shape.shared_bytes > _STATIC_SHARED:
                self._driver.set_function_attribute(
                    function, FunctionAttribute.MAX_DYNAMIC_SHARED, self.shape.shared_bytes, doing
                )
            if math.prod(self.shape.cluster) > _PORTABLE_CLUSTER:
                self._driver.set_function_attribute(
                    function,
                    FunctionAttribute.NON_PORTABLE_CLUSTER,
                    1,
                    f"giving {self.kernel.name} clusters of {self.shape.cluster}",
                )
        return function

    def _fail(self, result: int, grid: tuple[int, int, int]) -> None:
        shape = self.shape
        if shape.cooperative and result == _TOO_LARGE:
            fit = self.resident_blocks()
            raise GridTooLarge(
                f"all {math.prod(grid)} blocks of {self.kernel.name} wait for one another, but the device runs at most "
                f"{fit} of them at once",
                hint="launch fewer blocks, and let each loop over several tiles",
            )
        cluster = f", clusters of {shape.cluster}" if math.prod(shape.cluster) > 1 else ""
        self._driver.check(
            result,
            "cuLaunchKernelEx",
            f"launching {self.kernel.name} with a grid of {grid}, {shape.threads} threads, "
            f"{shape.shared_bytes} bytes of shared memory{cluster}",
            LaunchFailed,
        )


def launch_attributes(shape: LaunchShape) -> list[LaunchAttribute]:
    """The driver's attributes for a launch shape."""
    found = []
    if math.prod(shape.cluster) > 1:
        found.append(_attribute(LaunchAttribute.CLUSTER_DIMENSION, *shape.cluster))
    if shape.cooperative:
        found.append(_attribute(LaunchAttribute.COOPERATIVE, 1))
    if shape.dependent:
        found.append(_attribute(LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION, 1))
    return found


def _attribute(number: int, *words: int) -> LaunchAttribute:
    attribute = LaunchAttribute(id=number)
    for index, word in enumerate(words):
        attribute.value[index] = word
    return attribute
