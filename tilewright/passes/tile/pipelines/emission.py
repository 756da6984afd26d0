"""The statements of a software pipeline, as its plan says: first copies, a loop that starts those of later iterations,
waits."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir import conjunction, substitute
from tilewright.ir import nodes as ir
from tilewright.ops import CP_ASYNC, Copy
from tilewright.passes.scoped import fresh, plain_loop, redirected
from tilewright.passes.tile.pipelines.pipeline_plan import Name, PipelinePlan, needed_names
from tilewright.passes.tile.pipelines.tile_views import with_views

S = TypeVar("S", bound=ir.Statement)


@dataclass(slots=True)
class Emission:
    """The statements of one pipeline, as its plan says."""

    plan: PipelinePlan
    token: str
    declared: Mapping[ir.Buffer, Span | None]
    views: list[ir.Buffer]
    views_of_stages: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    staged: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    analyzer: Analyzer = field(default_factory=Analyzer)

    def __post_init__(self) -> None:
        for buffer, copies in self.plan.staged.items():
            self.staged[buffer] = replace(buffer, name=f"{buffer.name}_stages", shape=(copies, *buffer.shape))

    def run(self) -> list[ir.Statement]:
        """The statements; those tiles that got stages are `staged`."""
        plan = self.plan
        outside = [one for one in plan.allocations if one.buffer not in self.staged and self._ahead(one.buffer)]
        inside = [one for one in plan.allocations if one.buffer not in self.staged and one not in outside]
        made: list[ir.Statement] = [
            ir.Allocate(staged, span=self.declared.get(buffer)) for buffer, staged in self.staged.items()
        ]
        made += outside
        for step in range(plan.depth):
            made += self._step(step)
        loop = plain_loop(plan.loop)
        body = ir.seq(inside, self._names(), self._step(None))
        made.append(replace(loop, body=body))
        return made

    def _ahead(self, buffer: ir.Buffer) -> bool:
        """Whether statements of several stages use a buffer that is declared in the body."""
        return any(
            stage < self.plan.depth and buffer in effects.all
            for stage, effects in zip(self.plan.stages, self.plan.effects, strict=True)
        )

    def _names(self) -> list[ir.Statement]:
        """The names that statements of the last stage use, and those kept for what declares nothing else."""
        plan = self.plan
        last = [number for number, stage in enumerate(plan.stages) if stage == plan.depth]
        return [self._redirected(let, plan.loop.var) for let in self._outer_names(last)]

    def _outer_names(self, numbers: Sequence[int]) -> list[Name]:
        """The names that statements, or conditions that they stand under, use; names below a condition are not meant
        elsewhere."""
        plan = self.plan
        wanted: set[Name] = set()
        for number in numbers:
            users = plan.conditions[number] or (plan.statements[number],)
            wanted.update(let for user in users for let in needed_names(user, plan.lets))
        return [let for let in plan.lets if let in wanted]

    def _under_conditions(self, numbers: Sequence[int], outer: Collection[Name]) -> list[ir.Statement]:
        """Statements under what they stand under, neighbours together; `outer` names stand before them."""
        made: list[ir.Statement] = []
        for conditions, run in itertools.groupby(numbers, lambda number: self.plan.conditions[number]):
            started = [self._started(number) for number in run]
            if not conditions:
                made += started
                continue
            names = dict.fromkeys(
                let for one in started for let in needed_names(one, self.plan.lets) if let not in outer
            )
            span = started[0].span
            made.append(
                fresh(ir.If(conjunction(conditions), ir.Seq((*names, *started)), span=span))
                if names
                else ir.If(conjunction(conditions), ir.Seq(tuple(started)), span=span)
            )
        return made

    # Steps -----------------------------------------------------------------------------------

    def _step(self, step: int | None) -> list[ir.Statement]:
        """One step: of the prologue, where a number is given, else of the loop, named by the last stage's iteration."""
        plan = self.plan
        groups = self._groups()
        made: list[ir.Statement] = []
        pending = self._pending_at_start(step)
        if pending is not None:
            made.append(ir.Wait(self.token, pending, full=self._full(step) if pending else None))
        open_run: list[tuple[int, ir.Statement]] = []
        closed = 0
        for position, number in enumerate(plan.in_order()):
            wait = self._pending_before(number, closed)
            if wait is not None and self._runs(number, step):
                made += self._flushed(open_run, step)
                made.append(ir.Wait(self.token, wait))
            if self._runs(number, step):
                open_run.append((number, plan.statements[number]))
            if position in groups:
                made += self._flushed(open_run, step)
                made.append(ir.Commit(self.token))
                closed += 1
        return made + self._flushed(open_run, step)

    def _runs(self, number: int, step: int | None) -> bool:
        return step is None or self.plan.stages[number] <= step

    def _flushed(self, run: list[tuple[int, ir.Statement]], step: int | None) -> list[ir.Statement]:
        """The statements collected, neighbours of one iteration under one condition; `run` is empty afterwards."""
        made: list[ir.Statement] = []
        while run:
            stage = self.plan.stages[run[0][0]]
            same: list[int] = []
            while run and self.plan.stages[run[0][0]] == stage:
                same.append(run.pop(0)[0])
            made += self._iteration(same, stage, step)
        return made

    def _iteration(self, numbers: Sequence[int], stage: int, step: int | None) -> list[ir.Statement]:
        """Statements of one stage, for the iteration that is theirs in this step."""
        loop = self.plan.loop
        if step is None and stage == self.plan.depth:
            last = [number for number, stage in enumerate(self.plan.stages) if stage == self.plan.depth]
            statements = self._under_conditions(numbers, self._outer_names(last))
            return [self._redirected(one, loop.var) for one in statements]
        lead = self.plan.depth - stage if step is None else step - stage
        iteration = (loop.var if step is None else ir.cast(loop.start, loop.var.dtype)) + lead
        names = self._outer_names(numbers)
        body = ir.Seq((*names, *self._under_conditions(numbers, names)))
        body = self._redirected(fresh(substitute(body, {loop.var: iteration})), iteration)
        exists = ir.index_binary("lt", iteration, ir.cast(loop.stop, loop.var.dtype))
        harmless = self.plan.beyond.issuperset(numbers) and not any(self.plan.conditions[one] for one in numbers)
        if (harmless and step is None) or self.analyzer.prove(exists):
            return list(body.statements) if not names else [body]
        if self.analyzer.prove(ir.index_binary("ge", iteration, ir.cast(loop.stop, loop.var.dtype))):
            return []
        return [ir.If(exists, body, span=loop.span)]

    def _started(self, number: int) -> ir.Statement:
        statement = self.plan.statements[number]
        if isinstance(statement, (Copy, ir.Parallel)) and number in self._asynchronous():
            return replace(statement, token=self.token)
        return statement

    def _redirected(self, statement: S, iteration: ir.Expr) -> S:
        origin = iteration - ir.cast(self.plan.loop.start, self.plan.loop.var.dtype)
        slots = {buffer: (staged, origin % staged.static_shape[0]) for buffer, staged in self.staged.items()}
        return redirected(statement, with_views(slots, self.views_of_stages, self.views))

    # Waits -----------------------------------------------------------------------------------

    def _full(self, step: int | None) -> ir.Expr | None:
        """Whether the step before started all of its copies: then those before it did; None where that is certain.

        Copies of several stages begin at different steps, so that nothing is said of theirs.
        """
        loop, stages = self.plan.loop, {self.plan.stages[load] for load in self._asynchronous()}
        if len(stages) > 1:
            return ir.const(False)
        ahead = (self.plan.depth if step is None else step) - min(stages) - 1
        first = loop.var if step is None else ir.cast(loop.start, loop.var.dtype)
        full = ir.index_binary("lt", first + ahead, ir.cast(loop.stop, loop.var.dtype))
        return None if self.analyzer.prove(full) else full

    def copies_of_groups(self) -> tuple[tuple[Copy, ...], ...]:
        """Of each group that a step closes the copies that stand under no condition."""
        found: list[tuple[Copy, ...]] = []
        order, begin = self.plan.in_order(), 0
        for end in self._groups():
            loads = [number for number in order[begin : end + 1] if not self.plan.conditions[number]]
            statements = [self.plan.statements[number] for number in loads if number in self._asynchronous()]
            found.append(tuple(one for one in statements if isinstance(one, Copy)))
            begin = end + 1
        return tuple(found)

    def _asynchronous(self) -> list[int]:
        """Copies that a later statement, or step, waits for; one whose tile is read an iteration later waits itself."""
        return [
            number
            for number, statement in enumerate(self.plan.statements)
            if _is_started(statement) and self._waited_for(number)
        ]

    def _waited_for(self, load: int) -> bool:
        plan, users = self.plan, self._users(load)
        if plan.effects[load].writes <= self.staged.keys():
            return True
        after = (plan.stages[user] == plan.stages[load] and plan.orders[load] < plan.orders[user] for user in users)
        return bool(users) and all(after)

    def _groups(self) -> list[int]:
        """Positions in a step behind which a group of copies ends."""
        order, asynchronous = self.plan.in_order(), self._asynchronous()
        ends: list[int] = []
        run: list[int] = []
        for position, number in enumerate(order):
            waits = any(number in self._users(load) for load in run)
            if run and (number not in asynchronous or waits):
                ends.append(position - 1)
                run = []
            if number in asynchronous:
                run.append(number)
        return [*ends, len(order) - 1] if run else ends

    def _group_of(self, number: int) -> int:
        position = self.plan.in_order().index(number)
        return next(place for place, end in enumerate(self._groups()) if position <= end)

    def _users(self, load: int) -> list[int]:
        """Statements that use what an asynchronous copy brings."""
        written = self.plan.effects[load].writes
        return [n for n, effects in enumerate(self.plan.effects) if n != load and effects.all & written]

    def _pending_at_start(self, step: int | None) -> int | None:
        """How many groups may still be under way when a step begins that uses copies of earlier steps."""
        found = [
            (self.plan.stages[user] - self.plan.stages[load]) * len(self._groups()) - self._group_of(load) - 1
            for load in self._asynchronous()
            for user in self._users(load)
            if self.plan.stages[user] > self.plan.stages[load] and self._runs(user, step)
        ]
        return min(found, default=None)

    def _pending_before(self, user: int, closed: int) -> int | None:
        """The same for a statement that uses copies of its own step, `closed` groups of which have been closed."""
        loads = [load for load in self._asynchronous() if user in self._users(load)]
        order = self.plan.in_order()
        found = [
            closed - self._group_of(load) - 1
            for load in loads
            if self.plan.stages[user] == self.plan.stages[load] and order.index(load) < order.index(user)
        ]
        return min(found, default=None)


def _is_started(statement: ir.Statement) -> bool:
    """Whether threads start what a statement brings, and work on meanwhile."""
    if isinstance(statement, Copy):
        return statement.schedule.prefer == CP_ASYNC
    return isinstance(statement, ir.Parallel) and statement.prefer == CP_ASYNC
