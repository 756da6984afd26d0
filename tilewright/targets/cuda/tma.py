"""Tensor maps: what the copy engine must know of a tensor and of the box it moves, checked before the driver sees it.

The driver answers a bad map with one number; `TmaDescriptor` says which limit was passed and by how much.
Sizes run innermost first, as the hardware counts dimensions.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass

from tilewright.errors import InvalidTensorMap
from tilewright.ir import DType, TensorMap
from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.gpu.copies.boxes import Swizzle, moved_as

_TYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "float8_e8m0fnu": 0, "float8_e4m3fnuz": 0,
    "float8_e5m2fnuz": 0, "float8_e4m3b11fnuz": 0, "float6_e2m3fn": 0, "float6_e3m2fn": 0, "uint16": 1, "int16": 1,
    "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 7,
}  # fmt: skip
"""CUtensorMapDataType by dtype.  8-bit floats travel as bytes, and tfloat32 as float32: the engine's own tfloat32 (11)
rounds and flushes subnormals on the way, which no other copy does."""

ROW_BYTES, MAX_RANK, MAX_BOX = ENGINE.unit, ENGINE.rank, ENGINE.box
MAX_EXTENT, MAX_STRIDE = 1 << 32, 1 << 40

_BRINGS_256_BYTES = 3
"""CU_TENSOR_MAP_L2_PROMOTION_L2_256B: what a load brings into the second-level cache."""


@dataclass(frozen=True, slots=True)
class TmaDescriptor:
    """A tensor in global memory and the box of it that one copy moves.

    Attributes
    ----------
    dtype : element type.
    address : of element 0, in bytes.
    extents : size of each dimension in elements, innermost first.
    strides : distance in bytes between neighbours along dimensions 1, 2, ...; the innermost is contiguous.
    box : size of the box in elements, innermost first.
    swizzle : permutation in shared memory.
    element_strides : takes every n-th element along a dimension.
    nan_fill : out-of-bounds elements of floats read as NaN instead of zero.

    Raises
    ------
    InvalidTensorMap : a limit of the copy engine is passed; the message names it.
    """

    dtype: DType
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    element_strides: tuple[int, ...] = ()
    nan_fill: bool = False

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.extents))
        problem = tensor_problem(self.dtype, self.address, self.extents, self.strides) or box_problem(
            self.dtype, self.box, self.swizzle, len(self.extents)
        )
        if problem is None and not all(1 <= step <= 8 for step in self.element_strides):
            problem = f"element strides {self.element_strides} are not within 1 to 8"
        if problem is None and self.nan_fill and not self.dtype.is_float:
            problem = f"{self.dtype} has no NaN to fill with"
        if problem:
            raise InvalidTensorMap(f"the copy engine cannot describe this tensor: {problem}")

    @property
    def box_bytes(self) -> int:
        """Bytes that one load completes on its barrier: the whole box, also where it is out of bounds."""
        taken = (-(-extent // step) for extent, step in zip(self.box, self.element_strides))
        return self.dtype.storage_bytes * math.prod(taken)

    def encode(self) -> bytes:
        """The 128 bytes that the hardware reads.  Raises DriverError without a GPU's driver."""
        driver = require_driver("encoding a tensor map")
        rank = len(self.extents)
        storage = ctypes.create_string_buffer(128 + 64)
        base = ctypes.addressof(storage)
        aligned = (base + 63) // 64 * 64
        result = driver.library.cuTensorMapEncodeTiled(
            ctypes.c_void_p(aligned),
            _TYPES[self.dtype.name],
            rank,
            ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * rank)(*self.extents),
            (ctypes.c_uint64 * max(rank - 1, 1))(*self.strides),
            (ctypes.c_uint32 * rank)(*self.box),
            (ctypes.c_uint32 * rank)(*self.element_strides),
            0,
            int(self.swizzle),
            _BRINGS_256_BYTES,
            int(self.nan_fill),
        )
        driver.check(result, "cuTensorMapEncodeTiled", f"describing {self}")
        return ctypes.string_at(aligned, 128)


def tensor_problem(dtype: DType, address: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
    """Why the copy engine cannot reach a tensor, or None where it can."""
    if dtype.name not in _TYPES:
        return f"{dtype} is not an element type of tensor maps"
    if not 1 <= len(extents) <= MAX_RANK:
        return f"it has {len(extents)} dimensions, and 1 to {MAX_RANK} are possible"
    if len(strides) != len(extents) - 1:
        return f"{len(extents)} dimensions need {len(extents) - 1} strides, {len(strides)} are given"
    if address % 16:
        return f"its address {address:#x} is not a multiple of 16 bytes"
    for dimension, extent in enumerate(extents):
        if not 1 <= extent <= MAX_EXTENT:
            return f"dimension {dimension} has {extent} elements, and 1 to 2^32 are possible"
    for dimension, stride in enumerate(strides, 1):
        if stride % 16 or not 0 < stride < MAX_STRIDE:
            return f"the stride of dimension {dimension}, {stride} bytes, is not a multiple of 16 below 2^40"
    return None


def box_problem(dtype: DType, box: tuple[int, ...], swizzle: Swizzle, rank: int) -> str | None:
    """Why the copy engine cannot move a box, or None where it can."""
    if len(box) != rank:
        return f"the box has {len(box)} dimensions and the tensor {rank}"
    for dimension, extent in enumerate(box):
        if not 1 <= extent <= MAX_BOX:
            return f"the box has {extent} elements along dimension {dimension}, and 1 to {MAX_BOX} are possible"
    row = box[0] * dtype.storage_bytes
    if row % 16:
        return f"the box's rows of {row} bytes are not a multiple of 16 bytes"
    if swizzle is not Swizzle.NONE and row > swizzle.span:
        return f"the box's rows of {row} bytes are longer than the {swizzle.span} bytes of its swizzle"
    return None


def descriptor(node: TensorMap, address: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> TmaDescriptor:
    """What a tensor map of the IR describes in one call.

    Parameters
    ----------
    address : of the tensor, in bytes.
    extents, strides : of the tensor, outermost first, in elements.

    Raises
    ------
    InvalidTensorMap : the tensor cannot be described; the message says why.
    """
    dtype, shared = moved_as(node.tensor.dtype), node.tensor.dtype.per_byte
    if shared > 1:
        extents, strides = (*extents[:-1], extents[-1] // shared), tuple(stride // shared for stride in strides)
    if (
        0 in extents
    ):  # nothing of it is ever moved: calls whose tensors have no elements have kernels of their own (`runtime.facts`)
        extents, strides = (1,) * len(extents), (ROW_BYTES,) * len(strides)
    steps = tuple(stride * dtype.storage_bytes for stride in reversed(strides[:-1]))
    box = tuple(reversed(node.box))
    return TmaDescriptor(dtype, address, tuple(reversed(extents)), steps, box, Swizzle.of(node.swizzle))


@functools.lru_cache(maxsize=4096)
def encoded(descriptor: TmaDescriptor) -> bytes:
    """`TmaDescriptor.encode`, once per distinct tensor and box."""
    return descriptor.encode()
