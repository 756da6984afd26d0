"""Neighbouring loops that walk over the same places become one: a row is passed once, not once a statement.

Before::

    @stage("final")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[64])
            for i in range(0, 64, 16):
                row[i].x16 = A[i].x16
            for j in range(0, 64, 32):
                C[j].x16 = row[j].x16 * row[j].x16
                C[j + 16].x16 = row[j + 16].x16 * row[j + 16].x16

After::

    @stage("final")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[64])
            for j in range(0, 64, 32):
                row[j].x16 = A[j].x16
                row[j + 16].x16 = A[j + 16].x16
                C[j].x16 = row[j].x16 * row[j].x16
                C[j + 16].x16 = row[j + 16].x16 * row[j + 16].x16

Where one loop goes further than the other, what is left of it follows the joined one; ends of rows that stand between
two loops, and have nothing to do with the first, go in front of both.

A tile that leaves the registers is written and read again by every loop over it; in one loop its values stay in
registers from the first statement to the last, and what is bound by the memory and what is bound by
arithmetic go on together.  Two loops are one where each iteration of the second only meets what the same iteration
of the first has written, or will overwrite what it has read (the classical condition: no dependence carried
backwards; Wolfe, "High Performance Compilers for Parallel Computing", 1996, section 9.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir import INTRINSICS, find, root, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.passes import Context, ScopedRewriter, bind_loop, fresh, with_values
from tilewright.passes.thread.first_lanes import access_of

WIDEST_RATIO = 8
"""Iterations of the narrower loop that stand behind one another in one of the wider."""
MOST_STATEMENTS = 48
"""Loops that together hold more are left apart: their values would not fit the registers."""


def fuse_loops(function: ir.Function, context: Context) -> ir.Function:
    """Join neighbouring loops over the same places."""
    return function.with_body(_Fuse(function)(function.body))


@dataclass(frozen=True)
class LoopAccess:
    """One load or store of `lanes` neighbouring elements from `index` on."""

    buffer: ir.Buffer
    index: ir.Expr
    lanes: int
    writes: bool


@dataclass(frozen=True)
class _Window:
    """Places from ``stride * i + origin + low`` up to `high`, not included, in iteration i."""

    stride: int
    origin: ir.Expr
    low: int
    high: int


class _Fuse(ScopedRewriter):
    def visit_Seq(self, sequence: ir.Seq) -> ir.Seq:
        statements = list(_without_single_trips(sequence.statements))
        position = 0
        with self.analyzer.scope():
            while position < len(statements):
                first = statements[position]
                if isinstance(first, ir.Let):
                    super().visit_Let(first)
                if isinstance(first, ir.For) and self.joined_with_next(statements, position):
                    continue
                position += 1
        return super().visit_Seq(with_statements(sequence, statements))

    def joined_with_next(self, statements: list[ir.Statement], position: int) -> bool:
        """Join the loop at `position` with the next one, with what stands between them in front of both."""
        first = statements[position]
        assert isinstance(first, ir.For)
        between = position + 1
        with self.analyzer.scope():
            while between < len(statements) and self.movable(statements[between]):
                named = statements[between]
                if isinstance(named, ir.Let):
                    super().visit_Let(named)
                between += 1
            if between == len(statements):
                return False
            second = statements[between]
            moved = statements[position + 1 : between]
            if not isinstance(second, ir.For) or not self.independent(first, moved):
                return False
            made = self.joined_in_common(first, second)
        if made is None:
            return False
        statements[position : between + 1] = [*moved, *made]
        return True

    def movable(self, statement: ir.Statement) -> bool:
        """Whether it may stand in front of loops that have nothing to do with it."""
        if isinstance(statement, ir.For):
            return _plain(statement) and self.runs_at_most_once(statement)
        return isinstance(statement, (ir.Allocate, ir.Let, ir.Store, ir.Evaluate)) and all(
            _simple(node) for node in walk(statement)
        )

    def runs_at_most_once(self, loop: ir.For) -> bool:
        most = self.analyzer.bounds(loop.stop - loop.start)[1]
        return most is not None and most <= _step(loop)

    def independent(self, loop: ir.For, moved: list[ir.Statement]) -> bool:
        """Whether the statements behind `loop` may as well stand in front of it."""
        inside, behind = list(_accesses(loop)), [access for statement in moved for access in _accesses(statement)]
        with self.analyzer.scope():
            for outer in (loop, *moved):
                for node in find(outer, ir.For):
                    self.bind_steps(node)
            return not any(
                root(ours.buffer) is root(theirs.buffer)
                and (ours.writes or theirs.writes)
                and not self.disjoint(ours, theirs)
                for theirs in behind
                for ours in inside
            )

    def disjoint(self, one: LoopAccess, other: LoopAccess) -> bool:
        places = one.index, one.lanes, other.index, other.lanes
        return one.buffer is other.buffer and self.analyzer.apart(*places)

    def joined_in_common(self, first: ir.For, second: ir.For) -> list[ir.Statement] | None:
        """Both loops as one as far as both go, then what is left of one of them; None where they stay apart."""
        longer = self.analyzer.bounds(first.stop - second.stop)
        if longer[0] is None or longer[0] != longer[1] or longer[0] == 0:
            joined = self.joined(first, second)
            return None if joined is None else [joined]
        stop = second.stop if longer[0] > 0 else first.stop
        loop = first if longer[0] > 0 else second
        extent = self.analyzer.bounds(stop - loop.start)[0]
        if extent is None or extent < abs(longer[0]) or not isinstance(loop.step, ir.Const):
            return None
        if not self.analyzer.divides(stop - loop.start, _step(loop)):
            return None
        common = replace(loop, stop=stop)
        joined = self.joined(common, second) if loop is first else self.joined(first, common)
        return None if joined is None else [joined, fresh(replace(loop, start=stop))]

    def joined(self, first: ir.For, second: ir.For) -> ir.For | None:
        """Both loops as one, or None where an iteration of one meets what another iteration of the other wrote."""
        if not (_plain(first) and _plain(second) and self.same_range(first, second)):
            return None
        if _weight(first) + _weight(second) > MOST_STATEMENTS:
            return None
        step = max(_step(first), _step(second))
        ratios = [step // _step(loop) for loop in (first, second)]
        if any(step % _step(loop) or not self.whole(loop, step) for loop in (first, second)):
            return None
        if max(ratios) > WIDEST_RATIO or not self.keep_apart(first, second, step):
            return None
        wider = first if ratios[0] == 1 else second
        bodies = [
            statement
            for loop, ratio in zip((first, second), ratios, strict=True)
            for copy in range(ratio)
            for statement in self.copy_of(loop, wider, copy)
        ]
        kind = "vectorize" if first.kind == second.kind == "vectorize" else "serial"
        return replace(wider, step=ir.const(step, wider.var.dtype), body=ir.Seq(tuple(bodies)), kind=kind)

    def copy_of(self, loop: ir.For, wider: ir.For, copy: int) -> tuple[ir.Statement, ...]:
        """The body of `loop` for the iteration `copy` of those that one of `wider` stands for."""
        body = fresh(loop.body) if copy else loop.body
        place = wider.var + copy * _step(loop)
        if loop is wider and copy == 0:
            return body.statements
        return with_values(body, {loop.var: ir.cast(place, loop.var.dtype)}).statements

    def same_range(self, first: ir.For, second: ir.For) -> bool:
        return self.analyzer.equal(first.start, second.start) and self.analyzer.equal(first.stop, second.stop)

    def whole(self, loop: ir.For, step: int) -> bool:
        """Whether steps of this size end where the loop does."""
        return step == _step(loop) or self.analyzer.divides(loop.stop - loop.start, step)

    def keep_apart(self, first: ir.For, second: ir.For, step: int) -> bool:
        """Whether iterations of both loops share places only with each other, and do share some."""
        ours, theirs = list(_accesses(first)), list(_accesses(second))
        if any(access.buffer.source is not None for access in (*ours, *theirs)):
            return False
        shared = {access.buffer for access in ours} & {access.buffer for access in theirs}
        written = {access.buffer for access in (*ours, *theirs) if access.writes}
        return bool(shared) and all(self.one_window(first, second, buffer, step) for buffer in shared & written)

    def one_window(self, first: ir.For, second: ir.For, buffer: ir.Buffer, step: int) -> bool:
        """Whether each iteration touches a window of `buffer` of its own, the same one in both loops."""
        ours, theirs = self.window(first, buffer), self.window(second, buffer)
        if ours is None or theirs is None or ours.stride != theirs.stride:
            return False
        least, most = self.analyzer.bounds(theirs.origin - ours.origin)
        if least is None or least != most:
            return False
        # One iteration of both stands for several of the loop of smaller steps.
        ends = [one.high + one.stride * (step - _step(loop)) for loop, one in ((first, ours), (second, theirs))]
        low, high = min(ours.low, theirs.low + least), max(ends[0], ends[1] + least)
        return high - low <= ours.stride * step

    def window(self, loop: ir.For, buffer: ir.Buffer) -> _Window | None:
        """The places of `buffer` that an iteration of `loop` touches, or None where they do not move with it."""
        with self.analyzer.scope():
            for inner in find(loop.body, ir.For):
                self.bind_steps(inner)
            strides, origins = set(), []
            for access in _accesses(loop):
                if access.buffer is buffer:
                    stride = self.analyzer.stride(access.index, loop.var)
                    strides.add(int(stride.value) if isinstance(stride, ir.Const) else 0)
                    origins.append((with_values(access.index, {loop.var: ir.const(0, loop.var.dtype)}), access.lanes))
            if len(strides) != 1 or min(strides) <= 0:
                return None
            reference = self.fixed(origins[0][0], loop)
            low = high = 0
            for origin, lanes in origins:
                least, most = self.analyzer.bounds(origin - reference)
                if least is None or most is None:
                    return None
                low, high = min(low, least), max(high, most + lanes)
        return _Window(strides.pop(), reference, low, high)

    def bind_steps(self, loop: ir.For) -> None:
        """Tell the analyzer the values of an inner loop's variable, the last of which is a step before the end."""
        if isinstance(loop.step, ir.Const) and self.analyzer.divides(loop.stop - loop.start, loop.step):
            self.analyzer.bind(loop.var, loop.start, self.analyzer.simplify(ir.binary("sub", loop.stop, loop.step)))
        else:
            bind_loop(self.analyzer, loop)

    def fixed(self, origin: ir.Expr, loop: ir.For) -> ir.Expr:
        """`origin` where every loop inside `loop` is at its start, so that it means something outside."""
        inner = {node.var: node.start for node in find(loop.body, ir.For)}
        return with_values(origin, inner) if inner else origin


def _without_single_trips(statements: tuple[ir.Statement, ...]) -> Iterator[ir.Statement]:
    """Loops that run exactly once are their body."""
    for statement in statements:
        once = isinstance(statement, ir.For) and _plain(statement) and statement.runs_once
        if once and isinstance(statement, ir.For):
            body = with_values(fresh(statement.body), {statement.var: statement.start})
            yield from _without_single_trips(body.statements)
        else:
            yield statement


def _plain(loop: ir.For) -> bool:
    """Whether the body is nothing but loads, arithmetic, stores and loops of such: it may be moved past others."""
    return isinstance(loop.step, ir.Const) and all(map(_simple, find(loop.body, ir.Statement, ir.Call)))


def _simple(node: ir.Record) -> bool:
    if isinstance(node, ir.Call):
        return access_of(node) is not None or _pure(node)
    if isinstance(node, ir.Evaluate):
        return access_of(node.value) is not None
    return not isinstance(node, ir.Statement) or isinstance(
        node, (ir.Seq, ir.For, ir.Store, ir.Let, ir.Allocate, ir.If)
    )


def _pure(call: ir.Call) -> bool:
    record = INTRINSICS[call.function]
    return record.pure and all(isinstance(argument, ir.Expr) for argument in call.arguments)


def _accesses(node: ir.Statement) -> Iterator[LoopAccess]:
    """Every load and store at or below `node` of buffers that are not `node`'s own."""
    own = {part.buffer for part in find(node, ir.Allocate)} if isinstance(node, ir.For) else set()
    for part in find(node, ir.Load, ir.Store, ir.Allocate, ir.Call):
        if isinstance(part, (ir.Load, ir.Store)) and part.buffer not in own:
            (index,) = part.indices
            dtype = part.dtype if isinstance(part, ir.Load) else part.value.dtype
            yield LoopAccess(part.buffer, index, dtype.lanes, isinstance(part, ir.Store))
        elif isinstance(part, ir.Allocate) and part.initial is not None and part.buffer not in own:
            yield LoopAccess(part.buffer, ir.const(0), 1, True)
        elif isinstance(part, ir.Call) and (found := access_of(part)) is not None:
            region, writes = found
            if region.buffer not in own:
                yield LoopAccess(region.buffer, region.starts[0], part.dtype.lanes, writes)


def _step(loop: ir.For) -> int:
    assert isinstance(loop.step, ir.Const)
    return int(loop.step.value)


def _weight(loop: ir.For) -> int:
    return len(list(find(loop.body, ir.Store)))
