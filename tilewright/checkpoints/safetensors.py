"""The safetensors format: a length, a JSON header, and the bytes of the tensors one behind the other.

Files are read through a memory map: a tensor costs memory when its elements are looked at.  They are written
under another name and renamed when they are whole (`whole`), so that a name never stands for half a file.

Source: the format's description in github.com/huggingface/safetensors, README.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.bounds import (
    LONGEST_HEADER,
    MOST_DIMENSIONS,
    MappedFile,
    check_apart,
    check_names,
    is_sizes,
    parse_table,
    shaped,
)
from tilewright.checkpoints.whole import whole_file
from tilewright.errors import InvalidCheckpoint

_KINDS = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
DTYPES: dict[str, np.dtype] = {name: np.dtype(kind) for name, kind in _KINDS.items()}
"""Element types by their names in a header."""

_NAMES = {kind: name for name, kind in DTYPES.items()}
_ALIGNMENT = 8


class SafetensorsFile(Mapping[str, np.ndarray]):
    """A file as a mapping from names to read-only arrays, in the order of the header.

    Parameters
    ----------
    path : of the file.

    Attributes
    ----------
    metadata : texts by name.

    Raises
    ------
    InvalidCheckpoint : the file is cut off or no safetensors file; its header does not fit its bytes, or claims more
        than `bounds` allow; tensors share bytes or a name.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedFile(self.path)
        size = self._file.size
        length = struct.unpack("<Q", self._file.read(0, 8).ljust(8, b"\0"))[0]
        if size < 8 or length > size - 8:
            raise InvalidCheckpoint(f"{self.path} is cut off, or no safetensors file")
        if length > LONGEST_HEADER:
            raise InvalidCheckpoint(f"{self.path} has a header of {length} bytes; {LONGEST_HEADER} are read at most")
        header = parse_table(self.path, self._file.read(8, length), "its header", strict=True)
        said = header.pop("__metadata__", {})
        if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
            raise InvalidCheckpoint(f"{self.path}: the header's __metadata__ is not a table of texts")
        self.metadata: dict[str, str] = said
        check_names(self.path, header)
        self._start = 8 + length
        self._entries = {name: self._entry(name, entry, size) for name, entry in header.items()}
        sizes = {name: math.prod(shape) * kind.itemsize for name, (kind, shape, _) in self._entries.items()}
        check_apart(self.path, ((begin, begin + sizes[name], name) for name, (_, _, begin) in self._entries.items()))

    def _entry(self, name: str, entry: object, size: int) -> tuple[np.dtype, tuple[int, ...], int]:
        """Type, shape and first byte of a tensor."""
        said = entry if isinstance(entry, dict) else {}
        kind, shape, place = said.get("dtype"), said.get("shape"), said.get("data_offsets")
        if not isinstance(kind, str) or not is_sizes(shape) or not is_sizes(place) or len(place) != 2:
            raise InvalidCheckpoint(
                f"{self.path}: the header's entry of {name} lacks a type, shape (of at most {MOST_DIMENSIONS} "
                "dimensions) or place"
            )
        begin, end = place
        if kind not in DTYPES:
            raise InvalidCheckpoint(
                f"{self.path}: {name} has elements of type {kind}", hint=f"known: {', '.join(DTYPES)}"
            )
        if end - begin != math.prod(shape) * DTYPES[kind].itemsize:
            raise InvalidCheckpoint(
                f"{self.path}: {name} has {end - begin} bytes, which its type {kind} and shape {shape} do not make"
            )
        if self._start + end > size:
            raise InvalidCheckpoint(f"{self.path} is cut off: {name} ends at byte {self._start + end} of {size}")
        return DTYPES[kind], tuple(shape), self._start + begin

    def __getitem__(self, name: str) -> np.ndarray:
        kind, shape, begin = self._entries[name]
        window = self._file.window(begin, math.prod(shape) * kind.itemsize)
        if begin % kind.itemsize:
            window = np.array(window)
            window.setflags(write=False)
        return shaped(self.path, name, window, kind, shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def save_safetensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> int:
    """Write arrays to a file, which appears under its name when it is whole.

    Parameters
    ----------
    path : of the file; one of that name is replaced.
    tensors : arrays by name, of the types of `DTYPES`.
    metadata : texts by name.

    Returns
    -------
    bytes of all tensors.

    Raises
    ------
    InvalidCheckpoint : an element type that the format lacks; no space, or no leave to write.
    """
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    # Elements of the largest alignment first, so that every tensor begins at a multiple of its own.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name in order:
        array = arrays[name]
        if array.dtype not in _NAMES:
            raise InvalidCheckpoint(f"{name}: safetensors has no element type {array.dtype}", hint=", ".join(DTYPES))
        header[name] = {
            "dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [place, place + array.nbytes],
        }  # fmt: skip
        place += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return place
