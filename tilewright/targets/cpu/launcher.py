"""Loads a compiled kernel and calls its entry; failed assertions and lack of memory become errors."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import AssertionFailed, Span, TilewrightError
from tilewright.ir import Buffer, DType, Function, entry_parameters
from tilewright.machine.arch import Arch
from tilewright.options import options
from tilewright.targets.base import Source
from tilewright.targets.cpu.again import Binding
from tilewright.targets.cpu.arch import host, runs_here
from tilewright.targets.cpu.compiler import LIBRARY, WrongMachine, device_library
from tilewright.targets.cpu.emit import OUT_OF_MEMORY, takes_words, words_name
from tilewright.targets.cpu.spellings import bits_of, computes_in_float


class OutOfMemory(TilewrightError):
    """A kernel's workspace did not fit into memory."""


_CTYPES = {
    "float32": ctypes.c_float, "tfloat32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_bool,
    **{f"int{bits}": getattr(ctypes, f"c_int{max(bits, 8)}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ctypes, f"c_uint{max(bits, 8)}") for bits in (1, 2, 4, 8, 16, 32, 64)},
}  # fmt: skip


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    """A callable that takes the entry arguments: pointers as ints, scalars as numbers.

    Raises
    ------
    WrongMachine : `arch` has instructions that this CPU does not have.
    """
    if not runs_here(arch):
        missing = ", ".join(sorted(arch.features - host().features))
        raise WrongMachine(f"code for {arch.name} cannot run on this CPU, which lacks {missing}")
    _follow_torch()
    library = ctypes.CDLL(str(directory / LIBRARY))
    for name in ("parallel_for", "take", "give"):
        place = ctypes.c_void_p.in_dll(library, f"tw_{name}")
        place.value = ctypes.cast(getattr(_pool(), f"tilewright_{name}"), ctypes.c_void_p).value
    entry = getattr(library, source.entries[0])
    parameters = entry_parameters(function)
    entry.argtypes = [_argument_type(p) for p in parameters]
    entry.restype = ctypes.c_int32
    from_words = None
    if takes_words(parameters):
        from_words = ctypes.cast(getattr(library, words_name(function)), ctypes.c_void_p).value
    failures = dict(source.metadata).get("failures", ())
    convert = [(i, p.dtype) for i, p in enumerate(parameters) if not isinstance(p, Buffer) and _is_bits(p.dtype)]
    failed = functools.partial(_failure, failures=failures, function=function)
    return Launcher(entry, len(function.params), convert, failed, from_words)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Calls the entry of a loaded kernel.

    Attributes
    ----------
    parameters : how many arguments stand before the sizes.
    convert : places and types of numbers that the entry takes as bits.
    failed : the error that a status other than 0 means.
    from_words : address of a function that takes all arguments as words in memory; None where there is none.
    """

    entry: Callable[..., int]
    parameters: int
    convert: list[tuple[int, DType]]
    failed: Callable[[int], TilewrightError]
    from_words: int | None

    def __call__(self, *arguments: object) -> None:
        status = self.entry(*(_with_bits(arguments, self.convert) if self.convert else arguments))
        if status != 0:
            raise self.failed(status)

    def prepare(self, given: Sequence[object], device: int | None = None) -> Callable[..., None]:
        """A function of one value a parameter, addresses for buffers, with the sizes of `given`."""
        rest, entry, failed = given[self.parameters :], self.entry, self.failed
        if self.convert:
            return lambda *values: self(*values, *rest)

        def again(*values: object) -> None:
            status = entry(*values, *rest)
            if status != 0:
                raise failed(status)

        return again

    def binding(self, given: Sequence[object]) -> Binding | None:
        """What C calls again with the sizes of `given`; None where a number comes as bits, or words are not taken."""
        words = None if self.convert else self.from_words
        return None if words is None else Binding(words, given[self.parameters :], self.failed)


def set_threads(count: int) -> None:
    """Threads that launches use from now on, the calling one included, whatever torch is told; 0 for all cores."""
    _FOLLOWED.add("nobody")
    _pool().tilewright_limit_threads(None)
    _pool().tilewright_set_threads(count or host().cores)


def get_threads() -> int:
    """Threads that launches of the calling thread use."""
    _follow_torch()
    return int(_pool().tilewright_get_threads())


_FOLLOWED: set[str] = set()
"""Whose number of threads launches do not exceed, once that is settled."""


def _follow_torch() -> None:
    """Once torch is there, use no more threads than ``torch.set_num_threads`` says; where TILEWRIGHT_NUM_THREADS says
    how many, as many as it says."""
    torch = sys.modules.get("torch")
    if _FOLLOWED or options().num_threads or getattr(torch, "get_num_threads", None) is None:
        return
    _FOLLOWED.add("torch")
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(str(getattr(torch, "__file__", ""))).parent / "lib" / name
        if path.exists():
            ask = getattr(ctypes.CDLL(str(path)), "_ZN2at15get_num_threadsEv", None)
            _pool().tilewright_limit_threads(ask and ctypes.cast(ask, ctypes.c_void_p))


@functools.cache
def _pool() -> ctypes.CDLL:
    pool = ctypes.CDLL(str(device_library()))
    pool.tilewright_set_threads(options().num_threads or host().cores)
    return pool


def _is_bits(dtype: DType) -> bool:
    return computes_in_float(dtype) and dtype.name != "tfloat32"


def _argument_type(param: Any) -> Any:
    if isinstance(param, Buffer):
        return ctypes.c_void_p
    if _is_bits(param.dtype):
        return ctypes.c_uint16 if param.dtype.bits == 16 else ctypes.c_uint8
    return _CTYPES[param.dtype.name]


def _with_bits(arguments: tuple[Any, ...], convert: list[tuple[int, DType]]) -> tuple[Any, ...]:
    """Scalars of narrow float types as the bits that the entry takes."""
    changed = list(arguments)
    for position, dtype in convert:
        changed[position] = bits_of(float(changed[position]), dtype)
    return tuple(changed)


def _failure(status: int, failures: Any, function: Function) -> TilewrightError:
    if status == OUT_OF_MEMORY:
        return OutOfMemory(f"a workspace of {function.name} does not fit into memory", span=function.span)
    message, place = failures[status - 1]
    return AssertionFailed(message or "a device assertion failed", span=Span(*place) if place else None)
