"""Parallel loops become what one thread does: its registers one after the other, several at once where memory allows.

Before (``tile`` is a fragment of 64 x 64 laid out like the loop, 128 threads)::

    for i, j in parallel(64, 64):
        tile[i, j] = A[row + i, j] * 2.0

After (each thread has rows ``g * 8 + tx // 16`` and columns from ``tx % 16 * 4``)::

    for g in unroll(8):
        i = g * 8 + tx // 16
        j = tx % 16 * 4
        A_part.x4 = A[row + i, j].x4
        for v in unroll(4):
            tile[g * 4 + v] = A_part[v] * 2.0

Fragments become register arrays, one element a register; shared tiles get the one dimension of their layout.
Guards of global accesses are written here, one for a whole vector; where a row may end within one, its elements
are guarded one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.errors import MissingCapability
from tilewright.ir import INT32, Rewritten, guard_of, substitute
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, Layout, row_major
from tilewright.ops.base import zero
from tilewright.passes import Context, PlaceRewriter, counted_off, decided_parts
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.lower.thread_loop import ThreadLoop
from tilewright.passes.tile.pipelines.tile_views import view_layouts

L = TypeVar("L", ir.For, ir.Parallel)


def assign_threads(function: ir.Function, context: Context) -> ir.Function:
    """Replace parallel loops, fragments and shared tiles by one thread's registers and places in shared memory."""
    body = Assign(function, context)(function.body)
    return function.with_body(body, "threaded")


class Assign(PlaceRewriter, BlockView):
    """Rewrites one function; the buffers of the kernel at hand are replaced as they are met."""

    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function, context)
        self.made: dict[ir.Buffer, ir.Buffer] = {}

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.cluster = math.prod(kernel.attribute("cluster", (1,)))
        self.layouts = {buffer: layout for buffer, layout in kernel.layouts if isinstance(layout, Layout)}
        self.layouts.update(view_layouts(kernel, self.layouts))
        for buffer, layout in kernel.layouts:
            if not isinstance(layout, Layout) and buffer.scope == "shared":
                self.context.warn(
                    f"the layout of {buffer.name} is not made of digits and a swizzle; the tile lies row by row",
                    kernel.span,
                )
        self.safe = dict(kernel.safe_values)
        return replace(super().visit_Kernel(kernel), layouts=())

    def visit_Region(self, region: ir.Region) -> ir.Region:
        if region.buffer.scope != "shared":
            return self.generic(region)
        buffer, places = self.physical(region.buffer, [self.visit(start) for start in region.starts])
        return ir.Region(buffer, places, (*(1,) * (len(places) - 1), region.extents[-1]))

    # Buffers -------------------------------------------------------------------------------------

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        layout = self.layouts.get(buffer)
        if buffer.source is not None and self.map_buffer(buffer.source) is not buffer.source:
            scope = "register" if buffer.scope == "local" else buffer.scope
            made = replace(buffer, source=self.map_buffer(buffer.source), scope=scope)
            if layout is not None:
                made = replace(made, shape=(layout.extent("memory"),))
            return self._remember(buffer, made)
        if layout is None or buffer.scope not in ("fragment", "shared"):
            if buffer.scope == "local":
                return self._remember(buffer, replace(buffer, scope="register"))
            return buffer
        if buffer.scope == "fragment":
            return self._remember(buffer, replace(buffer, scope="register", shape=(layout.extent(REGISTER),)))
        return self._remember(buffer, replace(buffer, shape=(layout.extent("memory"),)))

    def _remember(self, buffer: ir.Buffer, made: ir.Buffer) -> ir.Buffer:
        return self.made.setdefault(buffer, made)

    def physical(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        layout = self.layouts.get(buffer)
        if layout is not None and buffer.scope == "fragment" and layout.extent(REGISTER) == 1:
            return self.map_buffer(buffer), (ir.const(0),)
        if layout is None or buffer.scope != "shared":
            return self.map_buffer(buffer), tuple(indices)
        return self.map_buffer(buffer), (self.analyzer.simplify(_offset(layout, indices)),)

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        return self.physical(buffer, indices)

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        self.open.append(set())
        try:
            return self.generic(body)
        finally:
            self.open.pop()

    def visit_Allocate(self, allocate: ir.Allocate) -> Rewritten:
        self.open[-1].add(allocate.buffer)
        made = self.generic(allocate)
        layout = self.layouts.get(allocate.buffer)
        if allocate.buffer.scope != "fragment" or layout is None or layout.size == allocate.buffer.size:
            return made
        # Registers of threads beyond the tile are folded and moved with the others: they hold zeros.
        index = ir.Var(INT32, "r")
        fill = ir.seq(ir.Store(made.buffer, (index,), zero(made.buffer.dtype), span=allocate.span))
        return [made, ir.counted(index, made.buffer.size, fill, "unroll", span=allocate.span)]

    # Loops ---------------------------------------------------------------------------------------

    def visit_For(self, loop: ir.For) -> Rewritten:
        """A thread's own vector loop moves vectors, as its part of a parallel loop does."""
        if self.never_runs(loop):
            return None
        return self.vectors(self._in_role(loop)) or super().visit_For(loop)

    def vectors(self, loop: ir.For) -> ir.Statement | None:
        """A vector loop of one thread, as its part of a parallel loop; None for another kind of loop."""
        start, stop, step = (self.analyzer.simplify(end) for end in (loop.start, loop.stop, loop.step))
        bounds = [int(end.value) for end in (start, stop, step) if isinstance(end, ir.Const)]
        if loop.kind != "vectorize" or len(bounds) < 3 or len(range(*bounds)) == 0 or bounds[2] != 1:
            return None
        first, last, _ = bounds
        body = substitute(loop.body, {loop.var: loop.var + first}) if first else loop.body
        count = int(last - first)
        alone = ir.Parallel((loop.var,), (count,), body, row_major((count,), REGISTER), span=loop.span)
        return ThreadLoop(self, alone).run()

    def _in_role(self, loop: L) -> L:
        """A loop whose thread indices are those of the role that it stands in."""
        if self.role is None or self.thread_var is None:
            return loop
        return substitute(loop, {self.thread_var: self.thread})

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement | None:
        loop = self._in_role(loop)
        if loop.token is not None:
            return self._overridden(loop, "the loop that brings rows")
        left = decided_parts(loop, self)
        if left is None:
            return None
        loop = left
        return self._strided(loop) if loop.layout is None else ThreadLoop(self, loop).run()

    def _strided(self, loop: ir.Parallel) -> ir.Statement:
        """A loop of a size known only at launch: each thread takes every so many-th iteration."""
        total = ir.expr(ir.product(loop.extents))
        start = ir.Var(total.dtype, "first")
        place = start + self.thread
        names = counted_off(loop, place)
        with self.analyzer.scope():
            for var, extent in zip(loop.vars, loop.extents, strict=True):
                self.analyzer.bind_extent(var, extent)
            work = ThreadLoop(self, loop)
            body = work.elements(loop.body, [], [])
        inside = ir.If(ir.index_binary("lt", place, total), ir.seq(names, body.statements), span=loop.span)
        step = ir.const(self.threads, total.dtype)
        return ir.For(start, ir.const(0, total.dtype), total, step, ir.seq(inside), "serial", span=loop.span)

    def guard(
        self, buffer: ir.Buffer, indices: Sequence[ir.Expr], last: Sequence[ir.Expr] | None = None
    ) -> ir.Expr | None:
        if buffer.scope != "global":
            return None
        ends = zip(indices, last or indices, buffer.shape, strict=True)
        tests = [(ir.index_binary("ge", low, 0), ir.index_binary("lt", high, extent)) for low, high, extent in ends]
        return guard_of(test for pair in tests for test in pair if not self.analyzer.prove(test))

    # Operators -----------------------------------------------------------------------------------

    def visit_TileOperator(self, operator: ir.TileOperator) -> ir.Statement:
        return self._overridden(operator, operator.name)

    def visit_Commit(self, commit: ir.Commit) -> ir.Statement:
        return self._overridden(commit, f"the commit of {commit.token}")

    def visit_Wait(self, wait: ir.Wait) -> ir.Statement:
        return self._overridden(wait, f"the wait for {wait.token}")

    def _overridden(self, statement: ir.Statement, name: str) -> ir.Statement:
        """What the target makes of a statement that threads execute together."""
        override, here = self.context.overrides.get(type(statement)), self.context.facts.having(BLOCK, self)
        made = override(statement, replace(self.context, facts=here)) if override is not None else None
        if made is None:
            raise MissingCapability(
                f"{self.context.arch.name} has no way to run {name}",
                span=statement.span,
                hint="docs/targets.md says which machines have it",
            )
        return made if made.span is not None else replace(made, span=statement.span)


def _offset(layout: Layout, indices: Sequence[ir.Expr]) -> ir.Expr:
    """The element of memory at `indices`.

    Where the swizzle permutes chunks within a run of the last dimension alone, only that run is under its exclusive
    or: stages, rows and columns of runs are added to it, so that what is the same for many accesses shows.
    """
    swizzle = layout.swizzle
    first = layout.digits[-1][0] if layout.rank and layout.digits[-1] else None
    if swizzle is None or first is None or (first.stride, first.extent) != (1, 1 << (swizzle.base + swizzle.bits)):
        return layout.expression("memory", indices)
    others = [one for dimension in layout.digits for one in dimension if one is not first]
    if any(one.stride % first.extent for one in others):
        return layout.expression("memory", indices)
    column = indices[-1] % first.extent
    runs = indices[-1] // first.extent * first.extent
    rest = replace(layout, swizzle=None).expression("memory", (*indices[:-1], runs))
    chunk = rest // (1 << (swizzle.base + swizzle.shift)) % (1 << swizzle.bits)
    return rest + ir.index_binary("xor", column, chunk * (1 << swizzle.base))
