"""What copies, and loads of matrices, do to memory and to the registers of threads, for the interpreter: what threads
start lands where it begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import OutOfBounds, UninitializedRead
from tilewright.interpreter.collectives import each_offset, read_each, whole_warps, write_each
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.state import both
from tilewright.ir import Call, Const, Expr, Region
from tilewright.ir.intrinsics import declare
from tilewright.ir.nodes import WARP
from tilewright.ops.atomic import combine

# Groups of the copies that a thread started, or how many of them are left.
declare("async_copy_commit/0 async_copy_wait/1", pure=False)


def start_copy(state: Evaluator, node: Call) -> int:
    """Each thread's piece, at once; zeros where the third argument says that no bytes are valid."""
    place, source = node.regions
    length = math.prod(extent for extent in source.extents if isinstance(extent, int))
    elements = np.asarray(length)
    valid = node.arguments[2] if "zfill" in node.function else None
    if isinstance(valid, Expr):
        elements = np.asarray(state.value(valid)).astype(np.int64) * 8 // place.dtype.stored_bits
    copied = np.zeros((*state.lanes, length), place.dtype.numpy)
    if np.any(elements > 0):
        with state.masked(both(state.mask, elements > 0)):
            start = Region(source.buffer, source.starts, (*source.extents[:-1], 1))
            memory, first = each_offset(state, start)
            active = state.active[..., None] & (np.arange(length) < elements[..., None])
            ends = [*(state.value(index) for index in source.starts[:-1]),
                    state.value(source.starts[-1]) + elements - 1]  # fmt: skip
            inside = memory.locate(ends)[1]
            if inside is not None and np.any(np.logical_and(~np.asarray(inside), active[..., 0])):
                raise OutOfBounds(memory.name, "[...]", memory.shape, "read")
        offsets = first + np.arange(length) * memory.strides[-1]
        copied = np.where(active, memory.gather(np.where(active, offsets, 0)), copied)
    write_each(state, place, copied)
    return 0


def landed(state: Evaluator, node: Call) -> int:
    """Copies have landed where they were started."""
    return 0


def _load_matrices(transposed: bool) -> Callable[[Evaluator, Call], Any]:
    """Each lane names a row of 16 bytes; the warp's threads get the matrices of 8 x 8 words that they make up."""

    def run(state: Evaluator, node: Call) -> int:
        (registers, address), (count,) = node.regions, node.operands
        assert isinstance(count, Const)
        active = whole_warps(state, node.function)
        size = 16 // address.dtype.numpy.itemsize
        row = Region(address.buffer, address.starts, (*(1 for _ in address.starts[:-1]), size))
        place, offsets = each_offset(state, row)
        lane = np.arange(state.lanes[-1]) % WARP
        needed = active & (lane < 8 * count.value)
        missing = np.logical_and(place.unwritten(offsets), needed[..., None])
        if missing.any():
            raise UninitializedRead(place.name, place.first_text(offsets, missing))
        words = np.ascontiguousarray(place.gather(offsets)).view(np.uint16).reshape(-1, WARP, 8)
        matrices = words[:, : 8 * int(count.value)].reshape(len(words), -1, 8, 8)
        matrices = matrices.swapaxes(-1, -2) if transposed else matrices
        thread = np.arange(WARP)[:, None]
        held = matrices[:, :, thread // 4, 2 * (thread % 4) + np.arange(2)]  # warp, matrix, thread, half of a register
        held = np.ascontiguousarray(held.swapaxes(1, 2)).reshape(*state.lanes, -1)
        write_each(state, registers, held.view(registers.dtype.numpy))
        return 0

    return run


def _add_each(state: Evaluator, node: Call) -> int:
    """Each thread's registers are added to neighbours of a tensor, one thread after the other."""
    place, part = node.regions
    values = read_each(state, part)
    memory, offsets = each_offset(state, replace(place, extents=(*place.extents[:-1], part.extents[-1])))
    active = np.broadcast_to(state.active[..., None], offsets.shape)
    for at, value in zip(offsets[active], values[active], strict=True):
        memory.scatter(at[None], combine("add", memory.gather(at[None]), value[None], memory.dtype))
    return 0


for _name in (f"async_copy{valid}{hint}" for valid in ("", "_zfill") for hint in ("", "_prefetch", "_hint")):
    SPECIAL_CALLS[_name] = start_copy
SPECIAL_CALLS["async_copy_commit"] = SPECIAL_CALLS["async_copy_wait"] = landed
SPECIAL_CALLS["atomic_add_fragment"] = _add_each
SPECIAL_CALLS["fence_proxy_async_shared"] = landed
SPECIAL_CALLS["load_matrix"] = _load_matrices(False)
SPECIAL_CALLS["load_matrix_trans"] = _load_matrices(True)
