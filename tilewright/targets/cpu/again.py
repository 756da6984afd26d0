"""Calls of a kernel again in one step: the arguments that stay are bound, arrays of NumPy are compared and read in C.

Python takes longer to look at one array than a core needs for a hundred columns of a small product: what an array is
and where it lies are read from the structure that NumPy publishes for its extensions (`device/tilewright_calls.c`), by
one call for all arrays together. `reads_arrays` tries on an array whether this interpreter and NumPy have that
structure; where they do not, calls take the way through Python.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.targets.cpu.compiler import device_library

MOST_ARRAYS, MOST_DIMENSIONS = 6, 4
MISSED_STATUS = -(1 << 63)
"""What a call answers for other arrays than those that it was made for."""

HEADER = object.__basicsize__
"""Bytes in front of an object's own; the last word of them is its class."""


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("dimensions", ctypes.c_int32), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("base", ctypes.c_void_p), ("type", ctypes.c_void_p),
        ("flags", ctypes.c_int32),
    )  # fmt: skip


class _Likeness(ctypes.Structure):
    _fields_ = (
        ("class_", ctypes.c_void_p), ("type", ctypes.c_void_p), ("dimensions", ctypes.c_int64),
        ("flags", ctypes.c_int64), ("shape", ctypes.c_int64 * MOST_DIMENSIONS),
        ("strides", ctypes.c_int64 * MOST_DIMENSIONS), ("mask", ctypes.c_int64), ("rest", ctypes.c_int64),
        ("low", ctypes.c_int64), ("high", ctypes.c_int64), ("slot", ctypes.c_int64),
    )  # fmt: skip


class _Record(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p), ("release", ctypes.c_void_p), ("acquire", ctypes.c_void_p),
        ("header", ctypes.c_int64), ("count", ctypes.c_int64), ("arrays", ctypes.c_int64), ("written", ctypes.c_int64),
        ("like", _Likeness * MOST_ARRAYS),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Binding:
    """A loaded kernel as records call it.

    Attributes
    ----------
    entry : address of a function that takes all arguments as words in memory.
    rest : arguments behind those of the author, sizes.
    failed : the error that a status other than 0 stands for.
    """

    entry: int
    rest: Sequence[object]
    failed: Callable[[int], Exception]


@dataclass(frozen=True, slots=True)
class Passed:
    """An address that differs from call to call.

    Attributes
    ----------
    slots : which arguments it is.
    mask, rest : what an address leaves behind the mask.
    extent : bytes from the address to the first and behind the last.
    like : an array of NumPy; None where addresses are passed.
    """

    slots: tuple[int, ...]
    mask: int = 0
    rest: int = 0
    extent: tuple[int, int] = (0, 0)
    like: np.ndarray | None = None


def bound(
    binding: Binding, arguments: Sequence[int], passed: Sequence[Passed], written: int = 0
) -> tuple[Callable[..., int], tuple[object, ...]] | None:
    """A function of a record and of what is passed; the record, and what must live as long. None where there can be
    none.

    The function gives 0, a failure's status, or `MISSED_STATUS`. It takes arrays where all of `passed` are, else
    addresses.

    Parameters
    ----------
    arguments : all of the author's; those that are passed count for nothing.
    written : the place among `passed` of the array that the kernel writes.
    """
    arrays = [one.like for one in passed]
    of_arrays = all(array is not None for array in arrays)
    if not 0 < len(passed) <= MOST_ARRAYS or any(len(one.slots) != 1 for one in passed):
        return None
    if of_arrays and not (reads_arrays() and all(a is not None and a.ndim <= MOST_DIMENSIONS for a in arrays)):
        return None
    words = [*arguments, *(size for size in binding.rest if isinstance(size, int))]
    made = ctypes.create_string_buffer(ctypes.sizeof(_Record) + 8 * len(words))
    record = _Record.from_buffer(made)
    record.entry, record.header, record.written = binding.entry, HEADER, written
    record.release, record.acquire = (
        ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _LOCK
    )
    record.count, record.arrays = len(words), len(passed)
    for place, one in enumerate(passed):
        _describe(record.like[place], one)
    values = (ctypes.c_uint64 * len(words)).from_buffer(made, ctypes.sizeof(_Record))
    values[:] = [word & (1 << 64) - 1 for word in words]
    kept = made, [array.dtype for array in arrays if array is not None]
    return _functions(of_arrays, len(passed)), (ctypes.addressof(made), *kept)


_LOCK = ("PyEval_SaveThread", "PyEval_RestoreThread")


def _describe(like: _Likeness, one: Passed) -> None:
    like.slot, (like.low, like.high), like.mask, like.rest = one.slots[0], one.extent, one.mask, one.rest
    if one.like is not None:
        like.class_, like.type = id(np.ndarray), id(one.like.dtype)
        like.dimensions, like.flags = one.like.ndim, one.like.flags.num
        like.shape[: one.like.ndim], like.strides[: one.like.ndim] = one.like.shape, one.like.strides


@functools.cache
def _functions(of_arrays: bool, count: int) -> Callable[..., int]:
    library = (ctypes.PyDLL if of_arrays else ctypes.CDLL)(str(device_library("tilewright_calls")))
    function = library[f"tilewright_{'again' if of_arrays else 'launch'}_{count}"]
    function.argtypes = [ctypes.c_void_p, *[ctypes.py_object if of_arrays else ctypes.c_void_p] * count]
    function.restype = ctypes.c_int64
    return function


@functools.cache
def reads_arrays() -> bool:
    """Whether arrays of NumPy lie in memory as the C code reads them."""
    if sys.implementation.name != "cpython" or HEADER < 16 or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    if np.ndarray.__basicsize__ < HEADER + ctypes.sizeof(_Array):
        return False
    probe = np.zeros((3, 6, 5), np.int16)[::2, 1:, ::-1]
    probes = probe, probe[0], np.zeros((7, 2)), np.zeros(()), np.zeros(4, np.float32)
    return all(map(_is_as_published, probes))


def _is_as_published(array: np.ndarray) -> bool:
    if ctypes.c_void_p.from_address(id(array) + HEADER - 8).value != id(np.ndarray):
        return False
    found = _Array.from_address(id(array) + HEADER)
    own = array.ctypes.data, array.ndim, array.flags.num, id(array.dtype)
    if (found.data, found.dimensions, found.flags, found.type) != own:
        return False
    return tuple(found.shape[: array.ndim]) == array.shape and tuple(found.strides[: array.ndim]) == array.strides
