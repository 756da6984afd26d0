"""NVRTC, NVIDIA's compiler as a library, by ctypes: found in the package index's wheel or in a toolkit; no header is
needed."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import CompilerNotFound
from tilewright.targets.cuda.toolkit import named_toolkits, wheels
from tilewright.targets.gpu.library import RuntimeCompiler

_PATTERNS = ("libnvrtc.so*", "libnvrtc.*.dylib", "nvrtc64_*.dll")
_BUILTINS = ("libnvrtc-builtins.so*", "nvrtc-builtins64_*.dll")


class Nvrtc(RuntimeCompiler):
    """One NVRTC library.

    Attributes
    ----------
    path : the library's file.
    architectures : compute capabilities it can compile for, as numbers (80, 90, ...).
    """

    prefix, results, error = "nvrtc", ("GetCUBIN", "GetPTX"), CompilerNotFound

    def __init__(self, path: Path) -> None:
        for pattern in _BUILTINS:
            for builtins in sorted(path.parent.glob(pattern)):
                if ".alt." not in builtins.name:
                    ctypes.CDLL(str(builtins))  # NVRTC opens it by its bare name, which works once it is loaded
        self.path = path
        super().__init__(ctypes.CDLL(str(path)))
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", numbers)
        self.architectures = frozenset(numbers)


@functools.cache
def find_nvrtc() -> Nvrtc:
    """The newest NVRTC on this machine.

    Raises
    ------
    CompilerNotFound : there is none that loads.
    """
    reasons = []
    for path in _newest_first():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError) as error:
            reasons.append(f"{path}: {error}")
    hint = "pip install 'tilewright[cuda]' brings it" + "".join(f"\n  tried {reason}" for reason in reasons)
    raise CompilerNotFound("no NVRTC, which compiles for the cuda target, on this machine", hint=hint)


@functools.cache
def nvrtc_identity() -> str:
    """What tells one NVRTC from another, found out without loading it: where the libraries lie, their sizes and
    times."""
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _newest_first()]
    return repr(facts) if facts else str(find_nvrtc().numbers)  # raises


def _newest_first() -> tuple[Path, ...]:
    return tuple(sorted(dict.fromkeys(_candidates()), key=_version_in_name, reverse=True))


def _candidates() -> Iterator[Path]:
    """Libraries of installed wheels first, then of toolkits."""
    for directory in _directories():
        for pattern in _PATTERNS:
            for path in directory.glob(pattern):
                if ".alt." not in path.name:
                    yield path.resolve()


def _directories() -> Iterator[Path]:
    for part in wheels():
        yield from (part / "lib", part / "bin", part / "bin" / "x86_64")
    for root in named_toolkits():
        yield from (root / "lib64", root / "lib", root / "bin")
    yield from (Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
    yield from (Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry)


def _version_in_name(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name.replace("nvrtc64", "")))
