"""Work of the block in divergent code is distributed over the threads that reach it.

Conditions that select whole warps become roles (`language.divisions`). Other threads take elements round robin.

Before::

    @stage("traced")
    def f(A: float32[64], B: float32[64]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            if tx < 16:
                for i in parallel(64):
                    B[i] = A[i]

After::

    @stage("traced")
    def f(A: float32[64], B: float32[64]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            if tx < 16:
                for iteration in range(4):
                    element: int32 = tx + iteration * 16
                    with scope():
                        i: int32 = element
                        B[i] = A[i]

This is for machines whose blocks have many threads. In the interpreter the block does such work if any thread reaches
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from tilewright.errors import DivergentWork
from tilewright.interpreter.over_threads import over_threads, thread_indices
from tilewright.interpreter.varying import find_varying, is_exchange
from tilewright.ir import INT32, LEAVING, LOOPS, flattened, header, leaving, mentioned, performed, substitute
from tilewright.ir import nodes as ir
from tilewright.ir.effects import own_writes, root, uses
from tilewright.ir.visitor import Rewriter, Rewritten, listed, with_statements
from tilewright.ir.walking import find, holds
from tilewright.language.divisions import divide, parts_work
from tilewright.language.shared_work import is_dealt, is_shared_work
from tilewright.passes import Context, counted_off, map_kernels
from tilewright.passes.tile.layouts.plan_synchronization import BARRIERS

Mask: TypeAlias = "np.ndarray | None"
"""The threads of a block that reach a statement: an array of bools, or None where it is known only at run time."""


def distribute_work(function: ir.Function, context: Context) -> ir.Function:
    """Distribute work in divergent code over the threads that execute it.

    Raises
    ------
    DivergentWork : which threads reach it is known only at run time; or the work needs all threads.
    MisplacedRole : warps that are not contiguous share work.
    """
    return map_kernels(function, _distributed)


def _distributed(kernel: ir.Kernel) -> ir.Kernel:
    if set(kernel.thread_vars).isdisjoint(find(kernel.body, ir.Var)):
        return kernel
    if not holds(kernel.body, ir.Parallel, ir.TileOperator):
        synchronises = any(performed(one) in BARRIERS for one in find(kernel.body, ir.Evaluate))
        return kernel.with_body(_BarriersOnly(kernel)(kernel.body)) if synchronises else kernel
    if parts_work(kernel.body, kernel.thread_vars, kernel.threads):
        body, copies = divide(kernel.body, kernel.thread_vars, kernel.threads)
        layouts = [(made, layout) for buffer, layout in kernel.layouts for made in copies.get(buffer, ())]
        kernel = replace(kernel, body=body, layouts=(*kernel.layouts, *layouts))
    return kernel.with_body(_Distribute(kernel)(kernel.body))


@dataclass(slots=True)
class _Workers:
    """The threads that do the work: `count` of them, every `step`-th from `first` on; `number` is a thread's own.

    Attributes
    ----------
    alone : whether no other threads reach it.
    """

    number: ir.Expr
    first: int
    step: int
    count: int
    alone: bool = True

    def rank(self) -> ir.Expr:
        """A thread's number among them."""
        return (self.number - self.first) // self.step


@dataclass(slots=True)
class _Done:
    """Something that some of the threads do.

    Attributes
    ----------
    together : whether it is distributed over them; otherwise each does it for itself.
    one : the thread, where it is a single one.
    written, read : buffers.
    """

    together: bool
    one: bytes | None
    written: set[ir.Buffer]
    read: set[ir.Buffer]


class _Distribute(Rewriter):
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        x, y, _ = kernel.threads
        tx, ty, tz = kernel.thread_vars
        self.indices = thread_indices(kernel.thread_vars, kernel.threads)
        row = ty + tz * y if kernel.threads[2] > 1 else ty
        self.number: ir.Expr = tx if kernel.threads[1:] == (1, 1) else tx + row * x
        self.varying = find_varying(kernel)
        self.names: dict[ir.Var, ir.Expr] = {}
        self.coming: Mask = np.ones(kernel.num_threads, bool)
        self.gone: Mask = np.zeros(kernel.num_threads, bool)
        """Threads that have returned, for which no barrier waits. None where it is known only at run time."""
        self.done: list[_Done] = []
        """What some of the threads have done since the last statement of all, in order."""

    def visit_Roles(self, roles: ir.Roles) -> ir.Roles:
        if self.coming is None or not self.coming.all():
            work = next(one for one in find(roles, ir.Statement) if not isinstance(one, (ir.Roles, ir.Role, ir.Seq)))
            raise self._refused("warps diverge inside it", work)
        for role in roles.roles:
            self._refuse_unknown(role)
        return roles

    def _refuse_unknown(self, role: ir.Role) -> None:
        """Refuse work of a role under conditions on values of its threads (`divide` handles conditions on indices);
        results of exchanges count as uniform."""
        told = {
            one.var if isinstance(one, ir.Let) else root(one.buffer)
            for one in find(role.body, ir.Let, ir.Store)
            if is_exchange(one)
        }
        varying = find_varying(replace(self.kernel, body=role.body)).names - told
        for branch in find(role.body, ir.If):
            known = over_threads(branch.condition, {self.kernel.thread_vars[0]: np.arange(role.threads)})
            if known is not None or varying.isdisjoint(mentioned(branch.condition)):
                continue
            work = next((one for one in find(branch, ir.Statement) if is_shared_work(one)), None)
            if work is not None:
                self.coming = None
                self._workers_of(work)

    def visit_Let(self, let: ir.Let) -> ir.Let:
        self.names[let.var] = substitute(let.value, self.names)
        self._alone(let)
        return let

    def visit_Store(self, statement: ir.Statement) -> ir.Statement:
        self._alone(statement)
        return statement

    def visit_Evaluate(self, statement: ir.Evaluate) -> ir.Statement:
        """A barrier of the author's that some threads are known to reach and others not."""
        coming, gone = self.coming, self.gone
        if performed(statement) not in BARRIERS or coming is None or gone is None:
            return self.visit_Store(statement)
        if coming.any() and not (coming | gone).all():
            raise self._refused("the other threads would have to wait", statement)
        return self.visit_Store(statement)

    def visit_Return(self, statement: ir.Return) -> ir.Return:
        self.gone = None if self.coming is None or self.gone is None else self.gone | self.coming
        return statement

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        """Statements behind one at which some threads return belong to the others."""
        before = self.coming
        made: list[ir.Statement] = []
        for one in body.statements:
            found = self(one)
            made += listed(found)
            if isinstance(one, ir.If) and any(isinstance(last, LEAVING) for last in one.then.statements[-1:]):
                self.coming = self._of(one.condition, False)
            elif self._leaves_early(one):
                self.coming = None
        self.coming = before
        self.done = self.done if self._is_partial() else []
        return with_statements(body, made)

    def _leaves_early(self, statement: ir.Statement) -> bool:
        """Whether some threads return in a statement and others go on."""
        if not (holds(statement, ir.Return) or any(leaving(statement))):
            return False
        around = (one for one in find(statement, ir.If, *LOOPS) if holds(one, ir.Return) or any(leaving(one)))
        return any(self._varies(part) for one in around for part in header(one))

    def visit_If(self, branch: ir.If) -> Rewritten:
        outside, before = self.coming, self.done
        self._alone(branch, branch.condition)
        parts: list[ir.Seq | None] = []
        after: list[_Done] = []
        for part, holds_then in ((branch.then, True), (branch.otherwise, False)):
            self.coming, self.done = self._of(branch.condition, holds_then, outside), list(before)
            parts.append(None if part is None else self(part))
            after += self.done[len(before) :]
        self.coming = outside
        self.done = [*before, *after] if self._is_partial() else []  # the block waits for them
        if parts[0] is branch.then and parts[1] is branch.otherwise:
            return branch
        return replace(branch, then=parts[0] or ir.seq(), otherwise=parts[1])

    def visit_For(self, loop: ir.For | ir.Pipelined | ir.While) -> ir.Statement:
        """A loop; where the number of iterations varies between threads, it is unknown which of them reach its body."""
        outside, before = self.coming, len(self.done)
        ends = (loop.condition,) if isinstance(loop, ir.While) else (loop.start, loop.stop)
        if any(self._varies(end) for end in ends if isinstance(end, ir.Expr)):
            self.coming = None
        made = self.generic(loop)
        done = self.done[before:]
        if any(_needs_barrier(one, other) for one in done for other in done):
            raise self._refused("its iterations communicate between threads", loop)
        self.coming = outside
        return made

    visit_Pipelined = visit_While = visit_For

    def visit_TileOperator(self, operator: ir.TileOperator) -> Rewritten:
        return self._work(operator, lambda: operator.lower()) if is_dealt(operator) else operator

    def visit_Parallel(self, loop: ir.Parallel) -> Rewritten:
        return self._work(loop, lambda: loop) if is_dealt(loop) else loop

    # Threads -------------------------------------------------------------------------------------

    def _varies(self, condition: ir.Expr) -> bool:
        return not self.varying.names.isdisjoint(mentioned(condition))

    def _of(self, condition: ir.Expr, holds_then: bool, outside: Mask | EllipsisType = ...) -> Mask:
        """The threads for which a condition holds (or does not), of those outside."""
        mask = self.coming if isinstance(outside, EllipsisType) else outside
        if not self._varies(condition) or mask is None:
            return mask
        if isinstance(condition, ir.Binary) and condition.op == ("all" if holds_then else "any"):
            # Both must hold (or fail); what decides for the whole block decides for all its threads alike.
            return self._of(condition.right, holds_then, self._of(condition.left, holds_then, mask))
        found = over_threads(substitute(condition, self.names), self.indices)
        if found is None:
            return None
        found = np.broadcast_to(np.asarray(found, bool), mask.shape)
        return mask & (found if holds_then else ~found)

    def _is_partial(self) -> bool:
        """Whether only some threads reach the statement."""
        return self.coming is None or not self.coming.all()

    # Work ---------------------------------------------------------------------------------------

    def _work(self, statement: ir.Statement, lowered: Callable[[], ir.Statement]) -> ir.Statement:
        if statement in self.varying.dependent:
            self._alone(statement)
            return statement  # each thread's own
        if self.coming is not None and not self.coming.any():
            return ir.seq()  # no thread does it, so none must wait for it
        if self.coming is not None and self.coming.all():
            return statement
        some = self._workers_of(statement)
        touched = {root(one) for one in uses(statement) if isinstance(one, ir.Buffer)}
        if any(one.scope == "fragment" for one in touched):
            raise self._refused("a fragment is distributed over all threads", statement)
        loops = list(flattened(replace(lowered(), span=statement.span)))
        for loop in loops:
            self._note(loop, loop, together=True)
        return ir.seq(*(_one_by_one(loop, some) for loop in loops)) if len(loops) > 1 else _one_by_one(loops[0], some)

    def _alone(self, statement: ir.Statement, part: ir.Expr | None = None) -> None:
        """Record what a thread does for itself, where only some reach it."""
        if self._is_partial():
            self._note(statement, part or statement, together=False)

    def _note(self, statement: ir.Statement, part: ir.Statement | ir.Expr, together: bool) -> None:
        """Record what these threads do; refused where it would need a barrier among them."""
        mask = None if self.coming is None else self.coming.tobytes() if self.coming.sum() == 1 else None
        written = {root(one) for node in find(part, ir.Statement) for one in own_writes(node)}
        one = _Done(together, mask, written, {root(load.buffer) for load in find(part, ir.Load)})
        if any(_needs_barrier(earlier, one) for earlier in self.done):
            raise self._refused(
                "it communicates with other threads in divergent code, where there can be no barrier", statement
            )
        self.done.append(one)

    def _workers_of(self, statement: ir.Statement) -> _Workers:
        if self.coming is None:
            raise self._refused("the condition is known only when the kernel runs", statement)
        numbers = np.flatnonzero(self.coming)
        steps = np.diff(numbers)
        if len(set(steps.tolist())) <= 1:
            return _Workers(self.number, int(numbers[0]), int(steps[0]) if len(steps) else 1, len(numbers))
        # Threads without a constant step: the longest contiguous run of them does the work.
        rows = np.split(numbers, np.flatnonzero(steps > 1) + 1)
        row = max(rows, key=len)
        return _Workers(self.number, int(row[0]), 1, len(row), alone=False)

    def _refused(self, reason: str, statement: ir.Statement) -> DivergentWork:
        what = statement.name if isinstance(statement, ir.TileOperator) else "this loop"
        work = f"{what}, which is distributed over the threads of the block,"
        if isinstance(statement, ir.Evaluate):
            work = f"T.{performed(statement)}, a barrier of the block,"
        return DivergentWork(
            f"{work} is in divergent code: {reason}",
            span=statement.span,
            hint="move it out of the condition, or make the condition uniform for contiguous whole warps",
        )


class _BarriersOnly(_Distribute):
    """Checks the barriers of a kernel whose threads share no work; exchanges of data are not checked."""

    def _alone(self, statement: ir.Statement, part: ir.Expr | None = None) -> None:
        pass


def _needs_barrier(first: _Done, second: _Done) -> bool:
    """Whether a barrier is needed between two things that threads do; what each thread does for itself its author
    synchronises."""
    if not (first.together or second.together) or (first.one is not None and first.one == second.one):
        return False
    found = (first.written & second.read) | (first.read & second.written)
    again = {tile for tile in first.written & second.written if tile.scope == "shared"}
    return any(tile.scope in ("shared", "global") for tile in found) or bool(again)


def _one_by_one(loop: ir.Statement, some: _Workers) -> ir.Statement:
    """A parallel loop whose elements threads take round robin."""
    if not isinstance(loop, ir.Parallel):
        return loop
    total = ir.expr(ir.product(loop.extents))
    iteration, element = ir.Var(INT32, "iteration"), ir.Var(INT32, "element")
    at = some.rank() + iteration * some.count
    body: ir.Seq = ir.Seq((*counted_off(loop, element)[::-1], *loop.body.statements), span=loop.span)
    known = total.value if isinstance(total, ir.Const) else None
    iterations = (total + (some.count - 1)) // some.count
    if known is None or known % some.count:
        body = ir.Seq((ir.If(ir.index_binary("lt", element, total), body, span=loop.span),))
    inside = ir.Seq((ir.Let(element, at), body), span=loop.span)
    made = ir.For(iteration, ir.const(0), iterations, ir.const(1), inside, span=loop.span)
    if some.alone:
        return made
    rank = some.rank()
    inside_row = ir.binary("all", ir.index_binary("ge", rank, 0), ir.index_binary("lt", rank, some.count))
    return ir.If(inside_row, ir.Seq((made,)), span=loop.span)
