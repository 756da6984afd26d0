"""The GGUF format, read through a memory map: metadata, and tensors as the bytes of their blocks.

Source: the format's description, docs/gguf.md in github.com/ggml-org/ggml.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.bounds import LONGEST_HEADER, MOST_DIMENSIONS, MappedFile, check_apart, check_names, shaped
from tilewright.errors import InvalidCheckpoint

TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of the element types by their number in a file."""

DENSE = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype("i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"),
}  # fmt: skip
"""Types whose tensors are arrays of numbers."""

BLOCKS = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q8_1": (32, 36),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "Q8_K": (256, 292), "MXFP4": (32, 17), "NVFP4": (64, 36), "Q1_0": (128, 18), "TQ1_0": (256, 54), "TQ2_0": (256, 66),
    "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98), "IQ2_S": (256, 82),
    "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66), "IQ1_M": (256, 56), "IQ1_S": (256, 50),
}  # fmt: skip
"""Elements and bytes of a block of the other types."""

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_COUNT = struct.Struct("<Q")

# A vocabulary has some 300,000 words, as many scores and kinds and twice as many merges; the largest models some
# 100,000 tensors.
_MOST_ELEMENTS, _ELEMENTS_PER_ARRAY, _DEEPEST_ARRAY = 1 << 22, 64, 8
_MOST_TENSORS, _MOST_KEYS = 1 << 17, 1 << 16


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor in a file.

    Attributes
    ----------
    type : a name of `TYPES`.
    shape : as in NumPy and PyTorch, the last dimension contiguous (a file has them the other way round).
    data : the numbers of a dense type in that shape; else uint8, the bytes of the blocks.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: np.ndarray


class GGUFFile(Mapping[str, GGUFTensor]):
    """A file as a mapping from names to tensors.

    Parameters
    ----------
    path : of the file.

    Attributes
    ----------
    metadata : values by key.

    Raises
    ------
    InvalidCheckpoint : the file is cut off, no GGUF file, or of a version other than 2 and 3; it claims more than
        `bounds` allow; tensors share bytes or a name.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        head = _Head(self.path, self._file)
        self.metadata: dict[str, Any] = head.metadata
        check_names(self.path, (name for name, *_ in head.tensors))
        self._entries = {name: (type, shape, head.start + place) for name, type, shape, place in head.tensors}
        known = [name for name in self._entries if self.type_of(name) in DENSE or self.type_of(name) in BLOCKS]
        places = [(self._entries[name][2], self._entries[name][2] + self._size(name), name) for name in known]
        check_apart(self.path, [place for place in places if place[1] <= self._file.size])

    def _size(self, name: str) -> int:
        """Bytes of a tensor of a known type; rows that blocks do not divide are counted as if they did."""
        type, shape, _ = self._entries[name]
        elements = math.prod(shape)  # exact: the extents of a damaged file may be any 64 bits
        return elements * DENSE[type].itemsize if type in DENSE else elements // BLOCKS[type][0] * BLOCKS[type][1]

    def __getitem__(self, name: str) -> GGUFTensor:
        type, shape, begin = self._entries[name]
        if type not in DENSE and type not in BLOCKS:
            raise InvalidCheckpoint(
                f"{self.path}: {name} is of the GGUF type {type}", hint=f"known are {', '.join((*DENSE, *BLOCKS))}"
            )
        if type in BLOCKS and (not shape or shape[-1] % BLOCKS[type][0] != 0):
            raise InvalidCheckpoint(
                f"{self.path}: {name} has the shape {list(shape)}, whose rows blocks of {BLOCKS[type][0]} "
                f"elements ({type}) do not divide"
            )
        size = self._size(name)
        if begin + size > self._file.size:
            raise InvalidCheckpoint(f"{self.path} is cut off: {name} ends at byte {begin + size} of {self._file.size}")
        data = self._file.window(begin, size)
        if type in DENSE:
            data = np.array(data) if begin % DENSE[type].itemsize else data
            data = shaped(self.path, name, data, DENSE[type], shape)
        return GGUFTensor(name, type, shape, data)

    def type_of(self, name: str) -> str:
        """Type of a tensor, without a look at its bytes."""
        return self._entries[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


_BLOCKS_VERSION = 2
"""Of what blocks of numbers look like."""


class _Head:
    """What stands before the tensors' bytes: metadata, and name, type, shape and place of each tensor.

    Attributes
    ----------
    start : the byte that places count from.
    """

    def __init__(self, path: Path, file: MappedFile) -> None:
        self.path = path
        self._bytes = file.read(0, min(file.size, LONGEST_HEADER))
        self._is_cut = file.size > LONGEST_HEADER
        self._at, self._elements = 4, 0
        if self._bytes[:4] != b"GGUF":
            raise InvalidCheckpoint(f"{path} is no GGUF file")
        version, count, keys = self._scalar("<I"), self._scalar("<Q"), self._scalar("<Q")
        if version not in (2, 3):
            raise InvalidCheckpoint(f"{path} is of GGUF version {version}", hint="versions 2 and 3 can be read")
        if count > _MOST_TENSORS or keys > _MOST_KEYS:
            raise InvalidCheckpoint(
                f"{path} says that it has {count} tensors and {keys} keys; {_MOST_TENSORS} and {_MOST_KEYS} are "
                "read at most"
            )
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            if key in self.metadata:
                raise InvalidCheckpoint(f"{path} says {key!r} twice")
            self.metadata[key] = self._value(self._scalar("<I"))
        self.tensors = [self._tensor() for _ in range(count)]
        seen: set[str] = set()
        for name, *_ in self.tensors:
            if name in seen:
                raise InvalidCheckpoint(f"{path} has two tensors {name!r}")
            seen.add(name)
        blocks = self.metadata.get("general.quantization_version", _BLOCKS_VERSION)
        if blocks != _BLOCKS_VERSION:
            raise InvalidCheckpoint(
                f"{path} says general.quantization_version: {blocks!r:.60}", hint="blocks of version 2 can be read"
            )
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0:
            raise InvalidCheckpoint(f"{path} says that its tensors begin at multiples of {alignment!r}")
        self.start = -(-self._at // alignment) * alignment

    def _take(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._bytes):
            if self._is_cut:
                raise InvalidCheckpoint(f"{self.path} has a header of more than {LONGEST_HEADER} bytes")
            raise InvalidCheckpoint(f"{self.path} is cut off at byte {len(self._bytes)}")
        return self._bytes[begin : self._at]

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        found, begin, data = [], self._at, self._bytes
        for _ in range(count):
            if begin + 8 > len(data):
                break
            begin, length = begin + 8, _COUNT.unpack_from(data, begin)[0]
            found.append(data[begin : begin + length].decode("utf-8", "replace"))
            begin += length
        self._take(begin - self._at + 8 * (count - len(found)))  # raises where that is more than there is
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(0)
        if kind not in _SCALARS:
            raise InvalidCheckpoint(f"{self.path} has metadata of the unknown kind {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        inner, count = self._scalar("<I"), self._scalar("<Q")
        # Arrays of arrays are made one by one, and cost as much as ever so many numbers.
        self._elements += count * _ELEMENTS_PER_ARRAY if inner == _ARRAY else count
        if self._elements > _MOST_ELEMENTS or depth > _DEEPEST_ARRAY:
            raise InvalidCheckpoint(
                f"{self.path} has arrays of {self._elements} elements and more, {depth} deep; "
                f"{_MOST_ELEMENTS} and {_DEEPEST_ARRAY} are read at most"
            )
        if inner == _STRING:
            return self._strings(count)
        if inner == _ARRAY:
            return [self._array(depth + 1) for _ in range(count)]
        if inner not in _SCALARS:
            raise InvalidCheckpoint(f"{self.path} has metadata of the unknown kind {inner}")
        size = struct.calcsize(_SCALARS[inner])
        return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", self._take(size * count)))

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name, rank = self._string(), self._scalar("<I")
        if rank > MOST_DIMENSIONS:
            raise InvalidCheckpoint(f"{self.path}: {name} has {rank} dimensions; {MOST_DIMENSIONS} are read at most")
        extents = struct.unpack(f"<{rank}Q", self._take(8 * rank))
        number, place = self._scalar("<I"), self._scalar("<Q")
        return name, TYPES.get(number, f"number {number}"), tuple(reversed(extents)), place
