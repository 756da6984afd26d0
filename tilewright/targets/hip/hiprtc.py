"""hiprtc, AMD's compiler as a library, by ctypes: what torch's wheels for ROCm carry, which have no clang to call."""

from __future__ import annotations

import functools

from tilewright.targets.gpu.library import RuntimeCompiler, first_loaded
from tilewright.targets.hip.driver import rocm_libraries

_NAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "hiprtc0700.dll", "hiprtc0600.dll")


class Hiprtc(RuntimeCompiler):
    """One hiprtc library."""

    prefix, results, refusals = "hiprtc", ("GetCode",), (6,)

    @property
    def version(self) -> str:
        """In words."""
        return "hiprtc {}.{}".format(*self.numbers)


@functools.cache
def find_hiprtc() -> Hiprtc | None:
    """hiprtc on this machine, or None."""
    return first_loaded(rocm_libraries("libhiprtc.so", _NAMES), Hiprtc)
