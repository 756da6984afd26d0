"""`T.gemm` on a CPU by dot products of vectors: the loops around micro-kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT32, INT32
from tilewright.ops import accumulator, begin, full_index, get, store_element, zero
from tilewright.passes.tile.processors.forward_operands import shift_ends_with
from tilewright.targets.cpu.microkernels import MicroKernel, each
from tilewright.targets.cpu.multiplicands import Left, PanelRight, Right
from tilewright.targets.cpu.operands import Operands
from tilewright.targets.cpu.register_tiles import RegisterTile, TileModel
from tilewright.targets.cpu.vectors import load_vector, loop, splat, splat_const, to_float

MANY_TILES = 4
"""From so many tiles of rows on, the few rows that are left follow on the same columns, which are in the first-level
cache; where rows are few, tiles of their own width suit them better."""

ENOUGH_REGISTERS = 32
"""With fewer, sums beside totals would leave too few of either to cover the latency of an instruction."""


@dataclass(frozen=True, slots=True)
class _Band:
    """Rows that whole tiles of one height cover, and the right operand as their passes read it."""

    right: Right
    tile: RegisterTile
    start: ir.Extent
    stop: ir.Extent


class VectorProduct(Operands):
    """One gemm on its way to loops and micro-kernels."""

    def statement(self) -> ir.Statement:
        op = self.op
        rows = self.rows()
        left = self.left()
        right = self.right()
        self.scale_a, self.scale_b = self.scale(op.scale_a, op.a, True), self.scale(op.scale_b, op.b, False)
        if self.plan.offset:
            self.sums = self.sum_rows(left, rows)
        if self.plan.left_offset:
            self.column_sums = self.sum_columns(right)
        self.shift, self.shift_b = self.shift_of_rows(), self.scale(op.shift_b, op.b, False)
        valid = self.panels(op.n // self.lanes)
        loops = self._loops(left, right, rows, valid)
        body = [*self.before, *self._clear(), *loops, *self._shift_beyond(valid)]
        return ir.Seq(tuple(body), span=op.span)

    def _shift_beyond(self, valid: ir.Extent) -> list[ir.Statement]:
        """The shift of columns that b's matrix has not: it is added to their products too, which are zeros."""
        op = self.op
        if op.shift is None or isinstance(valid, int) or shift_ends_with(op, "b", self._source(op.b)):
            return []

        def element(row: ir.Expr, column: ir.Expr) -> list[ir.Statement]:
            total = accumulator("total", FLOAT32 if op.c.dtype.is_float else op.c.dtype)
            old = ir.Load(op.c.dtype, op.c.buffer, full_index(op.c, (row, column)))
            return [
                begin(total, old),
                op.add_shift((row, column), total),
                store_element(op.c, (row, column), get(total)),
            ]

        first, stop = valid * self.lanes, op.n // self.lanes * self.lanes
        columns = lambda row: loop("column", first, stop, lambda column: [ir.seq(*element(row, column))])  # noqa: E731
        return loop("row", 0, op.m, columns)

    # Loops --------------------------------------------------------------------------------------

    def _clear(self) -> list[ir.Statement]:
        op = self.op
        if op.clear is False:
            return []
        i, j = ir.Var(INT32, "i"), ir.Var(INT32, "j")
        fill = ir.Parallel(
            (i, j),
            (op.m, op.n),
            ir.seq(ir.Store(op.c.buffer, full_index(op.c, (i, j)), zero(op.c.dtype))),
            span=op.span,
        )
        return [fill] if op.clear is True else [ir.If(op.clear, ir.seq(fill))]

    def _loops(self, left: Left, right: Right, rows: ir.Extent, valid: ir.Extent) -> list[ir.Statement]:
        """Columns outermost, so that a panel stays in the cache while the rows pass over it."""
        columns = self.op.n // self.lanes
        model = TileModel(
            self.context.arch,
            self.plan.instruction,
            right.unpack,
            max(1, columns),
            self._vector_bytes(right),
            2 if self.keeps_sums else 1,
        )
        tiles = model.choose(rows if isinstance(rows, int) else None, self.op.m)
        bands: list[_Band] = []
        start: ir.Extent = 0
        for tile in tiles:
            stop = self.named("covered", _last_start(start, rows, tile.rows))
            bands.append(_Band(right, tile, start, stop))
            start = stop
        bands = self._share_prefetch(right, bands, rows)
        together = [bands] if self.op.m >= MANY_TILES * tiles[0].rows else _mergeable(bands)
        return [one for group in together for one in self._columns(left, group, valid)]

    def _share_prefetch(self, right: Right, bands: list[_Band], rows: ir.Extent) -> list[_Band]:
        """The bands, whose row tiles share the prefetch of what is read next."""
        if not isinstance(right, PanelRight) or self.op.m <= bands[0].tile.rows:
            return bands
        before: list[ir.Extent] = [0]
        for band in bands:
            count = (band.stop - band.start) // band.tile.rows
            before.append(self.named("passes", before[-1] + count))
        shared = right.shared_prefetch(self.op.k // right.step, rows, before[-1])
        if shared is None:
            return bands
        shared = replace(shared, share=self.named("share", shared.share), distance=self.named("ahead", shared.distance))
        each = [
            replace(shared, rows=band.tile.rows, first=band.start, before=count) for band, count in zip(bands, before)
        ]
        return [replace(band, right=replace(right, shared=one)) for band, one in zip(bands, each)]

    def _vector_bytes(self, right: Right) -> int:
        """Memory that one vector of columns takes over the tile's k."""
        run = self.op.k if self.keeps_sums else self.chunk
        return run // right.step * right.loaded.nbytes(1)

    def _columns(self, left: Left, bands: list[_Band], columns: ir.Extent) -> list[ir.Statement]:
        """All columns, as many at a time as the first band's tiles have, and in them the rows of every band."""
        across = bands[0].tile.vectors

        def down(vectors: int, vector: ir.Expr, lanes: int) -> list[ir.Statement]:
            def kernel(band: _Band, row: ir.Expr) -> list[ir.Statement]:
                tile = RegisterTile(band.tile.rows, vectors)
                return self._chunks(left, band.right, tile, lanes, row, vector)

            return [
                statement
                for band in bands
                for statement in loop(
                    "row", band.start, band.stop, functools.partial(kernel, band), step=band.tile.rows
                )
            ]

        whole = self.named("whole", _last_start(0, columns, across))
        statements: list[ir.Statement]
        if isinstance(whole, ir.Expr) and across == self.op.n // self.lanes:
            # Once or not at all, at a place that is known.
            statements = [ir.If(ir.binary("gt", whole, ir.const(0)), ir.seq(*down(across, ir.const(0), self.lanes)))]
        else:
            statements = loop("vector", 0, whole, lambda vector: down(across, vector, self.lanes), step=across)
        if isinstance(columns, int) and isinstance(whole, int):
            if columns > whole:
                statements += down(columns - whole, ir.const(whole), self.lanes)
        elif across > 1:
            rest = self.left_over(across)
            if rest is None:
                statements += loop("vector", whole, columns, lambda vector: down(1, vector, self.lanes))
            elif rest > 0:
                statements.append(
                    ir.If(
                        ir.binary("gt", ir.expr(columns), ir.expr(whole)),
                        ir.seq(*down(rest, ir.expr(whole), self.lanes)),
                    )
                )
        if self.op.n % self.lanes:
            statements += down(1, ir.const(self.op.n // self.lanes), self.op.n % self.lanes)
        return statements

    def _chunks(
        self, left: Left, right: Right, tile: RegisterTile, lanes: int, row: ir.Expr, vector: ir.Expr
    ) -> list[ir.Statement]:
        """All chunks of k for one tile, whose sums stay in registers meanwhile where they can."""
        loads = self.chunk // right.step
        single = self.op.k == self.chunk
        sums = self._sums(tile) if self.keeps_sums and lanes == self.lanes else None

        def one(chunk: ir.Expr) -> list[ir.Statement]:
            def finish(i: ir.Expr, j: ir.Expr, total: ir.Expr) -> Sequence[ir.Statement]:
                total = self._shifted(row + i, vector + j, chunk, total)
                factors = self._factors(row + i, vector + j, chunk)
                if sums is None:
                    return self._finish(row + i, vector + j, total, factors, lanes)
                old = load_vector(sums, self.lanes, self._place(tile, i, j))
                new = ir.cast(self._added(old, total, factors), old.dtype)
                return [ir.Store(sums, (self._place(tile, i, j),), new)]

            begin = lambda i, j: self._start(row + i, vector + j, chunk)  # noqa: E731
            kernel = MicroKernel(self.plan, left, right, tile, begin, finish)
            first: ir.Extent = 0 if single else chunk * loads
            stop: ir.Extent = loads if single else first + loads
            if isinstance(self.loads, ir.Expr):
                stop = self.loads if single else ir.index_binary("min", stop, self.loads)
            return [ir.Seq(tuple(kernel.statements(row, vector, first, stop)))]

        chunks = loop("chunk", 0, self.op.k // self.chunk, one)
        if sums is None:
            return chunks
        c = self.op.c

        def at(i: ir.Expr, j: ir.Expr) -> tuple[ir.Expr, ...]:
            return full_index(c, (row + i, (vector + j) * self.lanes))

        def begin_sum(i: ir.Expr, j: ir.Expr) -> list[ir.Statement]:
            return [ir.Store(sums, (self._place(tile, i, j),), load_vector(c.buffer, self.lanes, *at(i, j)))]

        def end_sum(i: ir.Expr, j: ir.Expr) -> list[ir.Statement]:
            return [ir.Store(c.buffer, at(i, j), load_vector(sums, self.lanes, self._place(tile, i, j)))]

        return [ir.Seq((ir.Allocate(sums), *each(tile, begin_sum), *chunks, *each(tile, end_sum)))]

    @property
    def keeps_sums(self) -> bool:
        """Whether c's elements pass through registers once for all chunks of k, beside the totals of each."""
        return self.op.k > self.chunk and self.op.c.dtype == FLOAT32 and self.context.arch.registers >= ENOUGH_REGISTERS

    def _sums(self, tile: RegisterTile) -> ir.Buffer:
        return ir.Buffer("sums", (tile.rows * tile.vectors * self.lanes,), self.op.c.dtype, "register")

    def _place(self, tile: RegisterTile, i: ir.Expr, j: ir.Expr) -> ir.Expr:
        return i * (tile.vectors * self.lanes) + j * self.lanes

    def _start(self, row: ir.Expr, vector: ir.Expr, chunk: ir.Expr) -> ir.Expr:
        """What a total begins with: the row's shift, minus what the offsets of the operands add."""
        parts: list[ir.Expr] = []
        if self.sums is not None:
            parts.append(splat(ir.Load(self.sums.dtype, self.sums, (row, chunk)), self.lanes))
        if self.column_sums is not None:
            parts.append(load_vector(self.column_sums, self.lanes, chunk, vector * self.lanes))
        if self.shift is not None and self.shift_b is None:
            parts.append(splat(self.shift(row, chunk), self.lanes))
        wide = self.plan.instruction.accumulator.with_lanes(self.lanes)
        if not parts:
            return splat_const(0.0 if wide.is_float else 0, wide)
        return functools.reduce(lambda one, other: ir.binary("add", one, other), parts)

    def _shifted(self, row: ir.Expr, vector: ir.Expr, chunk: ir.Expr, total: ir.Expr) -> ir.Expr:
        """A vector of totals with the row's shift times the factors of the columns."""
        if self.shift is None or self.shift_b is None:
            return total
        total = self._in_sums(total)
        shift = splat(ir.cast(self.shift(row, chunk), total.dtype.scalar), self.lanes)
        factors = ir.cast(self.shift_b.value(vector * self.lanes, chunk), total.dtype)
        return ir.Call(total.dtype, "fma", (shift, factors, total))

    def _factors(self, row: ir.Expr, vector: ir.Expr, chunk: ir.Expr) -> list[ir.Expr]:
        """What the totals of a row and a vector of columns are multiplied by."""
        total = self.plan.instruction.accumulator
        if self.op.c.dtype.is_float and total.is_integer:  # as `_in_sums` makes it
            total = FLOAT32
        factors: list[ir.Expr] = []
        if self.scale_b is not None:
            factors.append(ir.cast(self.scale_b.value(vector * self.lanes, chunk), total.with_lanes(self.lanes)))
        if self.scale_a is not None:
            factors.append(splat(ir.cast(self.scale_a.value(row, chunk), total), self.lanes))
        return factors

    def _finish(
        self, row: ir.Expr, vector: ir.Expr, total: ir.Expr, factors: list[ir.Expr], lanes: int
    ) -> Sequence[ir.Statement]:
        """One vector of totals: scaled, added to c."""
        column, c = vector * self.lanes, self.op.c
        if lanes == self.lanes:
            at = full_index(c, (row, column))
            old = load_vector(c.buffer, self.lanes, *at)
            return [ir.Store(c.buffer, at, ir.cast(self._added(old, total, factors), c.dtype.with_lanes(self.lanes)))]
        total = self._in_sums(total)
        values = ir.Buffer("values", (self.lanes,), total.dtype.scalar, "local")
        for factor in factors:
            total = ir.binary("mul", total, factor)

        def lane(n: ir.Expr) -> list[ir.Statement]:
            at = full_index(c, (row, column + n))
            old = ir.cast(ir.Load(c.dtype, c.buffer, at), values.dtype)
            return [
                ir.Store(c.buffer, at, ir.cast(ir.binary("add", old, ir.Load(values.dtype, values, (n,))), c.dtype))
            ]

        return [ir.Seq((ir.Allocate(values), ir.Store(values, (ir.const(0),), total), *loop("n", 0, lanes, lane)))]

    def _in_sums(self, total: ir.Expr) -> ir.Expr:
        """A vector of totals in the type in which it is scaled and added."""
        return to_float(total) if self.op.c.dtype.is_float and total.dtype.is_integer else total

    def _added(self, old: ir.Expr, total: ir.Expr, factors: list[ir.Expr]) -> ir.Expr:
        """What c holds with one vector of totals added to it, scaled."""
        total = self._in_sums(total)
        old = ir.cast(old, total.dtype)
        for factor in factors[:-1]:
            total = ir.binary("mul", total, factor)
        if factors and total.dtype.is_float:
            return ir.Call(total.dtype, "fma", (total, factors[-1], old))
        for factor in factors[-1:]:
            total = ir.binary("mul", total, factor)
        return ir.binary("add", old, total)


def _mergeable(bands: Sequence[_Band]) -> list[list[_Band]]:
    """Bands one after the other whose tiles are as wide, which lose nothing by sharing the columns that the first one
    brought near."""
    return [list(group) for _, group in itertools.groupby(bands, key=lambda band: band.tile.vectors)]


def _last_start(start: ir.Extent, stop: ir.Extent, step: int) -> ir.Extent:
    """Where whole steps from `start` end."""
    if step == 1:
        return stop
    if isinstance(start, int) and isinstance(stop, int):
        return start + (stop - start) // step * step
    count = (stop - start) // step
    return start + count * step
