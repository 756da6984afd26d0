"""Double buffering of what is loaded once a tile in a persistent loop: the next tile's data is loaded meanwhile.

Before (attention: the queries of a block, beside the ring of keys)::

    queries = shared(float16[1, 128, 128])
    channel("queries", queries, stages=1, ...)
    ...
    acquire("queries", 0)
    copy(Q[block * 128], queries[0, :, :])

After, where shared memory has room beside the boxes of results; `persist_grid` writes the slots' numbers::

    queries = shared(float16[2, 128, 128])
    channel("queries", queries, stages=2, ...)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ir import WARP, WARPGROUP, Channel, Kernel, Role, find, put, substitute
from tilewright.machine.arch import Arch
from tilewright.passes.tile.copies.stage_epilogue import shared_bytes, shared_room

BOXES_BYTES = 16 << 10
"""Shared memory that is left to each warpgroup for the boxes of its results."""


def double_buffered(kernel: Kernel, once: Collection[Channel], arch: Arch) -> tuple[Kernel, list[str]]:
    """The kernel with a second slot for channels that are filled `once` a tile, as far as there is room, and their
    names."""
    deeper: list[str] = []
    groups = max(role.all_warps * WARP // WARPGROUP for role in find(kernel.body, Role))
    for channel in once:
        if any(buffer in dict(kernel.layouts) for buffer in channel.buffers):
            continue
        wider = {one: replace(one, shape=(2, *one.shape[1:])) for one in channel.buffers}
        body = substitute(kernel.body, buffers=wider)
        body = put(body, {one: replace(one, stages=2) for one in find(body, Channel) if one.name == channel.name})
        made = replace(kernel, body=body)
        if shared_bytes(made, arch) + groups * BOXES_BYTES <= shared_room(kernel, arch):
            kernel = made
            deeper.append(channel.name)
    return kernel, deeper
