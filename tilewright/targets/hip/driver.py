"""HIP's runtime library by ctypes: the few calls that a launch needs, with errors in words.

Nothing is loaded before it is asked for.  Where torch with ROCm is loaded its own copy of the library is taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tilewright.errors import LaunchFailed
from tilewright.targets.gpu.library import DriverLibrary, first_loaded, loaded_torch, needed

_NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll")

_NO_DEVICE = 100
_COMPUTE_UNITS = 63
"""hipDeviceAttributeMultiprocessorCount."""
_PROPERTIES_BYTES = 4096
_EXPLANATIONS = {
    1: "an argument is out of range: a grid or a block larger than the device allows",
    2: "the device has no memory left",
    98: "the code object has no such kernel",
    100: "there is no AMD GPU",
    200: "the code object is damaged, or of a version that this driver does not know",
    209: "the code object is for another architecture than the device's",
    500: "the code object has no kernel of that name",
    700: "a kernel read or wrote memory out of bounds; the process cannot use this device any more",
    701: "the launch needs more registers or LDS than a compute unit has",
    710: "an assertion of a kernel failed; the process cannot use this device any more",
    719: "a kernel failed; the process cannot use this device any more",
    720: "a cooperative launch has more blocks than fit on the device at once",
    900: "the stream is being captured, which this operation does not allow",
}


class Driver(DriverLibrary):
    """The library, initialised."""

    maker, prefix, explanations = "HIP", "hip", _EXPLANATIONS

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        library.hipGetErrorName.restype = ctypes.c_char_p
        self.check(library.hipInit(0), "hipInit")

    def name_of(self, result: int) -> bytes | None:
        return bytes(self.library.hipGetErrorName(result) or b"")

    def torch(self) -> Any:
        """See `DriverLibrary`."""
        torch = loaded_torch()
        return torch if torch is not None and torch.version.hip else None

    def device_count(self) -> int:
        count = ctypes.c_int()
        result = self.library.hipGetDeviceCount(ctypes.byref(count))
        if result != _NO_DEVICE:
            self.check(result, "hipGetDeviceCount")
        return count.value

    def architecture(self, device: int) -> str:
        """The architecture's name with its features: ``gfx942:sramecc+:xnack-``."""
        # hipDeviceProp_t has grown over versions: so the name is searched for, not read at an offset.
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        get = getattr(self.library, "hipGetDevicePropertiesR0600", None) or self.library.hipGetDeviceProperties
        self.check(get(properties, device), "hipGetDeviceProperties")
        start = properties.raw.find(b"gfx")
        return "" if start < 0 else properties.raw[start : properties.raw.index(b"\0", start)].decode()

    def compute_units(self, device: int) -> int:
        return self.asked(ctypes.c_int, "hipDeviceGetAttribute", _COMPUTE_UNITS, device).value

    def current_device(self) -> int:
        """Index of the calling thread's device."""
        return self.asked(ctypes.c_int, "hipGetDevice").value

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device current in this thread for a while."""
        before = self.current_device()
        if before != device:
            self.check(self.library.hipSetDevice(device), "hipSetDevice")
        try:
            yield
        finally:
            if before != device:
                self.check(self.library.hipSetDevice(before), "hipSetDevice")

    def load_module(self, image: bytes) -> ctypes.c_void_p:
        """Load a code object on the current device."""
        return self.asked(ctypes.c_void_p, "hipModuleLoadData", image, doing="loading a kernel")

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        stream: int,
        addresses: object,
        cooperative: bool,
        doing: str,
    ) -> None:
        """Start a kernel; its shared memory is the code object's own."""
        shape = (*grid, threads, 1, 1, 0, ctypes.c_void_p(stream))
        if cooperative:
            result = self.library.hipModuleLaunchCooperativeKernel(function, *shape, addresses)
            self.check(result, "hipModuleLaunchCooperativeKernel", doing, LaunchFailed)
        else:
            result = self.library.hipModuleLaunchKernel(function, *shape, addresses, None)
            self.check(result, "hipModuleLaunchKernel", doing, LaunchFailed)

    def allocate(self, size: int, stream: int) -> int:
        """The address of zeroed memory on the current device, for a workspace; it is never freed, and zeroed in
        stream order."""
        count, doing = ctypes.c_size_t(max(size, 1)), f"allocating a workspace of {size} bytes"
        pointer = self.asked(ctypes.c_void_p, "hipMalloc", count, doing=doing)
        cleared = self.library.hipMemsetAsync(pointer, 0, count, ctypes.c_void_p(stream))
        self.check(cleared, "hipMemsetAsync", doing)
        return pointer.value or 0


def rocm_libraries(file: str, names: Iterable[str]) -> Iterator[str]:
    """Where a library of ROCm's may be: beside torch, then where the system looks, then where ROCm is installed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.hip:
        yield from (str(path) for path in (Path(str(torch.__file__)).parent / "lib").glob(f"{file}*"))
    yield from names
    yield str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib" / file)


@functools.cache
def find_driver() -> Driver | None:
    """HIP's runtime on this machine, or None where there is none to drive a GPU."""
    return first_loaded(rocm_libraries("libamdhip64.so", _NAMES), Driver)


def require_driver(doing: str) -> Driver:
    """The library, for something that cannot do without a GPU.

    Raises
    ------
    DriverError : there is no AMD GPU here.
    """
    return needed(find_driver(), doing, "AMD")
