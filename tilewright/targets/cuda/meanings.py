"""What copies, and loads of matrices, do to the registers of threads, for the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import UninitializedRead
from tilewright.interpreter.collectives import each_offset, read_each, whole_warps, write_each
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.ir.nodes import WARP, Call, Const, Region
from tilewright.ops.atomic import combine
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.instructions import matrix_instructions
from tilewright.targets.gpu.copy_meanings import landed, start_copy
from tilewright.targets.gpu.meanings import register_products


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


SPECIAL_CALLS["atomic_add_fragment"] = _add_each
SPECIAL_CALLS["cp_async_prefetch"] = SPECIAL_CALLS["cp_async_zfill_prefetch"] = start_copy
SPECIAL_CALLS["cp_async_hint"] = SPECIAL_CALLS["cp_async_zfill_hint"] = start_copy
SPECIAL_CALLS["fence_proxy_async_shared"] = landed
SPECIAL_CALLS["ldmatrix"] = _load_matrices(False)
SPECIAL_CALLS["ldmatrix_trans"] = _load_matrices(True)
for _arch in ARCHITECTURES.values():
    register_products(matrix_instructions(_arch))
