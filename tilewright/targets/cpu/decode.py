"""`Decode` of packed codes into a tile in panel order: loads, shifts and masks, and whole vectors stored.

For few rows gemms unpack codes themselves (`forward_operands`); a decoded tile pays for many rows. Codes of codebooks
of integers (nf4, e2m1) become bytes by a shuffle, whose table is the codebook; codes that become floats are shuffled as
words.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtypes import FLOAT32, UINT8, UINT64, dtype
from tilewright.ir.nodes import Call, Expr, Let, Load, Seq, Statement, Store, Var, binary, const, index_binary
from tilewright.machine.dot import OperandPlan
from tilewright.machine.tile import dot_instructions, first_match
from tilewright.ops import Decode, static_extents
from tilewright.passes.context import Context
from tilewright.passes.rows import unproven_beginning
from tilewright.passes.tile.processors.plan_operand_layouts import PhysicalOperand, physical_operand
from tilewright.targets.cpu.multiplicands import PanelRight
from tilewright.targets.cpu.operands import inside
from tilewright.targets.cpu.prefetch import Prefetch, prefetch_of
from tilewright.targets.cpu.vectors import is_multiple, loop, reinterpret, splat_const

TABLE = 16
"""Numbers among which a shuffle chooses: codes of at most four bits."""


def lower_decode(op: Decode, context: Context) -> Statement | None:
    """Decode whole loads of codes at once, or None where source and tile are not panels of the same kind."""
    if op.scale is not None or op.zero is not None or (op.codebook is not None and len(op.codebook) > TABLE):
        return None
    source, tile = physical_operand(op.source, context), physical_operand(op.destination, context)
    if (
        source is None
        or tile is None
        or not _same_panels(op, source, tile)
        or unproven_beginning(op.source, context.analyzer)
    ):
        return None
    if tile.memory.dtype == FLOAT32:
        return _unpack_floats(op, source, tile, context) if op.codebook is not None else None
    for instruction in dot_instructions(context.arch):
        if instruction.vector.bits == 8 and instruction.depth == tile.layout.run:
            return _unpack(op, source, tile, OperandPlan(instruction), prefetch_of(context.arch))
    return None


def looked_up(codes: Expr, values: Sequence[float]) -> Expr:
    """The byte that each code, below `TABLE`, stands for."""
    table = bytes(int(value) % 256 for value in values).ljust(TABLE, b"\0")
    halves = (const(int.from_bytes(table[at : at + 8], "little"), UINT64) for at in (0, 8))
    codes = reinterpret(codes, UINT8.with_lanes(codes.dtype.lanes))
    return Call(codes.dtype, "cpu.look_up", (codes, *halves))


def chosen(codes: Expr, values: Sequence[float]) -> Expr:
    """The float that each lane's code stands for; codes of four bits may have others above them."""
    table = [const(float(value), FLOAT32) for value in values] + [const(0.0, FLOAT32)] * (TABLE - len(values))
    return Call(FLOAT32.with_lanes(codes.dtype.lanes), "cpu.choose", (codes, *table))


def _same_panels(op: Decode, source: PhysicalOperand, tile: PhysicalOperand) -> bool:
    """Whether every load of the source becomes whole vectors of the tile, none beyond the end of k."""
    codes, bytes_ = source.layout, tile.layout
    extents = static_extents(op.source)
    if extents is None or extents[-2:] != static_extents(op.destination) or op.source.buffer.scope != "global":
        return False
    n_axis, k_axis = (0, 1) if codes.transposed else (1, 0)
    starts, k = op.source.starts[-2:], extents[-2:][k_axis]
    floats = tile.memory.dtype == FLOAT32
    return (
        (codes.transposed, codes.lanes) == (bytes_.transposed, bytes_.lanes)
        and bytes_.run == (1 if floats else codes.run)
        and bytes_.share == 1
        and op.source.dtype.is_packed
        and (floats or tile.memory.dtype.bits == 8)
        and op.destination.is_whole
        and k % codes.step == 0
        and inside(op.source, k_axis) == k
        and is_multiple(starts[k_axis], codes.step)
        and is_multiple(starts[n_axis], codes.lanes)
    )


def _source(
    op: Decode, source: PhysicalOperand, tile: PhysicalOperand, plan: OperandPlan, prefetch: Prefetch
) -> tuple[PanelRight, Expr]:
    """The codes as micro-kernels read them, and how many of the tile's panels exist."""
    codes = source.layout
    n_axis, k_axis = (0, 1) if codes.transposed else (1, 0)
    starts = op.source.starts[-2:]
    panel = starts[n_axis] // codes.lanes
    first = starts[k_axis] // codes.step
    right = PanelRight(source.memory, codes, op.source.dtype, plan, panel, first, prefetch)
    whole = (inside(op.source, n_axis) + (codes.lanes - 1)) // codes.lanes
    return right, index_binary("min", whole, tile.layout.panels)


def _unpack_floats(op: Decode, source: PhysicalOperand, tile: PhysicalOperand, context: Context) -> Statement | None:
    """Decode codes by a codebook of floats: a word of each load holds the codes of one column, which are shifted to the
    lowest bits one after the other."""
    codes, floats, bits = source.layout, tile.layout, op.source.dtype.bits
    plan = first_match(FLOAT32, FLOAT32, context.arch)
    if plan is None or codes.step * bits != 32 or op.codebook is None:
        return None
    right, exist = _source(op, source, tile, plan, prefetch_of(context.arch))
    words, values = dtype("uint32").with_lanes(codes.lanes), op.codebook

    def one(vector: Expr, position: Expr) -> list[Statement]:
        loaded = Var(words, "loaded")
        whole = Load(right.loaded, source.memory, (right.place(vector, position),))
        statements: list[Statement] = [*right.ahead(vector, position), Let(loaded, reinterpret(whole, words))]
        for k in range(codes.step):
            shift = k % codes.run * 8 + k // codes.run * bits
            number = binary("shr", loaded, splat_const(shift, words)) if shift else loaded
            if 1 << bits < TABLE:
                number = binary("and", number, splat_const((1 << bits) - 1, words))
            place = (vector * floats.loads + position * codes.step) * codes.lanes + k * codes.lanes
            statements.append(Store(tile.memory, (place,), chosen(number, values)))
        return [Seq(tuple(statements))]

    loads = floats.loads // codes.step
    body = loop("vector", 0, exist, lambda vector: loop("position", 0, loads, lambda position: one(vector, position)))
    return Seq((*source.declare, *body), span=op.span)


def _unpack(
    op: Decode, source: PhysicalOperand, tile: PhysicalOperand, plan: OperandPlan, prefetch: Prefetch
) -> Statement:
    codes, bytes_ = source.layout, tile.layout
    right, exist = _source(op, source, tile, plan, prefetch)

    def one(vector: Expr, position: Expr) -> list[Statement]:
        loaded = Var(right.loaded, "loaded")
        statements: list[Statement] = [*right.ahead(vector, position), Let(loaded, right.load(vector, position))]
        for share in range(codes.share):
            place = vector * bytes_.loads + (position * codes.share + share)
            unpacked = right.codes(loaded, share)
            if op.codebook is not None:
                unpacked = looked_up(unpacked, op.codebook)
            stored = reinterpret(
                reinterpret(unpacked, UINT8.with_lanes(unpacked.dtype.lanes)),
                tile.memory.dtype.with_lanes(unpacked.dtype.lanes),
            )
            statements.append(Store(tile.memory, (place * bytes_.load_size,), stored))
        return [Seq(tuple(statements))]

    loads = bytes_.loads // codes.share
    body = loop("vector", 0, exist, lambda vector: loop("position", 0, loads, lambda position: one(vector, position)))
    return Seq((*source.declare, *body), span=op.span)
