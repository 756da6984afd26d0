"""Rows of a tensor become a right operand in registers: each lane loads 16 bytes, the four lanes of a quad exchange
words.

The operand wants of each row 4 bytes in every lane of a quad; loads of 4 bytes cost several times as much.
"""

from __future__ import annotations

from tilewright.ir import UINT32, perform
from tilewright.ir import nodes as ir
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.ops import Copy, kept_axes, zero
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.copies.copy_candidates import QUAD_COLUMNS

QUAD, UNIT, PAIR = 4, 8, 2
"""Lanes that exchange words, elements that each loads, and elements in a word."""


def lower_quad_copy(copy: Copy, context: Context) -> ir.Statement:
    """The thread code of a copy into the right operand of a matrix instruction."""
    block = context.facts[BLOCK]
    rows, columns = copy.destination.buffer.static_shape
    source = copy.source.buffer
    pairs = source.shape[-1] // PAIR
    words = ir.Buffer(f"{source.name}_words", (*source.shape[:-1], pairs), UINT32, "register", source=source)
    pieces = [
        _piece(copy, words, block, row, column)
        for row in range(0, rows, UNIT)
        for column in range(0, columns, QUAD_COLUMNS)
        if _is_first(copy, block, row, context.arch.warp_size)
    ]
    # An exchange waits for what it exchanges: all loads are on their way before the first one. Where the tensor ends,
    # each load has a condition of its own, which no compiler moves loads past.
    return ir.seq(
        [*(one for loads, _ in pieces for one in loads), *(one for _, exchange in pieces for one in exchange)]
    )


def _is_first(copy: Copy, block: BlockView, row: int, lanes: int) -> bool:
    """Whether the thread that holds this row is in the first warp: the others do the same for theirs."""
    return int(block.layouts[copy.destination.buffer].offset(THREAD, row, 0)) < lanes


def _piece(
    copy: Copy, source: ir.Buffer, block: BlockView, row: int, column: int
) -> tuple[list[ir.Statement], list[ir.Statement]]:
    """Eight rows of a warp, 32 columns: what loads them, and what exchanges words."""
    layout, registers = block.layouts[copy.destination.buffer], block.registers(copy.destination.buffer)
    own_row, _ = layout.held_at(block.thread, int(layout.offset(REGISTER, row, column)))
    quad_lane = block.thread % QUAD
    own_column = quad_lane * UNIT + column
    words = ir.Buffer("words", (QUAD,), UINT32, "register")
    loads: list[ir.Statement] = [
        ir.Allocate(words, span=copy.span),
        *_load(copy, source, block, own_row, own_column, words),
    ]
    made: list[ir.Statement] = [perform("quad_transpose", ir.whole(words), span=copy.span)]
    target = ir.whole(registers)
    for i in range(QUAD):
        place = int(layout.offset(REGISTER, row, column + UNIT * i)) // 2
        made.append(perform("set_word", target, ir.const(place), ir.Load(UINT32, words, (ir.const(i),))))
    return loads, made


def _load(
    copy: Copy, source: ir.Buffer, block: BlockView, row: ir.Expr, column: ir.Expr, words: ir.Buffer
) -> list[ir.Statement]:
    """16 bytes of a row, zeros where the tensor ends."""
    axes = kept_axes(copy.source, 2)
    assert axes is not None
    starts = list(block.visited(copy.source.starts))
    for axis, offset in zip(axes, (row, column), strict=True):
        starts[axis] = starts[axis] + offset
    indices = tuple(block.simplify(start) for start in starts)
    pair = block.simplify(indices[-1] // PAIR)
    loaded = ir.Load(UINT32.with_lanes(QUAD), source, (*indices[:-1], pair))
    moved = ir.Store(words, (ir.const(0),), loaded, span=copy.span)
    guard = block.guard(copy.source.buffer, indices)
    if guard is None:
        return [moved]
    zeros = [ir.Store(words, (ir.const(i),), zero(UINT32)) for i in range(QUAD)]
    return [ir.If(guard, ir.seq(moved), ir.seq(zeros), span=copy.span)]
