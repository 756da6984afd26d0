"""Rows of a tensor become a right operand in registers: each lane loads 16 bytes, the four lanes of a quad exchange words.

The operand wants of each row 4 bytes in every lane of a quad; loads of 4 bytes cost several times as much.
"""

from __future__ import annotations

from tilewright.ir.dtypes import BOOL, UINT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Load,
    Region,
    Statement,
    Store,
    Var,
    const,
    index_binary,
    seq,
)
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.ops.base import kept_axes, zero
from tilewright.ops.copy import Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.select_copies import QUAD_COLUMNS

QUAD, UNIT = 4, 8
"""Lanes that exchange words, and elements that each loads."""


def lower_quad_copy(copy: Copy, context: Context) -> Statement:
    """The thread code of a copy into the right operand of a matrix instruction."""
    block: BlockView = context.facts[BLOCK]
    rows, columns = copy.destination.buffer.static_shape
    made = [
        statement
        for row in range(0, rows, UNIT)
        for column in range(0, columns, QUAD_COLUMNS)
        if _is_first(copy, block, row)
        for statement in _piece(copy, block, row, column)
    ]
    return seq(made)


def _is_first(copy: Copy, block: BlockView, row: int) -> bool:
    """Whether the thread that holds this row is in the first warp: the others do the same for theirs."""
    return int(block.layout(copy.destination.buffer).offset(THREAD, row, 0)) < 32


def _piece(copy: Copy, block: BlockView, row: int, column: int) -> list[Statement]:
    """Eight rows of a warp, 32 columns."""
    layout, registers = block.layout(copy.destination.buffer), block.registers(copy.destination.buffer)
    places = {THREAD: block.thread, REGISTER: const(int(layout.offset(REGISTER, row, column)))}
    own_row, _ = layout.coordinate_expressions(**{place: places[place] for place in layout.places})
    quad_lane = index_binary("floormod", block.thread, QUAD)
    own_column = index_binary("add", index_binary("mul", quad_lane, UNIT), column)
    part = Buffer("row_part", (UNIT,), registers.dtype, "register")
    words = Buffer("words", (QUAD,), UINT32, "register")
    made: list[Statement] = [Allocate(part, span=copy.span), *_load(copy, block, own_row, own_column, part)]
    made.append(Allocate(words, span=copy.span))
    whole = Region(part, (const(0),), (UNIT,))
    made += [Store(words, (const(i),), Call(UINT32, "get_word", (whole, const(i)))) for i in range(QUAD)]
    made.append(Evaluate(Call(BOOL, "quad_transpose", (Region(words, (const(0),), (QUAD,)),)), span=copy.span))
    target = Region(registers, (const(0),), (registers.size,))
    for i in range(QUAD):
        place = int(layout.offset(REGISTER, row, column + UNIT * i)) // 2
        made.append(Evaluate(Call(BOOL, "set_word", (target, const(place), Load(UINT32, words, (const(i),))))))
    return made


def _load(copy: Copy, block: BlockView, row: Expr, column: Expr, part: Buffer) -> list[Statement]:
    """16 bytes of a row, zeros where the tensor ends."""
    source = copy.source
    axes = kept_axes(source, 2)
    assert axes is not None
    starts = list(block.visited(source.starts))
    for axis, offset in zip(axes, (row, column), strict=True):
        starts[axis] = index_binary("add", starts[axis], offset)
    indices = tuple(block.simplify(start) for start in starts)
    moved = Store(part, (const(0),), Load(part.dtype.with_lanes(UNIT), source.buffer, indices), span=copy.span)
    guard = block.guard(source.buffer, indices)
    if guard is None:
        return [moved]
    lane = Var(indices[0].dtype, "i")
    fill = seq(Store(part, (lane,), zero(part.dtype)))
    zeros = For(lane, const(0, lane.dtype), const(UNIT, lane.dtype), const(1, lane.dtype), fill, "unroll")
    return [If(guard, seq(moved), seq(zeros), span=copy.span)]
