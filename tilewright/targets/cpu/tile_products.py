"""`T.gemm` by the matrix unit of a processor: the loops around products of tiles.

Thirty-two rows by two panels of columns are kept in four accumulators while k runs; sixteen rows or fewer that are left
take four panels. Totals that are elements of c as they are come from c and return to it; others (scaled, shifted, of
another type, at the end of the columns) leave through a small tile of the block's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.ir import nodes as ir
from tilewright.machine import OperandPlan, TilePlan
from tilewright.ops import Gemm, full_index, kept_axes
from tilewright.passes.context import Context
from tilewright.passes.tile.processors.plan_operand_layouts import PhysicalOperand
from tilewright.targets.cpu import tile_registers as registers
from tilewright.targets.cpu.gemm import VectorProduct
from tilewright.targets.cpu.multiplicands import Left, PanelRight, Right
from tilewright.targets.cpu.operands import inside
from tilewright.targets.cpu.tile_registers import LEFT, RIGHT, ROW_BYTES
from tilewright.targets.cpu.vectors import load_vector, loop, splat_const

ROWS = 16
"""Rows of a tile."""


def lower_product(op: Gemm, context: Context) -> ir.Statement | None:
    """The loops of `op`'s plan; None where no instruction of the machine multiplies it."""
    if isinstance(op.plan, TilePlan):
        return TileProduct(op, context, op.plan).statement()
    return VectorProduct(op, context, op.plan).statement() if isinstance(op.plan, OperandPlan) else None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Tiles that are kept in registers at once.

    Attributes
    ----------
    heights : rows of each tile from top to bottom.
    vectors : panels side by side.
    lanes : columns that exist in each.
    """

    heights: tuple[ir.Extent, ...]
    vectors: int
    lanes: int = 16

    def accumulator(self, i: int, j: int) -> int:
        return 2 * i + j


class TileProduct(VectorProduct):
    """One gemm on its way to products of tiles."""

    def __init__(self, op: Gemm, context: Context, plan: TilePlan) -> None:
        super().__init__(op, context, plan)
        self.tiles = plan
        self.step = plan.words * plan.instruction.depth
        """Elements of k of one product."""
        plain = op.scale_a is None and op.scale_b is None and op.shift is None
        self.exist: ir.Extent = 0
        """Rows of a that exist: tiles may have more, whose totals nobody keeps."""
        self.direct = plain and op.c.dtype == plan.instruction.accumulator and plan.chunk == op.k

    def _clear(self) -> list[ir.Statement]:
        return [] if self._begins_with_zeros() else super()._clear()

    def _begins_with_zeros(self) -> bool:
        return self.direct and self.op.clear is True and self.op.n % self.lanes == 0

    def _cleared_rest(self, rows: ir.Extent, valid: ir.Extent) -> list[ir.Statement]:
        """Zeros for what no product reaches: rows behind the last that exist, and panels behind the last of columns."""
        c, panels = self.op.c, self.op.n // self.lanes

        def line(row: ir.Expr, first: ir.Extent) -> list[ir.Statement]:
            def store(vector: ir.Expr) -> list[ir.Statement]:
                at = full_index(c, (row, vector * self.lanes))
                return [ir.Store(c.buffer, at, splat_const(0, c.dtype.with_lanes(self.lanes)))]

            return loop("vector", first, panels, store)

        statements = loop("row", 0, rows, lambda row: line(row, valid)) if valid != panels else []
        return statements + loop("row", rows, self.op.m, lambda row: line(row, 0))

    def _panels_in_place(self, physical: PhysicalOperand) -> PanelRight | None:
        """Where a tile hangs over the end of k, the memory must go on to the end of a product."""
        at_end = physical.layout.depth % self.op.k
        if at_end and physical.layout.together % self.tiles.words:
            return None
        panels = super()._panels_in_place(physical)
        if panels is not None and physical.leading:  # a workspace, which a kernel before has just written
            return replace(panels, prefetch=None)
        return panels

    # Loops --------------------------------------------------------------------------------------

    def _loops(self, left: Left, right: Right, rows: ir.Extent, valid: ir.Extent) -> list[ir.Statement]:
        assert isinstance(right, PanelRight)
        self.exist = rows

        def band(heights: Sequence[ir.Extent], start: ir.Extent, stop: ir.Extent) -> list[ir.Statement]:
            """All columns of the rows of a band, for which the registers have the same sizes."""

            def down(vectors: int, vector: ir.Expr, lanes: int) -> list[ir.Statement]:
                shape = _Shape(tuple(heights), vectors, lanes)
                if shape.heights == (ROWS, ROWS) and not self._keeps_totals(shape) and self.chunk == self.op.k:
                    return self._in_rounds(left, right, shape, start, stop, vector)
                body = lambda row: self._parts(left, right, shape, row, vector)  # noqa: E731
                return loop("row", start, stop, body, step=ROWS * len(heights))

            sizes = registers.configure(heights[0], heights[-1], self.tiles.words)
            return [sizes, *self._panels_of(down, 2 if len(heights) == 2 else 4, valid)]

        rest = self._cleared_rest(rows, valid) if self._begins_with_zeros() else []
        if isinstance(rows, int):
            return [*rest, *self._bands_of(rows, band)]
        return [*rest, *self._bands_up_to(rows, band)]

    def _bands_of(self, rows: int, band: Callable[..., list[ir.Statement]]) -> list[ir.Statement]:
        """The bands of a known number of rows."""
        pairs = rows // (2 * ROWS) * 2 * ROWS
        statements = band((ROWS, ROWS), 0, pairs) if pairs else []
        rest = rows - pairs
        if rest > ROWS:
            statements += band((ROWS, rest - ROWS), pairs, rows)
        elif rest:
            statements += band((rest,), pairs, rows)
        return statements

    def _bands_up_to(self, rows: ir.Expr, band: Callable[..., list[ir.Statement]]) -> list[ir.Statement]:
        """The same for as many rows as there will be; tiles are whole where the memory holds more rows than that."""
        most = self.op.m
        whole = inside(self.op.a, 1 if self.op.transpose_a else 0) == most and most % ROWS == 0
        if whole:
            count = (rows + (ROWS - 1)) // ROWS
            rows = ir.expr(self.named("whole_rows", count * ROWS))
        pairs: ir.Extent = 0
        statements: list[ir.Statement] = []
        if most >= 2 * ROWS:
            pairs = self.named("pairs", rows // (2 * ROWS) * (2 * ROWS))
            statements += [ir.If(ir.index_binary("gt", pairs, 0), ir.Seq(tuple(band((ROWS, ROWS), 0, pairs))))]
        rest = self.named("rest", rows - pairs)
        last = band((ROWS if whole else rest,), pairs, rows)
        one = ir.If(ir.index_binary("gt", rest, 0), ir.Seq(tuple(last)))
        if whole or most <= ROWS:
            return [*statements, one]
        two = band((ROWS, rest - ROWS), pairs, rows)
        return [*statements, ir.If(ir.index_binary("gt", rest, ROWS), ir.Seq(tuple(two)), ir.Seq((one,)))]

    def _panels_of(
        self, down: Callable[[int, ir.Expr, int], list[ir.Statement]], vectors: int, valid: ir.Extent
    ) -> list[ir.Statement]:
        """So many panels at once, then those that are left, then the columns behind the last whole one."""
        whole: ir.Extent
        if isinstance(valid, int):
            whole = valid // vectors * vectors
        else:
            whole = self.named("whole", valid // vectors * vectors)
        statements = loop("vector", 0, whole, lambda vector: down(vectors, vector, self.lanes), step=vectors)
        if isinstance(valid, int) and isinstance(whole, int):
            statements += down(valid - whole, ir.const(whole), self.lanes) if valid > whole else []
        else:
            statements += loop("vector", whole, valid, lambda vector: down(1, vector, self.lanes))
        rest = self.op.n % self.lanes
        return statements + (down(1, ir.const(self.op.n // self.lanes), rest) if rest else [])

    # One set of registers -----------------------------------------------------------------------

    def _keeps_totals(self, shape: _Shape) -> bool:
        """Whether totals pass from c to c and never through other memory."""
        return self.direct and shape.lanes == self.lanes

    def _end(self) -> ir.Extent:
        """Products along k: as many as the panels have loads for, where k ends within a tile."""
        if not isinstance(self.loads, ir.Expr):
            return self.op.k // self.step
        return (self.loads + (self.tiles.words - 1)) // self.tiles.words

    def _parts(self, left: Left, right: PanelRight, shape: _Shape, row: ir.Expr, vector: ir.Expr) -> list[ir.Statement]:
        """The products of one set of registers, chunk by chunk."""

        def steps(first: ir.Extent, stop: ir.Extent) -> list[ir.Statement]:
            return loop("step", first, stop, lambda step: self._products(left, right, shape, row, vector, step))

        end = self._end()
        if self._keeps_totals(shape):
            begin = self._each(shape, lambda i, j, tile: self._begin(shape, i, j, tile, row, vector))
            finish = self._each(shape, lambda i, j, tile: [registers.store(tile, *self._c(row, vector, i, j))])
            return [*begin, *steps(0, end), *finish]
        parts, count = self.op.k // self.chunk, self.op.k // self.step
        totals = self._totals(shape)

        def one(chunk: ir.Expr) -> list[ir.Statement]:
            first: ir.Extent = 0 if parts == 1 else chunk * (count // parts)
            stop = end if parts == 1 else first + count // parts
            if parts > 1 and isinstance(end, ir.Expr):
                stop = ir.index_binary("min", stop, end)
            leaving = self._leave(totals, shape, row, vector, chunk)
            return [ir.Seq((*self._zeros(shape), *steps(first, stop), *self._stored(totals, shape), *leaving))]

        return [ir.Seq((ir.Allocate(totals), *loop("chunk", 0, parts, one)))]

    def _in_rounds(
        self, left: Left, right: PanelRight, shape: _Shape, start: ir.Extent, stop: ir.Extent, vector: ir.Expr
    ) -> list[ir.Statement]:
        """The same for rows upon rows: while the unit multiplies some, vectors finish the ones before."""
        totals, height, end = self._totals(shape), ROWS * len(shape.heights), self._end()

        def leave(row: ir.Expr) -> list[ir.Statement]:
            return self._leave(totals, shape, row, vector, ir.const(0))

        def iteration(row: ir.Expr) -> list[ir.Statement]:
            products = loop("step", 0, end, lambda step: self._products(left, right, shape, row, vector, step))
            before = leave(row - height)
            behind = ir.If(ir.index_binary("gt", row, start), ir.Seq(tuple(before)))
            return [*self._zeros(shape), *products, behind, *self._stored(totals, shape)]

        iterations = loop("row", start, stop, iteration, step=height)
        return [ir.Seq((ir.Allocate(totals), *iterations, *leave(ir.expr(stop - height))))]

    def _totals(self, shape: _Shape) -> ir.Buffer:
        """Memory that all accumulators leave through."""
        count = shape.accumulator(len(shape.heights) - 1, shape.vectors - 1) + 1
        return ir.Buffer("totals", (count, ROWS, self.lanes), self.plan.instruction.accumulator, "local")

    def _zeros(self, shape: _Shape) -> list[ir.Statement]:
        return self._each(shape, lambda i, j, tile: [registers.zero(tile)])

    def _stored(self, totals: ir.Buffer, shape: _Shape) -> list[ir.Statement]:
        def place(tile: int) -> ir.Region:
            return ir.Region(totals, (ir.const(tile), ir.const(0), ir.const(0)), (1, ROWS, self.lanes))

        return self._each(shape, lambda i, j, tile: [registers.store(tile, place(tile), ROW_BYTES)])

    def _each(self, shape: _Shape, body: Callable[[int, int, int], list[ir.Statement]]) -> list[ir.Statement]:
        """`body` for every accumulator, by its tile of rows, its panel and its number."""
        return [
            statement
            for i in range(len(shape.heights))
            for j in range(shape.vectors)
            for statement in body(i, j, shape.accumulator(i, j))
        ]

    def _begin(self, shape: _Shape, i: int, j: int, tile: int, row: ir.Expr, vector: ir.Expr) -> list[ir.Statement]:
        if self._begins_with_zeros():
            return [registers.zero(tile)]
        return [registers.load(tile, *self._c(row, vector, i, j))]

    def _c(self, row: ir.Expr, vector: ir.Expr, i: int, j: int) -> tuple[ir.Region, ir.Extent]:
        """An accumulator's elements in c, and how many bytes its rows are apart there."""
        c = self.op.c
        at = full_index(c, (row + ROWS * i, (vector + j) * self.lanes))
        return ir.Region(c.buffer, at, (1,) * len(at)), _row_bytes(c)

    def _products(
        self, left: Left, right: PanelRight, shape: _Shape, row: ir.Expr, vector: ir.Expr, step: ir.Expr
    ) -> list[ir.Statement]:
        """One step of k for all accumulators."""
        position, k = step * self.tiles.words, step * self.step
        rows = range(len(shape.heights))
        ahead = right.tile_ahead(
            self.op.k // right.step, self.tiles.words, -(-self.op.m // (2 * ROWS)), row // (2 * ROWS)
        )
        statements: list[ir.Statement] = []
        for j in range(shape.vectors):
            tile = RIGHT + j % 2
            place = ir.Region(right.memory, (right.place(vector + j, position),), (1,))
            statements += ahead(vector + j, position)
            statements.append(registers.load(tile, place, ROW_BYTES))
            for i in rows:
                if j == 0:
                    at = left.index(row + ROWS * i, k)
                    place = ir.Region(left.buffer, tuple(map(ir.expr, at)), (1,) * left.buffer.rank)
                    statements.append(registers.load(LEFT + i, place, self._left_stride(left)))
                function = self.plan.instruction.function
                statements.append(registers.multiply(function, shape.accumulator(i, j), LEFT + i, tile))
        return statements

    def _left_stride(self, left: Left) -> ir.Extent:
        """Bytes from a row of the left operand to the next."""
        a = self.op.a
        if left.buffer is a.buffer or left.buffer.source is a.buffer:
            return _row_bytes(a)
        return left.buffer.static_shape[-1] * left.buffer.dtype.storage_bytes

    def _leave(
        self, totals: ir.Buffer, shape: _Shape, row: ir.Expr, vector: ir.Expr, chunk: ir.Expr
    ) -> list[ir.Statement]:
        """Totals from memory to c."""

        def finish(i: int, line: ir.Expr) -> list[ir.Statement]:
            found: list[ir.Statement] = []
            here = row + (line + ROWS * i)
            for j in range(shape.vectors):
                total = load_vector(totals, self.lanes, shape.accumulator(i, j), line, 0)
                if self.shift is not None and self.shift_b is None:
                    total = ir.binary("add", total, self._start(here, vector + j, chunk))
                total = self._shifted(here, vector + j, chunk, total)
                factors = self._factors(here, vector + j, chunk)
                found += self._finish(here, vector + j, total, factors, shape.lanes)
            return found

        lines: list[ir.Statement] = []
        for i, height in enumerate(shape.heights):
            if isinstance(self.exist, ir.Expr):
                left = self.exist - (row + ROWS * i)
                height = ir.index_binary("min", left, height)
            lines += loop("line", 0, height, partial(finish, i))
        return lines


def _row_bytes(region: ir.Region) -> ir.Extent:
    """Bytes from a row of a tile to the next."""
    axes = kept_axes(region, 2)
    assert axes is not None
    buffer, axis = region.buffer, axes[0]
    if buffer.strides is not None:
        return buffer.strides[axis] * buffer.dtype.storage_bytes
    return ir.product(buffer.shape[axis + 1 :]) * buffer.dtype.storage_bytes
