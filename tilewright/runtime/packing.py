"""Packed operands: the bytes of a weight in the order that the compiled kernel reads.

The order is a layout in the final function's attribute ``packed_layouts``: pairs of a parameter's name and
a layout from the logical coordinates of its elements to a position in elements.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import WrongArgumentKind, WrongArgumentShape
from tilewright.ir import Buffer, Function, dtypes
from tilewright.ir.arguments import storage_shape
from tilewright.layout.panels import PanelLayout


def packed_sizes(function: Function) -> dict[Buffer, int]:
    """Bytes of each packed parameter's physical form."""
    layouts = dict(function.attribute("packed_layouts", ()))
    return {
        param: param.dtype.nbytes(layouts[param.name].size)
        for param in function.params
        if isinstance(param, Buffer) and param.packed and param.name in layouts
    }


def pack_operands(function: Function, operands: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Each operand in its packed order, as uint8.

    Raises
    ------
    WrongArgumentKind : a name that is no packed parameter.
    WrongArgumentShape : an array of another shape than declared.
    """
    return [_aligned(_pack(*_parameter(function, name), array)) for name, array in operands.items()]


ALIGNMENT = 64
"""Bytes: a vector that crosses a cache line costs a processor two loads."""
LARGE_PAGE = 2 << 20
"""Bytes: a weight in small pages has more of them than a processor remembers the places of."""


def _aligned(array: np.ndarray) -> np.ndarray:
    """`array` (of bytes) at an address that is a multiple of `ALIGNMENT`, in large pages where it fills some."""
    alignment = LARGE_PAGE if array.size >= 2 * LARGE_PAGE else ALIGNMENT
    room = _pages(array.size + alignment) if alignment == LARGE_PAGE else np.empty(array.size + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    placed = room[start : start + array.size]
    placed[...] = array
    return placed


def _pages(size: int) -> np.ndarray:
    """Fresh bytes from the system, which is asked for large pages: an allocator may hand out small ones that it had
    before."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def unpack_operand(function: Function, name: str, packed: np.ndarray) -> np.ndarray:
    """The row-major array (sub-byte types as bytes) that `pack_operands` made `packed` of."""
    param, layout = _parameter(function, name)
    if layout is None:
        return packed
    elements = dtypes.unpack(packed.reshape(-1).view(np.uint8), param.dtype, layout.size)
    if not param.dtype.is_packed:
        elements = packed.reshape(-1).view(np.uint8).view(param.dtype.numpy)
    return dtypes.pack(elements[_positions(layout)], param.dtype)


def _parameter(function: Function, name: str) -> tuple[Buffer, Any]:
    layouts = dict(function.attribute("packed_layouts", ()))
    for param in function.params:
        if isinstance(param, Buffer) and param.packed and param.name == name:
            return param, layouts.get(name)
    known = [p.name for p in function.params if isinstance(p, Buffer) and p.packed]
    raise WrongArgumentKind(
        f"{function.name} has no packed parameter {name!r}",
        hint=f"packed parameters: {', '.join(known)}" if known else "declare it T.Packed((N, K), dtype)",
    )


def _pack(param: Buffer, layout: PanelLayout, array: np.ndarray) -> np.ndarray:
    shape = storage_shape(param.static_shape, param.dtype)
    if array.shape != shape:
        raise WrongArgumentShape(f"{param.name!r} has shape {array.shape}, expected {shape}")
    if layout is None:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if param.dtype.is_packed:
        elements = dtypes.unpack(array.view(np.uint8), param.dtype, param.static_shape[-1])
    else:
        elements = array.view(param.dtype.numpy)
    packed = np.zeros(layout.size, param.dtype.numpy)
    packed[_positions(layout)] = elements
    return dtypes.pack(packed, param.dtype).reshape(-1).view(np.uint8)


def _positions(layout: PanelLayout) -> np.ndarray:
    """Physical position of every logical element."""
    return layout.permutation()
