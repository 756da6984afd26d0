"""Tiles of another block of the cluster, read into registers: up to 16 bytes at once over the network between
blocks."""

from __future__ import annotations

from tilewright.errors import NotAsynchronous
from tilewright.ir import UINT32, Call, Expr, If, Region, Statement, const, guard_of, index_binary, perform, seq
from tilewright.layout.digits import REGISTER
from tilewright.ops import Copy, kept_axes
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.rows import runs_of
from tilewright.targets.gpu.copies.engine_copy import signalled

WIDEST, NARROWEST = 16, 4
"""Bytes that one access moves."""


def lower_cluster_copy(copy: Copy, context: Context) -> Statement:
    """The thread code of a copy from a peer's shared tile into a fragment."""
    block = context.facts[BLOCK]
    tile, source = copy.destination.buffer, copy.source
    layout, registers = block.layouts[tile], block.registers(tile)
    assert copy.rank is not None
    (rank,) = block.visited([copy.rank])
    width = _width(copy, block)
    axes = kept_axes(source, len([extent for extent in tile.static_shape if extent != 1]))
    if width is None or axes is None:
        raise NotAsynchronous(
            f"elements of {source.dtype} cannot be read from another block here",
            span=copy.span,
            hint="read rows of 4-byte elements",
        )
    starts = block.visited(source.starts)
    made: list[Statement] = []
    for register in range(0, registers.size, width):
        found = layout.held_at(block.thread, register)
        tests = [index_binary("lt", at, extent) for at, extent in zip(found, tile.static_shape, strict=True)]
        inside = guard_of(test for test in tests if not block.analyzer.prove(test))
        kept = [value for value, extent in zip(found, tile.static_shape, strict=True) if extent != 1]
        offsets: list[Expr] = [const(0) for _ in starts]
        for axis, value in zip(axes, kept, strict=True):
            offsets[axis] = value
        place = block.shared(Region(source.buffer, tuple(starts), source.extents), offsets)
        address = Call(UINT32, "peer_address", (place, rank))
        target = Region(registers, (const(register),), (width,))
        load: Statement = perform("load_cluster_fragment", const(width), target, address, span=copy.span)
        if inside is not None:  # some threads hold nothing
            load = If(inside, seq(load), span=copy.span)
        made.append(load)
    return seq(made)


def lower_cluster_send(copy: Copy, context: Context) -> Statement:
    """One thread's copy of the bytes of a shared tile to one of another block, which completes them on a barrier
    there."""
    block = context.facts[BLOCK]
    assert copy.rank is not None
    barrier = signalled(copy, context)
    (rank,) = block.visited([copy.rank])
    to, source = block.piece(copy.destination), block.piece(copy.source)
    there = [Call(UINT32, "peer_address", (place, rank)) for place in (to, barrier)]
    size = const(copy.source.dtype.nbytes(copy.source.size))
    return perform("bulk_copy_cluster", there[0], source, size, there[1], span=copy.span)


def _width(copy: Copy, block: BlockView) -> int | None:
    """Elements that one access moves; None where not even one is a whole word."""
    source, bits = copy.source, copy.source.dtype.bits
    if copy.source.dtype != copy.destination.dtype or bits > 32 or 32 % bits:
        return None
    digits = block.layouts[copy.destination.buffer].digits[-1]
    memory = block.layouts.get(source.buffer)
    run = digits[0].extent if digits and digits[0].place == REGISTER and digits[0].stride == 1 else 1
    width = WIDEST * 8 // bits
    while width * bits >= NARROWEST * 8:
        aligned = run % width == 0 and block.analyzer.divides(source.starts[-1], width)
        if aligned and (memory is None or runs_of(memory, width)) and source.buffer.static_shape[-1] % width == 0:
            return width
        width //= 2
    return None
