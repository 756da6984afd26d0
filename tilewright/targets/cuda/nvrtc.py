"""NVRTC, NVIDIA's compiler as a library, by ctypes: found in the package index's wheel or in a toolkit; no header is
needed."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import CompilerNotFound
from tilewright.texts import utf8

_PATTERNS = ("libnvrtc.so*", "libnvrtc.*.dylib", "nvrtc64_*.dll")
_BUILTINS = ("libnvrtc-builtins.so*", "nvrtc-builtins64_*.dll")
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Compilation:
    """What NVRTC made of one text.

    Attributes
    ----------
    succeeded : whether there is a binary.
    cubin, ptx : machine code and the assembly it was made of; empty where it failed.
    log : everything the compiler and its assembler said.
    """

    succeeded: bool
    cubin: bytes
    ptx: str
    log: str


class Nvrtc:
    """One NVRTC library.

    Attributes
    ----------
    path : the library's file.
    version : major and minor number.
    architectures : compute capabilities it can compile for, as numbers (80, 90, ...).
    """

    def __init__(self, path: Path) -> None:
        for pattern in _BUILTINS:
            for builtins in sorted(path.parent.glob(pattern)):
                if ".alt." not in builtins.name:
                    ctypes.CDLL(str(builtins))  # NVRTC opens it by its bare name, which works once it is loaded
        self.path = path
        self._library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        self.architectures = frozenset(numbers)

    def compile(self, text: str, name: str, headers: Mapping[str, str], flags: Sequence[str]) -> Compilation:
        """Compile one text for the architecture that `flags` name.

        Parameters
        ----------
        text : CUDA C++ source.
        name : what messages call the text.
        headers : text of each header by the name under which it is included.
        """
        program = ctypes.c_void_p()
        strings = ctypes.c_char_p * len(headers)
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), utf8(text), utf8(name), len(headers),
            strings(*map(utf8, headers.values())), strings(*map(utf8, headers)),
        )  # fmt: skip
        try:
            options = (ctypes.c_char_p * len(flags))(*map(utf8, flags))
            succeeded = self._library.nvrtcCompileProgram(program, len(flags), options) == _SUCCESS
            log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if not succeeded:
                return Compilation(False, b"", "", log)
            cubin = self._bytes("nvrtcGetCUBIN", program)
            ptx = self._bytes("nvrtcGetPTX", program).rstrip(b"\0").decode()
            return Compilation(True, cubin, ptx, log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, getter: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw[: size.value]

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result != _SUCCESS:
            explain = self._library.nvrtcGetErrorString
            explain.restype = ctypes.c_char_p
            raise CompilerNotFound(f"NVRTC at {self.path} failed in {function}: {explain(result).decode()}")


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
    return repr(facts) if facts else str(find_nvrtc().version)  # raises


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
    for entry in sys.path:
        package = Path(entry or ".") / "nvidia"
        if package.is_dir():
            for part in sorted(package.iterdir()):
                yield from (part / "lib", part / "bin", part / "bin" / "x86_64")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root:
            yield from (Path(root) / "lib64", Path(root) / "lib", Path(root) / "bin")
    yield from (Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
    yield from (Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry)


def _version_in_name(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name.replace("nvrtc64", "")))
