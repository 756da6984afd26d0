"""Global memory of a run: arrays copied into one arena with guards between them, and arguments as the kernel takes
them."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.emulator.structures import Allocation
from tilewright.emulator.tensor_map import TensorMap, encode_map
from tilewright.emulator.toolchain import Text, core
from tilewright.errors import EmulationFailed, an
from tilewright.options import options
from tilewright.targets.emulation import Vocabulary
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor

GUARD = 4096
"""Bytes of no-man's-land around each array."""

LEAST_ALIGNMENT = 256
"""Arrays lie here at the same place modulo this many bytes as where they come from."""


class Arena:
    """Global memory of a run: every array copied into one arena, with guards between."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = list(arrays)
        self.tables: list[np.ndarray] = []
        self.spans = [
            byte_bounds(array) for array in self.arrays
        ]  # as they lie: rows may have gaps, columns may come first
        offsets, at = [], GUARD
        for low, high in self.spans:
            offsets.append(at + low % LEAST_ALIGNMENT)  # a misaligned array stays one
            at += (high - low + LEAST_ALIGNMENT + GUARD + 255) // 256 * 256
        self.bytes = at + GUARD
        self.base = core(options().compiler).tw_reserve(self.bytes)
        if not self.base:
            raise EmulationFailed(f"no {self.bytes} bytes of memory for the kernel's arrays")
        self.lows = [self.base + offset for offset in offsets]
        self.addresses = [
            place + array.ctypes.data - low
            for array, place, (low, _) in zip(self.arrays, self.lows, self.spans, strict=True)
        ]
        for place, (low, high) in zip(self.lows, self.spans, strict=True):
            ctypes.memmove(place, low, high - low)

    def find(self, array: np.ndarray) -> int:
        """Arena address of an array that was given."""
        for known, address in zip(self.arrays, self.addresses):
            if known is array:
                return address
        raise EmulationFailed("a tensor map describes an array that is not among `arguments` or `memory`")

    def translate(self, address: int) -> int:
        """Arena address of an address inside one of the arrays."""
        for place, (low, high) in zip(self.lows, self.spans, strict=True):
            if low <= address < max(high, low + 1):
                return place + address - low
        raise EmulationFailed(
            f"a tensor map or an entry of a table of pointers is {address:#x}, outside of every array",
            hint="pass the array in `memory`",
        )

    def point(self, tables: Sequence[np.ndarray]) -> None:
        """Addresses in these arrays become those of the same bytes here."""
        for table in tables:
            place = self.find(table)
            moved = [self.translate(int(address)) for address in table.reshape(-1).view(np.uint64)]
            ctypes.memmove(place, np.array(moved, np.uint64).ctypes.data, table.nbytes)
        self.tables = list(tables)

    def copy_back(self) -> None:
        for array, place, address, (low, high) in zip(self.arrays, self.lows, self.addresses, self.spans, strict=True):
            if array.flags.writeable and array.size and all(array is not table for table in self.tables):
                memory = ctypes.string_at(place, high - low)
                array[...] = np.ndarray(array.shape, array.dtype, memory, address - place, array.strides)

    def release(self) -> None:
        core(options().compiler).tw_release(self.base, self.bytes)


def _argument_bytes(argument: object, shape: int, position: int, arena: Arena, vocabulary: Vocabulary) -> bytes:
    """One argument as the kernel's parameter of this shape (its size; the top bit marks a pointer) takes it."""
    size, is_pointer = shape & 0x7FFFFFFF, bool(shape >> 31)
    if isinstance(argument, np.ndarray):
        value = arena.find(argument).to_bytes(8, "little")
    elif isinstance(argument, TensorMap):
        if vocabulary.copy_engine is None:
            raise EmulationFailed(f"argument {position} is a map of a tensor, which no {vocabulary.name} kernel takes")
        value = encode_map(argument.descriptor(vocabulary.copy_engine, arena.find(argument.array)))
    elif isinstance(argument, BoxDescriptor):
        value = encode_map(dataclasses.replace(argument, address=arena.translate(argument.address)))
    elif isinstance(argument, np.generic):
        value = argument.tobytes()
    elif isinstance(argument, bool):
        value = bytes([argument])
    elif isinstance(argument, int):
        value = (argument & ((1 << 8 * size) - 1)).to_bytes(size, "little") if size <= 8 else b""
    elif isinstance(argument, float):
        value = np.float64(argument).tobytes() if size == 8 else np.float32(argument).tobytes()
    elif isinstance(argument, bytes):
        value = argument
    elif argument is None:
        value = bytes(8)
    else:
        raise EmulationFailed(f"argument {position} is {an(type(argument).__name__)}, which no kernel takes")
    if len(value) != size or (is_pointer != isinstance(argument, (np.ndarray, type(None)))):
        wanted = "a pointer" if is_pointer else f"{size} bytes"
        raise EmulationFailed(
            f"argument {position} is {len(value)} bytes of {type(argument).__name__}, and the kernel's parameter "
            f"is {wanted}"
        )
    return value


def pack_arguments(arguments: Sequence[object], text: Text, arena: Arena, vocabulary: Vocabulary) -> ctypes.Array:
    """One buffer: pointers to all arguments, then their bytes."""
    if len(arguments) != len(text.shapes):
        raise EmulationFailed(f"the kernel has {len(text.shapes)} parameters, and {len(arguments)} arguments are given")
    shaped = enumerate(zip(arguments, text.shapes))
    values = [_argument_bytes(one, shape, number, arena, vocabulary) for number, (one, shape) in shaped]
    head = (8 * len(values) + 127) // 128 * 128
    offsets, at = [], head
    for value in values:
        offsets.append(at)
        at += (len(value) + 127) // 128 * 128
    buffer = (ctypes.c_char * (at + 128 + 128))()
    base = (ctypes.addressof(buffer) + 127) // 128 * 128
    for i, (offset, value) in enumerate(zip(offsets, values)):
        ctypes.memmove(base + offset, value, len(value))
        ctypes.memmove(base + 8 * i, (base + offset).to_bytes(8, "little"), 8)
    return buffer


def arrays_of(values: Sequence[object]) -> list[np.ndarray]:
    """The arrays among arguments, each once, with those that tensor maps describe."""
    arrays: list[np.ndarray] = []
    for value in values:
        array = value.array if isinstance(value, TensorMap) else value
        if isinstance(array, np.ndarray) and not any(array is known for known in arrays):
            arrays.append(array)
    return arrays


def allocations(arena: Arena, promises: Sequence[int], unit: int) -> ctypes.Array[Allocation]:
    """What lies where in the arena, in whole units of the machine's memory, and what is promised of it."""
    placed = [
        Allocation(place // unit * unit, -(-(place + high - low) // unit) * unit, kept)
        for place, (low, high), kept in zip(arena.lows, arena.spans, promises, strict=True)
    ]
    return (Allocation * max(len(placed), 1))(*placed)
