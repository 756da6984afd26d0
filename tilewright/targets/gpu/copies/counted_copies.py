"""Copies from tensors into shared memory that no register holds on their way: waves start them, and count what is left.

A wave's instruction writes side by side what its lanes read, whatever they read. So threads take the pieces of a tile
in the order in which they lie in shared memory, and a swizzle stands in the place that each reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import INT32, UINT32, Intrinsic, register, substitute
from tilewright.ir import nodes as ir
from tilewright.layout import MEMORY, Layout, shared_rows
from tilewright.machine.instructions import AsyncCopy
from tilewright.ops import CP_ASYNC, Copy, kept_axes
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.pipelines.inject_pipeline import GROUPS
from tilewright.targets.gpu.copies.started_copies import piece_width, place_of, source_of, start, wait

register(Intrinsic("first_of_wave", 0, None))

MOST_PENDING = 63
"""What the counter of loads that are under way can be compared with."""


def lower_copy(copy: Copy, context: Context) -> ir.Statement | None:
    """The thread code of a copy that was chosen to be asynchronous; one without a token waits for itself."""
    instruction = context.arch.async_copy
    if copy.schedule.prefer != CP_ASYNC or instruction is None:
        return None
    block = context.facts[BLOCK]
    started = _started(copy, instruction, block)
    return started if copy.token is not None else ir.seq(started, wait(0))


def lower_commit(commit: ir.Commit, context: Context) -> ir.Seq:
    """The machine counts copies, and has no groups of them."""
    return ir.seq()


def lower_wait(asked: ir.Wait, context: Context) -> ir.Statement:
    """Waits until only those copies are under way that the groups hold which may be.

    What an author begins by hand is waited for altogether. Where the machine starts no copies, all has happened where
    it began.
    """
    instruction = context.arch.async_copy
    if instruction is None or not asked.token.startswith(CP_ASYNC):
        return ir.seq()
    groups = context.facts[GROUPS].get(asked.token, ())
    left = _instructions(groups, asked.pending, instruction, context.facts[BLOCK])
    if not left or asked.full is None:
        return wait(left)
    (full,) = context.facts[BLOCK].visited([asked.full])
    return ir.If(full, ir.seq(wait(left)), ir.seq(wait(0)), span=asked.span)


def _instructions(groups: Sequence[Sequence[Copy]], pending: int, instruction: AsyncCopy, block: BlockView) -> int:
    """How many instructions each wave is sure to have executed for the last `pending` groups, wherever a step is."""
    if not groups:
        return 0
    counts = [sum(_iterations(copy, instruction, block)[1] for copy in group) for group in groups]
    runs = (sum(counts[(first + i) % len(counts)] for i in range(pending)) for first in range(len(counts)))
    return min(*runs, MOST_PENDING)


def _iterations(copy: Copy, instruction: AsyncCopy, block: BlockView) -> tuple[int, int]:
    """Elements of a piece, and in how many iterations every thread has one."""
    width = piece_width(copy, instruction, block, None)
    return width, math.prod(copy.destination.static_tile_shape) // width // block.threads


def _started(copy: Copy, instruction: AsyncCopy, block: BlockView) -> ir.Statement:
    """Each thread's pieces of a tile, in the order of shared memory."""
    width, _ = _iterations(copy, instruction, block)
    layout = _slot(copy.destination, block)
    pieces = layout.size // width
    iterations = -(-pieces // block.threads)
    iteration = ir.Var(INT32, "piece")
    with block.analyzer.scope():
        block.analyzer.bind_extent(iteration, iterations)
        piece = iteration * block.threads + block.thread
        inside = ir.index_binary("lt", piece, pieces)
        always = block.analyzer.prove(inside)
        block.analyzer.assume(inside)
        offset = block.simplify(piece * width)
        tile = _elements(layout, piece, width, block)
        statement = _piece(copy, block, tile, _place(copy.destination, block, tile, offset, width))
    body: ir.Statement = statement if always else ir.If(block.simplify(inside), ir.seq(statement), span=copy.span)
    return ir.counted(iteration, iterations, ir.seq(body), "unroll", span=copy.span)


def _elements(layout: Layout, piece: ir.Expr, width: int, block: BlockView) -> list[ir.Expr]:
    """The first element of a piece: which row of the swizzle it lies in, and where there, are known apart."""
    swizzle = layout.swizzle
    if swizzle is None:
        found = layout.coordinate_expressions(**{MEMORY: piece * width})
        return [block.simplify(one) for one in found]
    run = 1 << swizzle.base + swizzle.bits
    row, place = ir.Var(INT32, "row"), ir.Var(INT32, "place")
    block.analyzer.bind_extent(row, layout.size // run)
    block.analyzer.bind_extent(place, run)
    plain = replace(layout, swizzle=None)
    found = plain.coordinate_expressions(**{MEMORY: row * run + place})
    of_row = piece // (run // width)
    before = piece % (run // width) * width
    deciding = of_row // (1 << swizzle.shift - swizzle.bits)
    chunk = deciding % (1 << swizzle.bits)
    at = ir.index_binary("xor", before, chunk * (1 << swizzle.base))
    names = {row: block.simplify(of_row), place: block.simplify(at)}
    return [block.simplify(substitute(block.simplify(one), names)) for one in found]


def _slot(to: ir.Region, block: BlockView) -> Layout:
    """How a tile lies within its slot of memory."""
    buffer = to.buffer
    layout = block.layouts.get(buffer) or shared_rows(buffer.static_shape, buffer.dtype.stored_bits, None)
    kept = kept_axes(to, len(to.tile_shape))
    assert kept is not None
    slot = Layout(tuple(layout.digits[axis] for axis in kept), swizzle=layout.swizzle)
    swizzle = slot.swizzle
    assert swizzle is None or slot.size % swizzle.period == 0, layout
    return slot


def _place(to: ir.Region, block: BlockView, tile: Sequence[ir.Expr], offset: ir.Expr, width: int) -> ir.Region:
    """The place of a piece, behind the beginning of its slot; rows that lie as declared keep their dimensions."""
    if block.layouts.get(to.buffer) is None:
        return place_of(to, block, tile, width)
    first = block.shared(to, [ir.const(0)] * len(to.extents))
    (start,) = first.starts
    return ir.Region(first.buffer, (block.simplify(start + offset),), (width,))


def _piece(copy: Copy, block: BlockView, tile: Sequence[ir.Expr], place: ir.Region) -> ir.Evaluate:
    """The copy of a piece that is whole in its tensor, or altogether out of bounds: zeros."""
    width = place.extents[-1]
    assert isinstance(width, int)
    source, guard = source_of(copy.source, block, tile, width)
    whole = ir.const(source.dtype.nbytes(width), UINT32)
    valid = None if guard is None else ir.Select(UINT32, guard, whole, ir.const(0, UINT32))
    return start(place, source, valid, copy.span)
