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

from tilewright.errors import InvalidCheckpoint

TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
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
    InvalidCheckpoint : the file is cut off, no GGUF file, or of a version other than 2 and 3.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._bytes = np.memmap(self.path, np.uint8, "r")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is empty"
            raise InvalidCheckpoint(f"{self.path} cannot be read: {reason}") from None
        self._at = 0
        if bytes(self._bytes[:4]) != b"GGUF":
            raise InvalidCheckpoint(f"{self.path} is no GGUF file")
        self._at = 4
        version, count, keys = self._scalar("<I"), self._scalar("<Q"), self._scalar("<Q")
        if version not in (2, 3):
            raise InvalidCheckpoint(f"{self.path} is of GGUF version {version}", hint="versions 2 and 3 can be read")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        heads = [self._head() for _ in range(count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise InvalidCheckpoint(f"{self.path} says that its tensors begin at multiples of {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self._entries = {name: (type, shape, start + place) for name, type, shape, place in heads}

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > self._bytes.size:
            raise InvalidCheckpoint(f"{self.path} is cut off at byte {self._bytes.size}")
        self._at += count
        return bytes(self._bytes[self._at - count : self._at])

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._scalar("<I"), self._scalar("<Q")
            if inner in _SCALARS:
                size = struct.calcsize(_SCALARS[inner])
                return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", self._take(size * count)))
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise InvalidCheckpoint(f"{self.path} has metadata of the unknown kind {kind}")
        return self._scalar(_SCALARS[kind])

    def _head(self) -> tuple[str, str, tuple[int, ...], int]:
        name = self._string()
        extents = [self._scalar("<Q") for _ in range(self._scalar("<I"))]
        number, place = self._scalar("<I"), self._scalar("<Q")
        return name, TYPES.get(number, f"number {number}"), tuple(reversed(extents)), place

    def __getitem__(self, name: str) -> GGUFTensor:
        type, shape, begin = self._entries[name]
        elements = math.prod(shape)  # exact: the extents of a damaged file may be any 64 bits
        if type in DENSE:
            size = elements * DENSE[type].itemsize
        elif type in BLOCKS and shape and shape[-1] % BLOCKS[type][0] == 0:
            size = elements // BLOCKS[type][0] * BLOCKS[type][1]
        elif type in BLOCKS:
            raise InvalidCheckpoint(
                f"{self.path}: {name} has the shape {list(shape)}, whose rows blocks of {BLOCKS[type][0]} elements ({type}) do not divide"
            )
        else:
            raise InvalidCheckpoint(
                f"{self.path}: {name} is of the GGUF type {type}", hint=f"known are {', '.join((*DENSE, *BLOCKS))}"
            )
        if begin + size > self._bytes.size:
            raise InvalidCheckpoint(f"{self.path} is cut off: {name} ends at byte {begin + size} of {self._bytes.size}")
        data = self._bytes[begin : begin + size]
        if type in DENSE:
            data = np.array(data) if begin % DENSE[type].itemsize else np.asarray(data)
            data = data.view(DENSE[type]).reshape(shape)
        return GGUFTensor(name, type, shape, np.asarray(data))

    def type_of(self, name: str) -> str:
        """Type of a tensor, without a look at its bytes."""
        return self._entries[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
