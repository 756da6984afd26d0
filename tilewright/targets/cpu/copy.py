"""`T.copy` into a tile in panel order: whole vectors at a time where the source has them, elements at the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.memory import View
from tilewright.ir import FLOAT32, INT32, INT64, DType, guard_of
from tilewright.ir import nodes as ir
from tilewright.ops import Copy, full_index, static_extents
from tilewright.passes.context import Context
from tilewright.passes.rows import unproven_beginning
from tilewright.passes.tile.processors.plan_operand_layouts import PhysicalOperand, physical_operand
from tilewright.targets.cpu.operands import inside
from tilewright.targets.cpu.vectors import load_vector, loop

WORD = 4
"""Bytes that one lane of a panel holds in a step."""


def lower_copy(op: Copy, context: Context) -> ir.Statement | None:
    """Vectors packed at once, or None where the tile lies row by row or no such way exists."""
    physical = physical_operand(op.destination, context)
    if physical is None or op.destination.buffer.packed or not _is_whole_tile(op.destination, physical):
        return None
    if len(op.source.extents) < 2 or op.source.extents[-2:] != op.destination.extents[-2:] or op.source.buffer.packed:
        return None
    strides = op.source.buffer.strides
    if op.source.dtype.is_packed or (strides is not None and strides[-1] != 1):
        return None
    found = _method(op, physical)
    return None if found is None else _Packing(op, physical, context, *found).statement()


def _is_whole_tile(region: ir.Region, physical: PhysicalOperand) -> bool:
    """Whether the region is one tile, of several in a workspace."""
    leading = len(physical.leading)
    inner = ir.Region(region.buffer, region.starts[leading:], region.extents[leading:])
    zero = all(ir.is_literal(start, 0) for start in inner.starts)
    return zero and inner.extents == region.buffer.shape[leading:] and all(e == 1 for e in region.extents[:leading])


def _method(op: Copy, physical: PhysicalOperand) -> tuple[str, int, int] | None:
    """The way to pack one block: its name, and the block's rows and columns in the source's order."""
    layout, source, stored = physical.layout, op.source.dtype, physical.memory.dtype
    lanes, run = layout.lanes, layout.run
    bits = stored.bits * run
    if layout.share != 1 or stored.is_packed:
        return None
    if layout.transposed:
        if source == stored and bits == 8 * WORD and lanes in (4, 8, 16):
            return "words", lanes, lanes * run
        if source.name == "bfloat16" and stored == FLOAT32 and run == 1 and lanes in (4, 8, 16):
            return "wide", lanes, 2 * lanes
        return None
    if run == 1:
        return "vectors", 1, lanes
    if source == stored and bits == 8 * WORD and lanes in (4, 8, 16) and run in (2, 4):
        return "bytes" if run == 4 else "pairs", run, lanes
    return None


class _Packing:
    """One copy: blocks that lie wholly inside the source at once, the others element by element."""

    def __init__(
        self, op: Copy, physical: PhysicalOperand, context: Context, method: str, rows: int, columns: int
    ) -> None:
        self.op, self.physical, self.method, self.rows, self.columns = op, physical, method, rows, columns
        self.before: list[ir.Statement] = []
        self.conditions = unproven_beginning(op.source, context.analyzer)

    def statement(self) -> ir.Statement | None:
        extents = static_extents(self.op.destination)
        assert extents is not None
        tall, wide = extents[-2:]
        if tall % self.rows or wide % self.columns:
            return None
        limits = inside(self.op.source, 0), inside(self.op.source, 1)
        source = self._flat_source()

        def blocks(row: ir.Expr) -> list[ir.Statement]:
            return loop("column", 0, wide, lambda at: self._block(source, row, at, limits), step=self.columns)

        body = loop("row", 0, tall, blocks, step=self.rows)
        return ir.Seq((*self.physical.declare, *self.before, *body), span=self.op.span)

    def _flat_source(self) -> ir.Buffer:
        """The source's memory, read only where a block lies inside: nobody need guard it."""
        buffer = self.op.source.buffer
        scope = "local" if buffer.scope == "global" else buffer.scope
        view = ir.Buffer(f"{buffer.name}_rows", (ir.product(buffer.shape),), buffer.dtype, scope, source=buffer)
        self.before.append(ir.Allocate(view))
        return view

    def _block(
        self, source: ir.Buffer, row: ir.Expr, column: ir.Expr, limits: tuple[ir.Extent, ir.Extent]
    ) -> list[ir.Statement]:
        whole = [ir.Seq(tuple(self._pack(source, row, column)))]
        ends = (row + self.rows, limits[0]), (column + self.columns, limits[1])
        fits = [ir.index_binary("le", end, limit) for end, limit in ends if not isinstance(limit, int)]
        condition = guard_of([*self.conditions, *fits])
        if condition is None:
            return list(whole)
        return [ir.If(condition, ir.Seq(tuple(whole)), ir.Seq(tuple(self._elements(row, column))))]

    def _elements(self, row: ir.Expr, column: ir.Expr) -> list[ir.Statement]:
        def one(i: ir.Expr, j: ir.Expr) -> list[ir.Statement]:
            at = row + i, column + j
            value = ir.Load(self.op.source.dtype, self.op.source.buffer, full_index(self.op.source, at))
            to = full_index(self.op.destination, at)
            return [ir.Store(self.op.destination.buffer, to, ir.cast(value, self.op.destination.dtype))]

        return loop("i", 0, self.rows, lambda i: loop("j", 0, self.columns, lambda j: one(i, j)))

    def _pack(self, source: ir.Buffer, row: ir.Expr, column: ir.Expr) -> list[ir.Statement]:
        memory, layout = self.physical.memory, self.physical.layout
        stride = self._row_stride()
        starts = self.op.source.starts
        at: ir.Expr = ir.const(0)
        strides = self.op.source.buffer.strides or ir.row_major_strides(self.op.source.buffer.shape)
        for start, step in zip(starts, strides, strict=True):
            at = at + start * step
        at = at + (row * stride + column)
        place = self.physical.position((*self.op.destination.starts[: len(self.physical.leading)], row, column))
        if self.method == "vectors":
            wide = memory.dtype.with_lanes(layout.lanes)
            return [ir.Store(memory, (place,), ir.cast(load_vector(source, layout.lanes, at), wide))]
        size = (
            layout.lanes
            * WORD
            * (layout.lanes if self.method == "words" else 2 * layout.lanes if self.method == "wide" else 1)
        )
        to = ir.Region(memory, (place,), (size // memory.dtype.storage_bytes,))
        from_ = ir.Region(source, (at,), (1,))
        bytes_ = ir.cast(ir.expr(stride), INT64) * source.dtype.storage_bytes
        call = ir.Call(INT32.with_lanes(layout.lanes), f"cpu.pack_{self.method}", (to, from_, bytes_))
        return [ir.Evaluate(call)]

    def _row_stride(self) -> ir.Extent:
        buffer = self.op.source.buffer
        return buffer.strides[-2] if buffer.strides is not None else buffer.shape[-1]


# Meaning in NumPy -------------------------------------------------------------------------------


def _interpreted(
    arrange: Callable[[np.ndarray, int], np.ndarray], rows: Callable[[int], int], run: Callable[[int, DType], int]
) -> Callable[[Evaluator, ir.Call], int]:
    """How the interpreter packs: rows gathered from the source, arranged, scattered to the memory."""

    def call(state: Evaluator, node: ir.Call) -> int:
        (to, from_), (stride,) = node.regions, node.operands
        lanes = node.dtype.lanes
        source, target = state.place(from_.buffer), state.place(to.buffer)
        assert isinstance(source, View) and isinstance(target, View)
        count, width = rows(lanes), run(lanes, from_.dtype)
        step = int(state.uniform(stride)) // from_.dtype.storage_bytes
        offsets = int(state.uniform(from_.starts[0])) + np.arange(count)[:, None] * step + np.arange(width)
        packed = arrange(source.gather(offsets), lanes).reshape(-1)
        target.scatter(int(state.uniform(to.starts[0])) + np.arange(packed.size), packed)
        return 0

    return call


def _by_words(values: np.ndarray, lanes: int) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(lanes, lanes, -1).swapaxes(0, 1))


SPECIAL_CALLS["cpu.pack_words"] = _interpreted(
    _by_words, lambda lanes: lanes, lambda lanes, dtype: lanes * WORD // dtype.storage_bytes
)
SPECIAL_CALLS["cpu.pack_wide"] = _interpreted(
    lambda v, lanes: v.T.astype(np.float32), lambda lanes: lanes, lambda lanes, _: 2 * lanes
)
SPECIAL_CALLS["cpu.pack_bytes"] = _interpreted(lambda v, lanes: v.T, lambda _: WORD, lambda lanes, _: lanes)
SPECIAL_CALLS["cpu.pack_pairs"] = _interpreted(lambda v, lanes: v.T, lambda _: 2, lambda lanes, _: lanes)
