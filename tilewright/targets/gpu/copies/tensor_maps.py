"""What a copy engine must know of a tensor and of the box that one copy moves, checked before a driver sees it.

Drivers answer a bad map with one number; `BoxDescriptor` says which limit of the engine was passed and by how much.
Sizes run innermost first, as the hardware counts dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import InvalidTensorMap
from tilewright.ir import DType, TensorMap
from tilewright.machine import CopyEngine
from tilewright.targets.gpu.copies.boxes import Swizzle, moved_as


@dataclass(frozen=True, slots=True)
class BoxDescriptor:
    """A tensor in global memory and the box of it that one copy moves.

    Attributes
    ----------
    engine : whose limits hold.
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

    engine: CopyEngine
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
        problem = _tensor_problem(self) or _box_problem(self)
        if problem:
            raise InvalidTensorMap(f"the copy engine cannot describe this tensor: {problem}")

    @property
    def box_bytes(self) -> int:
        """Bytes that one load completes on its barrier: the whole box, also where it is out of bounds."""
        taken = (-(-extent // step) for extent, step in zip(self.box, self.element_strides))
        return self.dtype.storage_bytes * math.prod(taken)


def _tensor_problem(one: BoxDescriptor) -> str | None:
    """Why the copy engine cannot reach a tensor, or None where it can."""
    engine, dtype = one.engine, one.dtype
    if dtype.is_packed or dtype.lanes > 1:
        return f"{dtype} is not an element type of tensor maps"
    if not 1 <= len(one.extents) <= engine.rank:
        return f"it has {len(one.extents)} dimensions, and 1 to {engine.rank} are possible"
    if len(one.strides) != len(one.extents) - 1:
        return f"{len(one.extents)} dimensions need {len(one.extents) - 1} strides, {len(one.strides)} are given"
    if one.address % engine.unit:
        return f"its address {one.address:#x} is not a multiple of {engine.unit} bytes"
    for dimension, extent in enumerate(one.extents):
        if not 1 <= extent <= engine.extent:
            return (
                f"dimension {dimension} has {extent} elements, and 1 to 2^{engine.extent.bit_length() - 1} are possible"
            )
    for dimension, stride in enumerate(one.strides, 1):
        if stride % engine.unit or not 0 < stride < engine.stride:
            limit = f"a multiple of {engine.unit} below 2^{engine.stride.bit_length() - 1}"
            return f"the stride of dimension {dimension}, {stride} bytes, is not {limit}"
    if not all(1 <= step <= engine.step for step in one.element_strides):
        return f"element strides {one.element_strides} are not within 1 to {engine.step}"
    return f"{dtype} has no NaN to fill with" if one.nan_fill and not dtype.is_float else None


def _box_problem(one: BoxDescriptor) -> str | None:
    """Why the copy engine cannot move a box, or None where it can."""
    engine = one.engine
    if len(one.box) != len(one.extents):
        return f"the box has {len(one.box)} dimensions and the tensor {len(one.extents)}"
    for dimension, extent in enumerate(one.box):
        if not 1 <= extent <= engine.box:
            return f"the box has {extent} elements along dimension {dimension}, and 1 to {engine.box} are possible"
    row = one.box[0] * one.dtype.storage_bytes
    if row % engine.unit:
        return f"the box's rows of {row} bytes are not a multiple of {engine.unit} bytes"
    if one.swizzle is not Swizzle.NONE and row > one.swizzle.span:
        return f"the box's rows of {row} bytes are longer than the {one.swizzle.span} bytes of its swizzle"
    return None


def descriptor(
    node: TensorMap, engine: CopyEngine, address: int, extents: tuple[int, ...], strides: tuple[int, ...]
) -> BoxDescriptor:
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
    if 0 in extents:  # nothing of it is ever moved: such calls have kernels of their own (`runtime.facts`)
        extents, strides = (1,) * len(extents), (engine.unit,) * len(strides)
    steps = tuple(stride * dtype.storage_bytes for stride in reversed(strides[:-1]))
    box = tuple(reversed(node.box))
    return BoxDescriptor(engine, dtype, address, tuple(reversed(extents)), steps, box, Swizzle.of(node.swizzle))
