"""`Decode` of packed codes into a tile in panel order: loads, shifts and masks, and whole vectors stored.

Where few rows are multiplied, gemms unpack codes themselves (`forward_operands`); a tile pays when many do.  Codes that stand
for other whole numbers (nf4, e2m1) become bytes by a shuffle, whose table is the codebook.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtypes import UINT8, UINT64
from tilewright.ir.nodes import Call, Expr, Let, Seq, Statement, Store, Var, const, index_binary
from tilewright.machine.dot import OperandPlan
from tilewright.ops.base import static_extents
from tilewright.ops.decode import Decode
from tilewright.passes.context import Context
from tilewright.passes.tile.beginnings import unproven_beginning
from tilewright.passes.tile.choose_products import dot_instructions
from tilewright.passes.tile.plan_operand_layouts import PhysicalOperand, physical_operand
from tilewright.targets.cpu.multiplicands import PanelRight
from tilewright.targets.cpu.operands import inside
from tilewright.targets.cpu.requests import Requests, requests_of
from tilewright.targets.cpu.vectors import add, is_multiple, loop, mul, reinterpret

TABLE = 16
"""Bytes among which a shuffle chooses: codes of at most four bits."""


def lower_decode(op: Decode, context: Context) -> Statement | None:
    """Whole loads of codes at once, or None where source and tile are not panels of the same kind."""
    if op.scale is not None or op.zero is not None or (op.codebook is not None and len(op.codebook) > TABLE):
        return None
    source, tile = physical_operand(op.source, context), physical_operand(op.destination, context)
    if (
        source is None
        or tile is None
        or not _alike(op, source, tile)
        or unproven_beginning(op.source, context.analyzer)
    ):
        return None
    for instruction in dot_instructions(context.arch):
        if instruction.vector.bits == 8 and instruction.depth == tile.layout.run:
            return _unpack(op, source, tile, OperandPlan(instruction), requests_of(context.arch))
    return None


def looked_up(codes: Expr, values: Sequence[float]) -> Expr:
    """The byte that each code, below `TABLE`, stands for."""
    table = bytes(int(value) % 256 for value in values).ljust(TABLE, b"\0")
    halves = (const(int.from_bytes(table[at : at + 8], "little"), UINT64) for at in (0, 8))
    codes = reinterpret(codes, UINT8.with_lanes(codes.dtype.lanes))
    return Call(codes.dtype, "cpu.look_up", (codes, *halves))


def _alike(op: Decode, source: PhysicalOperand, tile: PhysicalOperand) -> bool:
    """Whether every load of the source becomes whole vectors of the tile, none beyond the end of k."""
    codes, bytes_ = source.layout, tile.layout
    extents = static_extents(op.source)
    if extents is None or extents[-2:] != static_extents(op.destination) or op.source.buffer.scope != "global":
        return False
    n_axis, k_axis = (0, 1) if codes.transposed else (1, 0)
    starts, k = op.source.starts[-2:], extents[-2:][k_axis]
    return (
        (codes.transposed, codes.lanes, codes.run) == (bytes_.transposed, bytes_.lanes, bytes_.run)
        and bytes_.share == 1
        and op.source.dtype.is_packed
        and tile.memory.dtype.bits == 8
        and op.destination.is_whole
        and k % codes.step == 0
        and inside(op.source, k_axis) == k
        and is_multiple(starts[k_axis], codes.step)
        and is_multiple(starts[n_axis], codes.lanes)
    )


def _unpack(
    op: Decode, source: PhysicalOperand, tile: PhysicalOperand, plan: OperandPlan, requests: Requests
) -> Statement:
    codes, bytes_ = source.layout, tile.layout
    n_axis, k_axis = (0, 1) if codes.transposed else (1, 0)
    starts = op.source.starts[-2:]
    panel = index_binary("floordiv", starts[n_axis], codes.lanes)
    first = index_binary("floordiv", starts[k_axis], codes.step)
    right = PanelRight(source.memory, codes, op.source.dtype, plan, panel, first, requests)
    exist = index_binary(
        "min", index_binary("floordiv", add(inside(op.source, n_axis), codes.lanes - 1), codes.lanes), bytes_.panels
    )

    def one(vector: Expr, position: Expr) -> list[Statement]:
        loaded = Var(right.loaded, "loaded")
        statements: list[Statement] = [*right.ahead(vector, position), Let(loaded, right.load(vector, position))]
        for share in range(codes.share):
            place = add(mul(vector, bytes_.loads), add(mul(position, codes.share), share))
            unpacked = right.codes(loaded, share)
            if op.codebook is not None:
                unpacked = looked_up(unpacked, op.codebook)
            stored = reinterpret(
                reinterpret(unpacked, UINT8.with_lanes(unpacked.dtype.lanes)),
                tile.memory.dtype.with_lanes(unpacked.dtype.lanes),
            )
            statements.append(Store(tile.memory, (mul(place, bytes_.load_size),), stored))
        return [Seq(tuple(statements))]

    loads = bytes_.loads // codes.share
    body = loop("vector", 0, exist, lambda vector: loop("position", 0, loads, lambda position: one(vector, position)))
    return Seq((*source.declare, *body), span=op.span)
