"""Warns where a block's tiles do not fit the machine it is compiled for, or are never given a first value.

On a machine without shared memory tiles live in a core's caches: tiles larger than its second level work, but
every pass over them goes to slower memory.  A tile that is only added to sums onto whatever memory held.
"""

from __future__ import annotations

from tilewright.ir.nodes import Allocate, Buffer, Call, Expr, Function, Kernel, Store, TileOperator
from tilewright.ir.walking import declared, find, kernels, walk
from tilewright.passes.context import Context

TILE_SCOPES = ("shared", "fragment", "local")


def check_tiles(function: Function, context: Context) -> Function:
    """Leave a warning for tiles without a first value, and for kernels whose tiles exceed a second-level cache."""
    for kernel in kernels(function):
        _check_first_values(kernel, context)
        _check_sizes(kernel, context)
    return function


def _check_first_values(kernel: Kernel, context: Context) -> None:
    """Warn of each tile that operators read and every writer of which reads it too.

    What may write in ways not seen here (calls, views, a clearing that is decided at run time) counts as a first value.
    """
    given: set[Buffer] = set()
    readers: dict[Buffer, TileOperator] = {}
    for node in walk(kernel.body, enter=lambda node: not isinstance(node, TileOperator)):
        if isinstance(node, TileOperator):
            read = {region.buffer for region in node.effects().reads}
            written = {region.buffer for region in node.effects().writes}
            given |= written - read
            given |= {view.source for view in read | written if view.source is not None}
            if isinstance(getattr(node, "clear", None), Expr):
                given |= read
            for buffer in read:
                readers.setdefault(buffer, node)
        elif isinstance(node, Store):
            given.add(node.buffer)
        elif isinstance(node, Call):
            given |= {region.buffer for region in node.regions}
        elif isinstance(node, Buffer) and node.source is not None:
            given.add(node.source)
    for buffer, reader in readers.items():
        if buffer.scope in TILE_SCOPES and buffer.source is None and buffer not in given:
            context.warn(
                f"{buffer.name} is read here, but nothing gives it a first value: write it first, for example with "
                f"T.clear({buffer.name})",
                reader.span,
            )


def _check_sizes(kernel: Kernel, context: Context) -> None:
    sizes = {tile: tile.dtype.nbytes(tile.size) for tile in declared(kernel.body, *TILE_SCOPES)}
    total = sum(sizes.values())
    if total <= context.arch.l2_bytes:
        return
    largest = max(sizes, key=sizes.__getitem__)
    shape = " x ".join(map(str, largest.shape))
    context.warn(
        f"the tiles of a block take {total >> 10} KiB, more than the {context.arch.l2_bytes >> 10} KiB of a core's "
        f"second-level cache; the largest is {largest.name}, {shape} of {largest.dtype} "
        f"({sizes[largest] >> 10} KiB): make it smaller",
        next(one.span for one in find(kernel.body, Allocate) if one.buffer is largest),
    )
