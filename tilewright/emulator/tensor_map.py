"""Tensor maps for the emulator: the fields of cuTensorMapEncodeTiled in 128 bytes of our own, read by the core's copy
engine."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.machine import CopyEngine
from tilewright.targets.gpu.copies.boxes import Swizzle
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor

MAGIC = 0x54774D61
"""First word of an encoded map, so that anything else in its place is noticed."""

TYPES = {"int32": 3, "float16": 6, "float32": 7, "tfloat32": 7, "float64": 8, "bfloat16": 9}
"""cuda.h's numbers of types whose arithmetic matters (NaN fill, reductions); others travel as unsigned integers."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A tensor map of a NumPy array, as a kernel's argument.

    Attributes
    ----------
    array : the tensor, contiguous along its last dimension.
    box : extents of the box, outermost first like the array's shape, in elements.
    swizzle : permutation in shared memory.
    element_type : name of the type where NumPy's dtype does not say it (``"bfloat16"`` held as uint16).
    nan_fill : out-of-bounds elements of floats read as NaN instead of zero.
    """

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    element_type: str = ""
    nan_fill: bool = False

    def descriptor(self, engine: CopyEngine, address: int) -> BoxDescriptor:
        """The descriptor of the same tensor at another address.  Raises InvalidTensorMap."""
        return BoxDescriptor(
            engine,
            dtype(self.element_type or self.array.dtype.name),
            address,
            tuple(reversed(self.array.shape)),
            tuple(reversed(self.array.strides[:-1])),
            tuple(reversed(self.box)),
            self.swizzle,
            nan_fill=self.nan_fill,
        )


def encode_map(descriptor: BoxDescriptor) -> bytes:
    """The 128 bytes that the core reads (`TwTensorMap` in interface.h)."""

    def five(values: tuple[int, ...], count: int = 5) -> list[int]:
        return [*values, *[0] * (count - len(values))]

    return struct.pack(
        "<I6B2x4x Q5Q4Q5H5H12x",
        MAGIC,
        len(descriptor.extents),
        descriptor.dtype.storage_bytes,
        TYPES.get(descriptor.dtype.name, 2),
        int(descriptor.swizzle),
        0,
        int(descriptor.nan_fill),
        descriptor.address,
        *five(descriptor.extents),
        *five(descriptor.strides, 4),
        *five(descriptor.box),
        *five(descriptor.element_strides),
    )
