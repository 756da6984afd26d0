"""Makers' libraries by ctypes, as far as they answer alike: drivers, and compilers that are called in this process.

HIP's calls are CUDA's under other names, and hiprtc's are NVRTC's.
"""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tilewright.errors import DriverError, TilewrightError
from tilewright.texts import utf8

D = TypeVar("D", bound="DriverLibrary")
C = TypeVar("C", ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
L = TypeVar("L")


def first_loaded(paths: Iterable[str], made: Callable[[ctypes.CDLL], L]) -> L | None:
    """The first library that loads and begins; None where none does."""
    for path in paths:
        try:
            return made(ctypes.CDLL(path))
        except (OSError, AttributeError, DriverError):
            continue
    return None


class DriverLibrary(ABC):
    """A driver library, whose calls answer a number.

    Attributes
    ----------
    library : ctypes handle; `check` turns results into errors.
    maker : what messages call it.
    prefix : of its calls' names.
    explanations : what results mean, in words.
    """

    maker: ClassVar[str]
    prefix: ClassVar[str]
    explanations: ClassVar[Mapping[int, str]]

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @abstractmethod
    def name_of(self, result: int) -> bytes | None:
        """The maker's name of a result."""

    def check(self, result: int, call: str, doing: str = "", error: type[DriverError] = DriverError) -> None:
        """Raise what a result other than success means."""
        if result:
            symbol = (self.name_of(result) or b"an unknown error").decode()
            said = f"{self.maker} answered {symbol} ({result}) to {call}" + (f" while {doing}" if doing else "")
            raise error(said, hint=self.explanations.get(result))

    def asked(self, kind: type[C], call: str, *arguments: object, doing: str = "") -> C:
        """What a call writes to where its first argument points."""
        found = kind()
        self.check(getattr(self.library, call)(ctypes.byref(found), *arguments), call, doing)
        return found

    @abstractmethod
    def current_device(self) -> int:
        """Index of the calling thread's device."""

    @abstractmethod
    def device_count(self) -> int: ...

    @abstractmethod
    def on(self, device: int) -> AbstractContextManager[None]:
        """Make a device current in this thread for a while."""

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        call, doing = f"{self.prefix}ModuleGetFunction", f"looking for {name}"
        return self.asked(ctypes.c_void_p, call, module, name.encode(), doing=doing)

    def torch(self) -> Any:  # a module that may not be here
        """Torch, where it is loaded and drives GPUs of this maker's."""
        return loaded_torch()

    def streams(self) -> tuple[Callable[[], int], Callable[[int], int]]:
        """Functions that give the current device, and its current stream's handle, as cheaply as possible.

        Where torch drives such GPUs its own are asked; else the device is that of the thread and the stream the
        default one.
        """
        found = None if self.torch() is None else torch_functions()
        return found or (self.current_device, lambda device: 0)

    def on_device(self, device: int) -> AbstractContextManager[object]:
        """A context in which another device is current, for torch too where it drives it."""
        torch = self.torch()
        return self.on(device) if torch is None else torch.cuda.device(device)


def loaded_torch() -> Any:  # a module that may not be here
    """Torch, where it is loaded and drives GPUs by CUDA's names; None elsewhere."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def torch_functions() -> tuple[Callable[[], int], Callable[[int], int]] | None:
    """Torch's functions that give the current device, and the handle of its current stream, as cheaply as possible.

    None where no torch is loaded that drives GPUs by CUDA's names.
    """
    torch = loaded_torch()
    if torch is None:
        return None
    torch.cuda.init()
    # The quick ones are torch's own affair: where it has them no more, what it publishes serves.
    own = getattr(torch, "_C", None)
    stream = getattr(own, "_cuda_getCurrentRawStream", None)
    device = getattr(own, "_cuda_getDevice", torch.cuda.current_device)
    return device, stream or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def needed(driver: D | None, doing: str, maker: str) -> D:
    """A driver that has a GPU to drive.  Raises DriverError."""
    if driver is None or driver.device_count() == 0:
        raise DriverError(
            f"{doing} needs an {maker} GPU, and there is none here",
            hint="source, binary, resources and kernel.emulate() work without one",
        )
    return driver


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a compiler made of one text.

    Attributes
    ----------
    image : machine code; empty where the text was refused.
    assembly : the text that the machine code was made of, where the compiler gives it.
    log : everything that the compiler and its assembler said.
    """

    image: bytes
    assembly: str
    log: str


class RuntimeCompiler:
    """A compiler as a library.

    Attributes
    ----------
    prefix : of its functions' names.
    results : what of a compiled program is read: the machine code, then the assembly where there is one.
    refusals : what it answers where it refuses a text, and its log says why; None for everything but success.
    error : what is raised where it fails otherwise.
    numbers : of its version, major and minor.
    """

    prefix: ClassVar[str]
    results: ClassVar[tuple[str, ...]]
    refusals: ClassVar[tuple[int, ...] | None] = None
    error: ClassVar[type[TilewrightError]] = DriverError

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        getattr(library, f"{self.prefix}GetErrorString").restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.numbers = (major.value, minor.value)

    def compile(self, text: str, name: str, headers: Mapping[str, str], flags: Sequence[str]) -> Compilation:
        """Compile one text for the architecture that `flags` name.

        Parameters
        ----------
        name : what messages call the text.
        headers : text of each header by the name under which it is included.
        """
        program = ctypes.c_void_p()
        texts, names, options = (_strings(some) for some in (headers.values(), headers, flags))
        self._call("CreateProgram", ctypes.byref(program), utf8(text), utf8(name), len(headers), texts, names)
        try:
            result = self._answer("CompileProgram", program, len(flags), options)
            if result and self.refusals is not None and result not in self.refusals:
                raise self._failed("CompileProgram", result)
            log = self._bytes("GetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            image, *rest = [b""] if result else [self._bytes(one, program) for one in self.results]
            return Compilation(image, b"".join(rest).rstrip(b"\0").decode(), log)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        """What a pair of functions gives: the number of bytes, and the bytes."""
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        held = ctypes.create_string_buffer(max(size.value, 1))
        if size.value:
            self._call(what, program, held)
        return held.raw[: size.value]

    def _answer(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, self.prefix + name)(*arguments))

    def _call(self, name: str, *arguments: object) -> None:
        result = self._answer(name, *arguments)
        if result:
            raise self._failed(name, result)

    def _failed(self, name: str, result: int) -> TilewrightError:
        said = (getattr(self._library, f"{self.prefix}GetErrorString")(result) or b"an unknown error").decode()
        return self.error(f"{self.prefix} answered {said} ({result}) to {self.prefix}{name}")


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    held = [*map(utf8, texts)]
    return (ctypes.c_char_p * len(held))(*held)
