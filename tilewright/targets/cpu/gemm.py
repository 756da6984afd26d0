"""`T.gemm` on a CPU: the choice of an instruction, and the loops around its micro-kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Const,
    Expr,
    Extent,
    If,
    Load,
    Parallel,
    Seq,
    Statement,
    Store,
    Var,
    binary,
    cast,
    const,
    index_binary,
    seq,
)
from tilewright.machine.dot import match_operands
from tilewright.ops.base import full_index, zero
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context
from tilewright.passes.tile.choose_products import accumulates, chunk_of, dot_instructions, shifts_left
from tilewright.targets.cpu.microkernels import (
    Left,
    MicroKernel,
    PanelRight,
    Right,
    add,
    load_vector,
    loop,
    mul,
    splat,
    splat_const,
    to_float,
)
from tilewright.targets.cpu.operands import Operands, Scale
from tilewright.targets.cpu.register_tiles import RegisterTile, TileModel

MANY_TILES = 4
"""From so many tiles of rows on, the few rows that are left follow on the same columns, which are in the first-level cache; where
rows are few, tiles of their own width suit them better."""


def lower_gemm(op: Gemm, context: Context) -> Statement | None:
    """Micro-kernels for `op`, or None where no instruction of the machine multiplies these types."""
    for instruction in dot_instructions(context.arch):
        plan = match_operands(instruction, op.a.dtype, op.b.dtype)
        if plan is None or not accumulates(instruction, op):
            continue
        chunk = chunk_of(op, plan)
        if chunk is not None:
            return VectorProduct(op, context, shifts_left(op, plan, context.arch) or plan, chunk).statement()
    return None


@dataclass(frozen=True, slots=True)
class _Band:
    """Rows that whole tiles of one height cover, and the right operand as their passes read it."""

    right: Right
    tile: RegisterTile
    start: Extent
    stop: Extent


class VectorProduct(Operands):
    """One gemm on its way to loops and micro-kernels."""

    def statement(self) -> Statement:
        op = self.op
        rows = self.rows()
        left = self.left()
        right = self.right()
        scale_a, scale_b = self.scale(op.scale_a, op.a, True), self.scale(op.scale_b, op.b, False)
        if self.plan.offset:
            self.sums = self.sum_rows(left, rows)
        if self.plan.left_offset:
            self.column_sums = self.sum_columns(right)
        self.shift = self.shift_of_rows()
        valid = self.panels(op.n // self.lanes)
        loops = self._loops(left, right, rows, valid, scale_a, scale_b)
        body = [*self.before, *self._clear(), *loops]
        return Seq(tuple(body), span=op.span)

    # Loops --------------------------------------------------------------------------------------

    def _clear(self) -> list[Statement]:
        op = self.op
        if op.clear is False:
            return []
        i, j = Var(INT32, "i"), Var(INT32, "j")
        fill = Parallel(
            (i, j), (op.m, op.n), seq(Store(op.c.buffer, full_index(op.c, (i, j)), zero(op.c.dtype))), span=op.span
        )
        return [fill] if op.clear is True else [If(op.clear, seq(fill))]

    def _loops(
        self, left: Left, right: Right, rows: Extent, valid: Extent, scale_a: Scale | None, scale_b: Scale | None
    ) -> list[Statement]:
        """Columns outermost, so that a panel stays in the cache while the rows pass over it."""
        columns = self.op.n // self.lanes
        model = TileModel(
            self.context.arch, self.plan.instruction, right.unpack, max(1, columns), self._vector_bytes(right)
        )
        tiles = model.choose(rows if isinstance(rows, int) else None)
        bands: list[_Band] = []
        start: Extent = 0
        for tile in tiles:
            stop = self.named("covered", _last_start(start, rows, tile.rows))
            bands.append(_Band(self._asking(right, tile, stop) if start == 0 else right, tile, start, stop))
            start = stop
        together = [bands] if self.op.m >= MANY_TILES * tiles[0].rows else _alike(bands)
        return [one for group in together for one in self._columns(left, group, valid, scale_a, scale_b)]

    def _asking(self, right: Right, tile: RegisterTile, rows: Extent) -> Right:
        """`right`, from whose memory all passes of these rows together ask for what comes next."""
        if not isinstance(right, PanelRight) or self.op.m <= tile.rows:
            return right
        passes = index_binary("floordiv", rows, tile.rows)
        shared = right.shared_asking(self.op.k // right.step, tile.rows, passes)
        if shared.passes is None or isinstance(passes, Const):
            return shared
        return replace(shared, passes=replace(shared.passes, share=self.named("share", shared.passes.share)))

    def _vector_bytes(self, right: Right) -> int:
        """Memory that one vector of columns takes over the tile's k."""
        return self.chunk // right.step * right.loaded.nbytes(1)

    def _columns(
        self, left: Left, bands: list[_Band], columns: Extent, scale_a: Scale | None, scale_b: Scale | None
    ) -> list[Statement]:
        """All columns, as many at a time as the first band's tiles have, and in them the rows of every band."""
        across = bands[0].tile.vectors

        def down(vectors: int, vector: Expr, lanes: int) -> list[Statement]:
            def kernel(band: _Band, row: Expr) -> list[Statement]:
                tile = RegisterTile(band.tile.rows, vectors)
                return self._chunks(left, band.right, tile, lanes, row, vector, scale_a, scale_b)

            return [
                statement
                for band in bands
                for statement in loop(
                    "row", band.start, band.stop, functools.partial(kernel, band), step=band.tile.rows
                )
            ]

        whole = self.named("whole", _last_start(0, columns, across))
        statements = loop("vector", 0, whole, lambda vector: down(across, vector, self.lanes), step=across)
        if isinstance(columns, int) and isinstance(whole, int):
            if columns > whole:
                statements += down(columns - whole, const(whole), self.lanes)
        elif across > 1:
            statements += loop("vector", whole, columns, lambda vector: down(1, vector, self.lanes))
        if self.op.n % self.lanes:
            statements += down(1, const(self.op.n // self.lanes), self.op.n % self.lanes)
        return statements

    def _chunks(self, left: Left, right: Right, tile: RegisterTile, lanes: int, row: Expr, vector: Expr,
                scale_a: Scale | None, scale_b: Scale | None) -> list[Statement]:  # fmt: skip
        loads = self.chunk // right.step
        single = self.op.k == self.chunk

        def one(chunk: Expr) -> list[Statement]:
            def finish(i: Expr, j: Expr, total: Expr) -> Sequence[Statement]:
                return self._finish(i, j, total, chunk, lanes, scale_a, scale_b)

            begin = lambda i, j: self._start(i, j, chunk)  # noqa: E731
            kernel = MicroKernel(self.plan, left, right, tile, begin, finish)
            first: Extent = 0 if single else mul(chunk, loads)
            stop: Extent = loads if single else add(first, loads)
            if isinstance(self.loads, Expr):
                stop = self.loads if single else index_binary("min", stop, self.loads)
            return [Seq(tuple(kernel.statements(row, vector, first, stop)))]

        return loop("chunk", 0, self.op.k // self.chunk, one)

    def _start(self, row: Expr, vector: Expr, chunk: Expr) -> Expr:
        """What a total begins with: the row's shift, minus what the offsets of the operands add."""
        parts: list[Expr] = []
        if self.sums is not None:
            parts.append(splat(Load(self.sums.dtype, self.sums, (row, chunk)), self.lanes))
        if self.column_sums is not None:
            parts.append(load_vector(self.column_sums, self.lanes, chunk, mul(vector, self.lanes)))
        if self.shift is not None:
            parts.append(splat(self.shift(row, chunk), self.lanes))
        wide = self.plan.instruction.accumulator.with_lanes(self.lanes)
        if not parts:
            return splat_const(0.0 if wide.is_float else 0, wide)
        return functools.reduce(lambda one, other: binary("add", one, other), parts)

    def _finish(self, row: Expr, vector: Expr, total: Expr, chunk: Expr, lanes: int,
                scale_a: Scale | None, scale_b: Scale | None) -> Sequence[Statement]:  # fmt: skip
        """One vector of totals: scaled, added to c."""
        column = mul(vector, self.lanes)
        target = self.op.c.dtype
        if target.is_float and total.dtype.is_integer:
            total = to_float(total)
        factors: list[Expr] = []
        if scale_b is not None:
            factors.append(cast(scale_b.value(column, chunk), total.dtype))
        if scale_a is not None:
            factors.append(splat(cast(scale_a.value(row, chunk), total.dtype.scalar), self.lanes))
        if lanes == self.lanes:
            return self._add_to_c(row, column, total, factors)
        values = Buffer("values", (self.lanes,), total.dtype.scalar, "local")
        for factor in factors:
            total = binary("mul", total, factor)

        def lane(n: Expr) -> list[Statement]:
            at = full_index(self.op.c, (row, add(column, n)))
            old = cast(Load(target, self.op.c.buffer, at), values.dtype)
            return [Store(self.op.c.buffer, at, cast(binary("add", old, Load(values.dtype, values, (n,))), target))]

        return [Seq((Allocate(values), Store(values, (const(0),), total), *loop("n", 0, lanes, lane)))]

    def _add_to_c(self, row: Expr, column: Expr, total: Expr, factors: list[Expr]) -> list[Statement]:
        c = self.op.c
        at = full_index(c, (row, column))
        result = cast(load_vector(c.buffer, self.lanes, *at), total.dtype)
        for factor in factors[:-1]:
            total = binary("mul", total, factor)
        if factors and total.dtype.is_float:
            result = Call(total.dtype, "fma", (total, factors[-1], result))
        else:
            for factor in factors[-1:]:
                total = binary("mul", total, factor)
            result = binary("add", result, total)
        return [Store(c.buffer, at, cast(result, c.dtype.with_lanes(self.lanes)))]


def _alike(bands: Sequence[_Band]) -> list[list[_Band]]:
    """Bands one after the other whose tiles are as wide, which lose nothing by sharing the columns that the first one brought near."""
    return [list(group) for _, group in itertools.groupby(bands, key=lambda band: band.tile.vectors)]


def _last_start(start: Extent, stop: Extent, step: int) -> Extent:
    """Where whole steps from `start` end."""
    if step == 1:
        return stop
    if isinstance(start, int) and isinstance(stop, int):
        return start + (stop - start) // step * step
    count = index_binary("floordiv", index_binary("sub", stop, start), step)
    return add(start, mul(count, step))
