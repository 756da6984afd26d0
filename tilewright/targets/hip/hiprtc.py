"""hiprtc, AMD's compiler as a library, by ctypes: what torch's wheels for ROCm carry, which have no clang to call."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import DriverError
from tilewright.texts import utf8

_NAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "hiprtc0700.dll", "hiprtc0600.dll")
_SUCCESS, _COMPILATION = 0, 6


@dataclass(frozen=True, slots=True)
class Compilation:
    """What hiprtc made of one text.

    Attributes
    ----------
    image : the code object; empty where the text was refused.
    log : everything that the compiler said.
    """

    image: bytes
    log: str


class Hiprtc:
    """One hiprtc library.

    Attributes
    ----------
    version : in words.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        library.hiprtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("hiprtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"hiprtc {major.value}.{minor.value}"

    def compile(self, text: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> Compilation:
        """Compile one text with the headers that it includes, given as texts.

        Raises
        ------
        DriverError : the library failed, other than by refusing the text.
        """
        program = ctypes.c_void_p()
        sources = (ctypes.c_char_p * len(headers))(*(utf8(one) for one in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(utf8(one) for one in headers))
        self._call("hiprtcCreateProgram", ctypes.byref(program), utf8(text), utf8(name), len(headers), sources, names)
        try:
            words = (ctypes.c_char_p * len(options))(*(utf8(one) for one in options))
            refused = self._call("hiprtcCompileProgram", program, len(options), words, allowed=_COMPILATION)
            log = self._bytes("hiprtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            return Compilation(b"" if refused else self._bytes("hiprtcGetCode", program), log)
        finally:
            self._call("hiprtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        """What a pair of functions gives: the number of bytes, and the bytes."""
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        held = ctypes.create_string_buffer(max(size.value, 1))
        if size.value:
            self._call(what, program, held)
        return held.raw[: size.value]

    def _call(self, name: str, *arguments: Any, allowed: int = _SUCCESS) -> int:
        result = int(getattr(self._library, name)(*arguments))
        if result not in (_SUCCESS, allowed):
            said = (self._library.hiprtcGetErrorString(result) or b"an unknown error").decode()
            raise DriverError(f"hiprtc answered {said} ({result}) to {name}")
        return result


def _libraries() -> Iterator[str]:
    """Where the library may be: beside torch, then where the system looks, then where ROCm is installed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.hip:
        yield from (str(path) for path in (Path(str(torch.__file__)).parent / "lib").glob("libhiprtc.so*"))
    yield from _NAMES
    yield str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib" / "libhiprtc.so")


@functools.cache
def find_hiprtc() -> Hiprtc | None:
    """hiprtc on this machine, or None."""
    for name in _libraries():
        try:
            return Hiprtc(ctypes.CDLL(name))
        except (OSError, AttributeError, DriverError):
            continue
    return None
