"""The CUDA driver by ctypes: the few calls that a launch needs, with errors in words.

No toolkit and no wheel is needed: the driver comes with the GPU.  Nothing is loaded before it is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import sys
import warnings
from collections.abc import Iterator

from tilewright.errors import DriverError, LaunchFailed, TilewrightWarning
from tilewright.targets.gpu.library import DriverLibrary, first_loaded, loaded_torch, needed
from tilewright.texts import utf8

LEAST_VERSION = (12, 0)
"""Tensor maps and launch attributes are in the driver from this version of CUDA on."""

_NAMES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")


class Attribute(enum.IntEnum):
    """Attributes of a device, by cuda.h's numbers."""

    CLOCK_KHZ = 13
    MULTIPROCESSORS = 16
    MEMORY_CLOCK_KHZ = 36
    MEMORY_BUS_BITS = 37
    L2_BYTES = 38
    COMPUTE_MAJOR = 75
    COMPUTE_MINOR = 76


class FunctionAttribute(enum.IntEnum):
    """Attributes of a kernel, by cuda.h's numbers."""

    SHARED_BYTES = 1
    REGISTERS = 4
    MAX_DYNAMIC_SHARED = 8
    NON_PORTABLE_CLUSTER = 14


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number and a union of 64 bytes, here its first words."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16)]

    COOPERATIVE = 2
    CLUSTER_DIMENSION = 4
    PROGRAMMATIC_STREAM_SERIALIZATION = 6


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


_OUT_OF_MEMORY = 2
_NO_BINARY_FOR_GPU = 209
_NON_BLOCKING = 1
_PRINTF_FIFO = 1
_PRINTED_BYTES = 64 << 20
_CAPTURE_RELAXED = 2
_CAPTURE_ACTIVE = 1
_CAPTURE_INVALIDATED = 901
_NO_DESTRUCTOR_SYNC = 1
_MOVE_REFERENCES = 1
_INVALID_CONTEXT = 201
_EXPLANATIONS = {
    1: "an argument is out of range: a grid, a block or a cluster larger than the device allows",
    2: "the device has no memory left",
    100: "there is no CUDA device",
    200: "the binary is not for this device, or newer than this driver",
    209: "the binary has no code for this device",
    222: "the binary is newer than this driver: update the driver",
    701: "the launch needs more registers or shared memory than a multiprocessor has",
    700: "a kernel read or wrote memory out of bounds; the process cannot use this device any more",
    702: "a kernel ran too long for a device that also serves a display",
    710: "an assertion of a kernel failed (the driver wrote which one to standard error); the process cannot use "
    "this device any more",
    715: "a kernel executed an illegal instruction; the process cannot use this device any more",
    716: "a kernel used a misaligned address; the process cannot use this device any more",
    719: "a kernel failed; the process cannot use this device any more",
    720: "a cooperative launch has more blocks than fit on the device at once",
    803: "the driver and the kernel module differ in version",
    900: "the stream is being captured, which this operation does not allow",
    901: "the capture that the stream takes part in has failed: the error before this one says why",
    912: "more clusters were asked for than fit, or a cluster does not fit the device",
}


class Driver(DriverLibrary):
    """The driver library, initialised.

    Attributes
    ----------
    version : version of CUDA that the driver speaks.
    """

    maker, prefix, explanations = "the CUDA driver", "cu", _EXPLANATIONS

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self._contexts: dict[int, int] = {}
        self.check(library.cuInit(0), "cuInit")
        number = self.asked(ctypes.c_int, "cuDriverGetVersion").value
        self.version = (number // 1000, number % 1000 // 10)

    def name_of(self, result: int) -> bytes | None:
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(result, ctypes.byref(name))
        return name.value

    def require(self, feature: str) -> None:
        """Raise DriverError where the driver is too old for launches."""
        if self.version < LEAST_VERSION:
            raise DriverError(
                f"the driver speaks CUDA {self.version[0]}.{self.version[1]}, and {feature} needs "
                f"{LEAST_VERSION[0]}.{LEAST_VERSION[1]}",
                hint="update the NVIDIA driver",
            )

    def device_count(self) -> int:
        return self.asked(ctypes.c_int, "cuDeviceGetCount").value

    def attribute(self, device: int, attribute: int) -> int:
        return self.asked(ctypes.c_int, "cuDeviceGetAttribute", attribute, self._handle(device)).value

    def name(self, device: int) -> str:
        buffer = ctypes.create_string_buffer(128)
        self.check(self.library.cuDeviceGetName(buffer, len(buffer), self._handle(device)), "cuDeviceGetName")
        return buffer.value.decode()

    def _handle(self, device: int) -> int:
        return self.asked(ctypes.c_int, "cuDeviceGet", device).value

    def primary_context(self, device: int) -> int:
        """The context that torch and the CUDA runtime use on a device, kept for the process's life."""
        if device not in self._contexts:
            context = self.asked(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", self._handle(device))
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def current_device(self) -> int:
        """Index of the calling thread's device: torch's where torch is loaded, else its context's, else 0."""
        torch = loaded_torch()
        if torch is not None:
            return torch.cuda.current_device()
        if not self.asked(ctypes.c_void_p, "cuCtxGetCurrent").value:
            return 0
        return self.asked(ctypes.c_int, "cuCtxGetDevice").value

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device's primary context current in this thread for a while."""
        before = self.asked(ctypes.c_void_p, "cuCtxGetCurrent")
        wanted = self.primary_context(device)
        if before.value != wanted:
            self.check(self.library.cuCtxSetCurrent(ctypes.c_void_p(wanted)), "cuCtxSetCurrent")
        try:
            yield
        finally:
            if before.value and before.value != wanted:
                self.library.cuCtxSetCurrent(before)

    def load_module(self, cubin: bytes, ptx: str = "") -> ctypes.c_void_p:
        """Load machine code into the current context, also while some stream is being captured.

        Where the device is of a newer generation than the code, the driver compiles `ptx` for it.
        """
        module = ctypes.c_void_p()
        with self.relaxed_capture():
            result = self.library.cuModuleLoadData(ctypes.byref(module), cubin)
            if result == _NO_BINARY_FOR_GPU and ptx:
                result = self.library.cuModuleLoadData(ctypes.byref(module), utf8(ptx) + b"\0")
            self.check(result, "cuModuleLoadData", "loading a kernel")
        return module

    def keep_lines(self) -> None:
        """Let kernels of the current context print `_PRINTED_BYTES` between two synchronisations; older lines are lost
        behind that.

        After a kernel has printed the driver keeps what was set before, by this process or by another library in it; a
        warning says so.
        """
        size = self.asked(ctypes.c_size_t, "cuCtxGetLimit", _PRINTF_FIFO)
        if size.value < _PRINTED_BYTES and self.library.cuCtxSetLimit(_PRINTF_FIFO, ctypes.c_size_t(_PRINTED_BYTES)):
            warnings.warn(
                f"kernels print no more than {size.value >> 10} KB between two synchronisations, and what is "
                "more is lost: something in "
                "this process printed from the device before tilewright could ask for more room",
                TilewrightWarning,
                stacklevel=2,
            )

    @contextlib.contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Let this thread load and allocate while some stream is being captured into a graph."""
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        exchange = self.library.cuThreadExchangeStreamCaptureMode
        self.check(exchange(ctypes.byref(mode)), "cuThreadExchangeStreamCaptureMode")
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))

    def capture(self, stream: int) -> tuple[int, int]:
        """The capture that a stream takes part in: a number that no other has, and the handle of the graph that is
        made.

        Raises
        ------
        DriverError : it takes part in none, or in one that has failed.
        """
        status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        found = ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
        result = self.library.cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), *found)
        if not result and status.value != _CAPTURE_ACTIVE:
            result = _CAPTURE_INVALIDATED
        self.check(result, "cuStreamGetCaptureInfo", "capturing a launch")
        return number.value, graph.value or 0

    def when_gone(self, graph: int, function: int, argument: int) -> None:
        """Have a C function called with a pointer when neither a graph nor any that was made of it is left, nor runs.

        A thread of the driver's calls it, which must not call CUDA and should not wait for locks of Python's.
        """
        held = ctypes.c_void_p()
        create, release = self.library.cuUserObjectCreate, self.library.cuUserObjectRelease
        made = create(ctypes.byref(held), ctypes.c_void_p(argument), ctypes.c_void_p(function), 1, _NO_DESTRUCTOR_SYNC)
        self.check(made, "cuUserObjectCreate")
        result = self.library.cuGraphRetainUserObject(ctypes.c_void_p(graph), held, 1, _MOVE_REFERENCES)
        if result:
            release(held, 1)
        self.check(result, "cuGraphRetainUserObject")

    def set_function_attribute(self, function: ctypes.c_void_p, attribute: int, value: int, doing: str) -> None:
        self.check(
            self.library.cuFuncSetAttribute(function, attribute, value), "cuFuncSetAttribute", doing, LaunchFailed
        )

    def active_clusters(self, function: ctypes.c_void_p, config: LaunchConfig) -> int:
        """Clusters of this launch that fit on the device at once."""
        return self.asked(ctypes.c_int, "cuOccupancyMaxActiveClusters", function, ctypes.byref(config)).value

    def allocate(self, size: int) -> int:
        """Device memory for a workspace, as an address, for as long as the process lives; it holds anything.

        Where the device is full, torch gives back what it keeps for later.
        """
        pointer, count = ctypes.c_uint64(), ctypes.c_size_t(max(size, 1))
        doing = f"allocating a workspace of {size} bytes"
        result = self.library.cuMemAlloc_v2(ctypes.byref(pointer), count)
        if result == _OUT_OF_MEMORY and "torch" in sys.modules:
            with contextlib.suppress(RuntimeError):  # it keeps all while it captures a graph
                sys.modules["torch"].cuda.empty_cache()
            result = self.library.cuMemAlloc_v2(ctypes.byref(pointer), count)
        self.check(result, "cuMemAlloc", doing)
        return pointer.value

    def clear(self, address: int, size: int, stream: int) -> None:
        """Fill memory of the current context with zeros, before whatever a stream does next."""
        result = self.library.cuMemsetD8Async(
            ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        self.check(result, "cuMemsetD8Async", "clearing a workspace")

    def clear_now(self, address: int, size: int) -> None:
        """The same in a stream of its own, and wait for it: others may be captured."""
        doing = "clearing a workspace"
        stream = self.asked(ctypes.c_void_p, "cuStreamCreate", _NON_BLOCKING, doing=doing)
        self.clear(address, size, stream.value or 0)
        self.check(self.library.cuStreamSynchronize(stream), "cuStreamSynchronize", doing)
        self.check(self.library.cuStreamDestroy_v2(stream), "cuStreamDestroy", doing)

    def active_blocks(self, function: ctypes.c_void_p, threads: int, shared_bytes: int) -> int:
        """Blocks of this kernel that fit on one multiprocessor."""
        call, dynamic = "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.c_size_t(shared_bytes)
        return self.asked(ctypes.c_int, call, function, threads, dynamic).value


@functools.cache
def find_driver() -> Driver | None:
    """The driver of this machine, or None where there is no NVIDIA GPU to drive."""
    return first_loaded(_NAMES, Driver)


def require_driver(doing: str) -> Driver:
    """The driver, for something that cannot do without a GPU.

    Raises
    ------
    DriverError : there is no GPU here, or its driver is too old.
    """
    driver = needed(find_driver(), doing, "NVIDIA")
    driver.require(doing)
    return driver
