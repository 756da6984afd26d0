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
from typing import Any, TypeVar

from tilewright.errors import MissingCapability
from tilewright.ir import nodes as ir
from tilewright.ir.control import perform
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.structure import guard_of
from tilewright.ir.substitution import substitute
from tilewright.ir.visitor import Rewritten, find, variables
from tilewright.layout.constructors import row_major
from tilewright.layout.digits import REGISTER
from tilewright.layout.layout import Layout
from tilewright.ops.base import zero
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.lower.named_barriers import NamedBarriers, named_by_author, number_barriers
from tilewright.passes.lower.own_tiles import own_tiles
from tilewright.passes.lower.register_shares import check_register_shares
from tilewright.passes.lower.thread_loop import ThreadLoop
from tilewright.passes.scoped import DecidingRewriter, PlaceRewriter, counted_off, decided_parts, linear_thread
from tilewright.passes.tile.pipelines.tile_views import view_layouts

L = TypeVar("L", ir.For, ir.Parallel)


def assign_threads(function: ir.Function, context: Context) -> ir.Function:
    """Replace parallel loops, fragments and shared tiles by one thread's registers and places in shared memory."""
    body = Assign(function, context)(function.body)
    return function.with_body(body, "threaded")


class Assign(PlaceRewriter, DecidingRewriter):
    """Rewrites one function; the buffers of the kernel at hand are replaced as they are met."""

    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.threads = 1
        self.layouts: dict[ir.Buffer, Layout] = {}
        self.made: dict[ir.Buffer, ir.Buffer] = {}
        self.safe: dict[ir.Buffer, ir.Expr] = {}
        self.thread: ir.Expr = ir.const(0)
        self.warpgroup: ir.Expr = ir.const(0)
        self.role: ir.Role | None = None
        self.taken: frozenset[int] = frozenset()
        """Named barriers that the author uses."""
        self.barriers = NamedBarriers({})
        self.groups_before: ir.Expr = ir.const(0)
        """Warpgroups of the block before the first of the role's instance."""
        self.cluster = 1
        self.asynchronous: list[ir.TileOperator] = []
        self.endings: dict[object, ir.Statement] = {}
        self.open: list[set[ir.Buffer]] = []
        """Buffers allocated in each Seq around the statement at hand."""

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.cluster = math.prod(kernel.attribute("cluster", (1,)))
        self.asynchronous = _asynchronous(kernel)
        self.taken = named_by_author(kernel)
        self.layouts = {buffer: layout for buffer, layout in kernel.layouts if isinstance(layout, Layout)}
        self.layouts.update(view_layouts(kernel, self.layouts))
        for buffer, layout in kernel.layouts:
            if not isinstance(layout, Layout) and buffer.scope == "shared":
                self.context.warn(
                    f"the layout of {buffer.name} is not made of digits and a swizzle; the tile lies row by row",
                    kernel.span,
                )
        self.safe = dict(kernel.safe_values)
        self.thread = linear_thread(kernel)
        self.threads = kernel.num_threads
        if self.context.arch.has("setmaxnreg"):
            for roles in find(kernel.body, ir.Roles):
                check_register_shares(roles, kernel, self.context.arch)
        group = ir.Var(INT32, "warpgroup")
        self.warpgroup = group
        made = super().visit_Kernel(kernel)
        if group in variables(made.body):
            number = self.thread // ir.WARPGROUP
            name = ir.Let(group, ir.Call(INT32, "warp_uniform", (number,)))
            made = replace(made, body=replace(made.body, statements=(name, *made.body.statements)))
        return replace(made, layouts=())

    # Roles ---------------------------------------------------------------------------------------

    def visit_Roles(self, roles: ir.Roles) -> Rewritten:
        """Each role under a condition on the warp; in it threads count from the role's first one."""
        outside = (self.thread, self.threads, self.warpgroup, self.asynchronous, self.groups_before)
        warp = ir.Var(INT32, "warp")
        warps = self.thread // ir.WARP
        head = ir.Let(warp, ir.Call(INT32, "warp_uniform", (warps,)), span=roles.span)
        self.barriers = number_barriers(roles, self.taken)
        first, groups = 0, []
        for group in roles.warpgroups():
            branches = []
            for role in group:
                body = self._role(role, outside[0], warp, first)
                first += role.all_warps
                branches.append((first, body, role))
            chosen = _by_warp(warp, branches)
            groups.append((first, ir.seq(self._registers(group[0]), chosen.statements), group[0]))
        self.role = None
        self.thread, self.threads, self.warpgroup, self.asynchronous, self.groups_before = outside
        return [head, *_by_warp(warp, groups).statements]

    def _registers(self, role: ir.Role) -> list[ir.Statement]:
        """What a warpgroup says to keep its number of registers, all its warps at one place; nothing on a machine whose
        warps keep those they start with."""
        if role.registers is None or not self.context.arch.has("setmaxnreg"):
            return []
        return [perform("setmaxnreg", ir.const(role.registers), span=role.span)]

    def _role(self, role: ir.Role, thread: ir.Expr, warp: ir.Var, first: int) -> ir.Seq:
        """The body of one role, whose first warp is number `first` of the block."""
        threads = role.threads
        own, group = ir.Var(INT32, "thread"), ir.Var(INT32, "warpgroup")
        self.thread, self.threads, self.warpgroup = own, threads, group
        self.asynchronous, self.endings = _asynchronous(role), {}
        self.role, self.groups_before = role, ir.const(first * ir.WARP // ir.WARPGROUP)
        if role.index is not None and role.instances > 1:
            own_groups = role.index * (threads // ir.WARPGROUP)
            self.groups_before = self.groups_before + own_groups
        with self.analyzer.scope():
            self.bind_role(role)
            self.analyzer.bind_extent(own, threads)
            self.analyzer.bind_extent(group, max(1, threads // ir.WARPGROUP))
            body = self(role.body)
        body = own_tiles(role, ir.seq(body.statements, list(self.endings.values())))
        if not body.statements:
            return body
        head: list[ir.Statement] = []
        number = thread - first * ir.WARP
        if threads & (threads - 1) == 0:  # tells the target's compiler of the range, also where there is one instance
            number = ir.binary("and", number, ir.const(threads - 1))
        elif role.instances > 1:
            number = number % threads
        head.append(ir.Let(own, number))
        own_threads = (ir.binary("ge", own, ir.const(0)), ir.binary("lt", own, ir.const(threads)))
        head.append(ir.Assume(ir.binary("all", *own_threads), span=role.span))
        if role.index is not None:
            instance = (warp - first) // role.warps
            head.append(ir.Let(role.index, instance, span=role.span))
            inside = (ir.binary("ge", role.index, ir.const(0)), ir.binary("lt", role.index, ir.const(role.instances)))
            head.append(ir.Assume(ir.binary("all", *inside), span=role.span))
        if group in variables(body):
            head.append(ir.Let(group, ir.Call(INT32, "warp_uniform", (own // ir.WARPGROUP,))))
        return ir.seq(head, body.statements)

    def map_var(self, var: ir.Var) -> ir.Expr:
        return self.thread if self.role is not None and var is self.thread_var else var

    def visit_Evaluate(self, evaluate: ir.Evaluate) -> Rewritten:
        value = evaluate.value
        if isinstance(value, ir.Call) and value.function == "settle":
            assert isinstance(value.arguments[0], ir.Region)
            registers = self.map_buffer(value.arguments[0].buffer)
            return perform("hold_registers", ir.whole(registers), span=evaluate.span)
        if isinstance(value, ir.Call) and value.function in ("take_turn", "pass_turn", "end_turns"):
            return self._turn(value, evaluate.span)
        if isinstance(value, ir.Call) and value.function == "sync_threads":
            return replace(evaluate, value=self.meeting())
        return self.generic(evaluate)

    def meeting(self) -> ir.Call:
        """Where all threads of the role meet, or of the block."""
        if self.role is None:
            return ir.Call(BOOL, "sync_threads", ())
        if self.role.warps == 1:
            return ir.Call(BOOL, "sync_warp", ())
        if not self.context.arch.has("named_barrier"):
            raise MissingCapability(
                f"{self.context.arch.name} has no barriers of some of a block's warps, at which those of "
                f"{self.role.name} meet",
                span=self.role.span, hint="let one warp do it, or all threads of the block",
            )  # fmt: skip
        number: ir.Expr = ir.const(self.barriers.meetings[self.role.name])
        if self.role.instances > 1 and self.role.index is not None:
            number = self.role.index + number
        return ir.Call(BOOL, "named_barrier_sync", (number, ir.const(self.threads)))

    def _turn(self, word: ir.Call, span: Any) -> ir.Statement:
        """A warpgroup, or an instance of the role, waits for the one before it, or lets the next one go on: each has a
        named barrier."""
        assert self.role is not None
        several = self.role.instances > 1 and self.role.index is not None
        number = self.role.index if several and self.role.index is not None else self.warpgroup
        count, threads = (
            (self.role.instances, self.threads) if several else (self.threads // ir.WARPGROUP, ir.WARPGROUP)
        )
        own = number
        if word.function == "pass_turn":
            own = (own + 1) % count
        function = "named_barrier_arrive" if word.function == "pass_turn" else "named_barrier_sync"
        place = self.analyzer.simplify(own + self.barriers.turns)
        meeting = perform(function, place, ir.const(2 * threads), span=span)
        leads = ir.index_binary("eq", number, 0)
        if word.function == "end_turns":
            return ir.If(leads, ir.seq(meeting), span=span)
        alone = [self.visit(one) for one in word.operands]
        if not alone or (isinstance(alone[0], ir.Const) and not alone[0].value):
            return ir.seq(meeting)
        free = self.analyzer.simplify(ir.binary("all", leads, alone[0]))
        return ir.If(ir.Unary(BOOL, "not", free), ir.seq(meeting), span=span)

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
        """A shared access in the one dimension of its layout; others unchanged."""
        layout = self.layouts.get(buffer)
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
        """The condition under which a global access is in bounds, up to the element at `last` where it has several;
        None where it always is."""
        if buffer.scope != "global":
            return None
        ends = zip(indices, last or indices, buffer.shape, strict=True)
        tests = [(ir.index_binary("ge", low, 0), ir.index_binary("lt", high, extent)) for low, high, extent in ends]
        return guard_of(test for pair in tests for test in pair if not self.analyzer.prove(test))

    def is_outside(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> bool:
        """Whether an access is out of bounds whatever happens."""
        prove = self.analyzer.prove
        return any(
            prove(ir.index_binary("lt", index, 0))
            or prove(ir.index_binary("ge", index, extent))
            or prove(ir.index_binary("le", extent, 0))
            for index, extent in zip(indices, buffer.shape, strict=True)
        )

    # Operators -----------------------------------------------------------------------------------

    def visit_TileOperator(self, operator: ir.TileOperator) -> ir.Statement:
        return self._overridden(operator, operator.name)

    def visit_Commit(self, commit: ir.Commit) -> ir.Statement:
        return self._overridden(commit, f"the commit of {commit.token}")

    def visit_Wait(self, wait: ir.Wait) -> ir.Statement:
        return self._overridden(wait, f"the wait for {wait.token}")

    def _overridden(self, statement: ir.Statement, name: str) -> ir.Statement:
        """What the target makes of a statement that threads execute together."""
        override = self.context.overrides.get(type(statement))
        made = (
            override(statement, replace(self.context, facts=self.context.facts.having(BLOCK, BlockView(self))))
            if override
            else None
        )
        if made is None:
            raise MissingCapability(
                f"{self.context.arch.name} has no way to run {name}", span=statement.span,
                hint="docs/targets.md says which machines have it",
            )  # fmt: skip
        return made if made.span is not None else replace(made, span=statement.span)


def _asynchronous(node: ir.Kernel | ir.Role) -> list[ir.TileOperator]:
    return [found for found in find(node, ir.TileOperator) if found.token is not None]


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


def _by_warp(warp: ir.Var, branches: Sequence[tuple[int, ir.Seq, ir.Role]]) -> ir.Seq:
    """Each warp takes the first of the branches that ends behind it."""
    *others, (_, otherwise, _) = branches
    for end, body, role in reversed(others):
        otherwise = ir.seq(ir.If(ir.binary("lt", warp, ir.const(end)), body, otherwise, span=role.span))
    return otherwise
