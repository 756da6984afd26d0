"""What copies that threads start do, for the interpreter: they land where they begin."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import OutOfBounds
from tilewright.interpreter.collectives import each_offset, write_each
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.state import both
from tilewright.ir import Call, Expr, Intrinsic, Region, register

# Groups of the copies that a thread started, or how many of them are left.
register(Intrinsic("cp_async_commit", 0, None, pure=False))
register(Intrinsic("cp_async_wait", 1, None, pure=False))


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


SPECIAL_CALLS["cp_async"] = SPECIAL_CALLS["cp_async_zfill"] = start_copy
SPECIAL_CALLS["cp_async_commit"] = SPECIAL_CALLS["cp_async_wait"] = landed
