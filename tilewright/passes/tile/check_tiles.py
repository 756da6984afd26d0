"""Warns where a block's tiles do not fit the machine it is compiled for.

On a machine without shared memory tiles live in a core's caches: tiles larger than its second level work, but
every pass over them goes to slower memory.
"""

from __future__ import annotations

from tilewright.ir.nodes import Allocate, Function, Kernel
from tilewright.ir.visitor import kernels, walk
from tilewright.passes.context import Context

TILE_SCOPES = ("shared", "fragment", "local")


def check_tiles(function: Function, context: Context) -> Function:
    """Leave a warning for each kernel whose tiles exceed a core's second-level cache."""
    for kernel in kernels(function):
        _check(kernel, context)
    return function


def _check(kernel: Kernel, context: Context) -> None:
    tiles = [
        node for node in walk(kernel.body)
        if isinstance(node, Allocate) and node.buffer.scope in TILE_SCOPES and node.buffer.source is None
    ]  # fmt: skip
    sizes = {tile: tile.buffer.dtype.nbytes(tile.buffer.size) for tile in tiles}
    total = sum(sizes.values())
    if total <= context.arch.l2_bytes:
        return
    largest = max(tiles, key=sizes.__getitem__)
    shape = " x ".join(map(str, largest.buffer.shape))
    context.warn(
        f"the tiles of a block take {total >> 10} KiB, more than the {context.arch.l2_bytes >> 10} KiB of a core's "
        f"second-level cache; the largest is {largest.buffer.name}, {shape} of {largest.buffer.dtype} "
        f"({sizes[largest] >> 10} KiB): make it smaller",
        largest.span,
    )
