"""Statements: one method a class, dispatched by a dictionary.

Compound statements are generators, so that a line of execution can pause where it must wait for another; a
`yield` hands control to whoever drives it.  A mask says which lanes are active; leaving a loop or a thread takes
lanes out of the mask until the loop, or the block, ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import AssertionFailed, InternalError, TilewrightError, WrongAssumption
from tilewright.interpreter import calls, collectives
from tilewright.interpreter.arithmetic import Numbers, binary
from tilewright.interpreter.barriers import WAITING_CALLS, ChannelState
from tilewright.interpreter.clusters import copy_between_blocks, copy_for_blocks
from tilewright.interpreter.iterations import IterationConflicts, read_and_stored, sums_in
from tilewright.interpreter.lines import Lines, Steps
from tilewright.interpreter.memory import Cell
from tilewright.interpreter.show import show
from tilewright.interpreter.state import NOBODY, Mask, any_active, both, either, without
from tilewright.interpreter.tiles import run_operator
from tilewright.ir import Expr, Seq, Statement, TileOperator, Var, folds, nodes
from tilewright.ops import Copy

assert calls and collectives  # their functions are registered on import


class Executor(Lines):
    """An evaluator that can run statements."""

    def run(self, statement: Statement) -> Steps:
        """Run one statement."""
        if statement.span is not None:
            self.span = statement.span
        try:
            if not self.lanes and statement in self.varying.lanes:
                yield from self._in_threads(statement)
            elif self._is_collective(statement):
                with self._once():
                    yield from self._dispatch(statement)
            else:
                yield from self._dispatch(statement)
        except TilewrightError as error:
            raise error.at(statement.span or self.span) from None

    def _dispatch(self, statement: Statement) -> Steps:
        kind = TileOperator if isinstance(statement, TileOperator) else type(statement)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            simple(self, statement)
            return
        compound = _COMPOUND.get(kind)
        if compound is None:
            raise InternalError(f"the interpreter has no rule for {type(statement).__name__}", span=statement.span)
        yield from compound(self, statement)

    # Lanes --------------------------------------------------------------------------------------

    def _in_threads(self, statement: Statement) -> Steps:
        """Run a statement for all threads of the block at once."""
        self.lanes, self.apart = self.threads, True
        self.mask = None if self.returned is NOBODY else np.logical_not(self.returned)
        yield from self._dispatch(statement)
        self.lanes, self.mask, self.apart = (), None, False
        if self._done() is not NOBODY:
            self.mask = NOBODY

    def _is_collective(self, statement: Statement) -> bool:
        """Whether a statement under threads acts for the block as a whole."""
        whole = isinstance(statement, (TileOperator, nodes.Parallel))
        return whole and bool(self.lanes) and not self.parallel and statement not in self.varying.dependent

    @contextmanager
    def _once(self) -> Iterator[None]:
        """Inside, no lanes: what some threads reach, the block does once."""
        lanes, mask = self.lanes, self.mask
        self.lanes, self.mask = (), None
        try:
            yield
        finally:
            self.lanes, self.mask = lanes, mask

    # Sequences and names ------------------------------------------------------------------------

    def _seq(self, node: Seq) -> Steps:
        for statement in node.statements:
            if not any_active(self.mask):
                return
            yield from self.run(statement)

    def _let(self, node: nodes.Let) -> None:
        value = self.value(node.value)
        shared = isinstance(value, np.ndarray) and value.base is not None
        self.values[node.var] = value.copy() if shared else value  # memory may change while the name lives

    def _allocate(self, node: nodes.Allocate) -> None:
        buffer = node.buffer
        if buffer.source is not None:
            self.places.pop(buffer, None)
            return
        if buffer.placed:
            assert node.initial is not None
            self.point(buffer, self.uniform(node.initial))
            return
        self.allocate(buffer, tuple(self.extent(extent) for extent in buffer.shape))
        if node.initial is not None:
            value = self.value(node.initial)
            place = self.places[buffer]
            if isinstance(place, Cell):
                place.store(value, None)
            else:
                self.view(buffer).store([0] * buffer.rank, 1, value, self.mask)

    def _store(self, node: nodes.Store) -> None:
        indices = [self.value(index) for index in node.indices]
        value = self.value(node.value)
        place = self.place(node.buffer)
        width = node.value.dtype.lanes
        if isinstance(place, Cell):
            place.store(value, self.mask)
        else:
            if self.iterations is not None and node.buffer in self.iterations.watched:
                self.iterations.store(node.buffer, place, indices, value, self.mask)
            place.store(indices, width, value, self.element_mask(width))

    # Branches and loops -------------------------------------------------------------------------

    def _if(self, node: nodes.If) -> Steps:
        condition = self.truth(node.condition)
        if not isinstance(condition, np.ndarray):
            branch = node.then if condition else node.otherwise
            if branch is not None:
                yield from self.run(branch)
            return
        outer = self.mask
        masks = [both(outer, condition), without(outer, condition)]
        after = []
        for mask, branch in zip(masks, (node.then, node.otherwise), strict=True):
            self.mask = mask
            if branch is not None and any_active(mask):
                yield from self.run(branch)
            after.append(self.mask)
        stayed = all(mask is before for mask, before in zip(after, masks, strict=True))
        self.mask = outer if stayed else either(*after)

    def _for(self, node: nodes.For) -> Steps:
        if node.kind == "vectorize" and not folds(node):
            length = self._vector_length(node)
            if length is not None:
                yield from self._at_once(node, (node.var,), (length,), self.value(node.start))
                return
        yield from self._loop(node.var, node.start, node.stop, node.step, node.body)

    def _vector_length(self, node: nodes.For) -> int | None:
        """Iterations of a vector loop whose bounds are the same in all lanes and whose step is 1."""
        start, stop, step = (self.value(bound) for bound in (node.start, node.stop, node.step))
        known = not any(isinstance(bound, np.ndarray) for bound in (start, stop)) and step == 1
        return max(0, stop - start) if known else None

    def _pipelined(self, node: nodes.Pipelined) -> Steps:
        yield from self._loop(node.var, node.start, node.stop, nodes.const(1, node.var.dtype), node.body)

    def _loop(self, var: Var, start: Expr, stop: Expr, step: Expr, body: Seq) -> Steps:
        """``for var in range(start, stop, step)``; each lane leaves when its own bounds say so."""
        now, last, stride = self.value(start), self.value(stop), self.value(step)

        def going() -> Numbers:
            return binary("lt", now, last, var.dtype)

        def advance() -> None:
            nonlocal now
            now = binary("add", now, stride, var.dtype)

        def bind() -> None:
            self.values[var] = now

        yield from self._repeat(going, body, bind, advance)

    def _while(self, node: nodes.While) -> Steps:
        yield from self._repeat(lambda: self.truth(node.condition), node.body, lambda: None, lambda: None)

    def _repeat(
        self, going: Callable[[], object], body: Seq, before: Callable[[], None], after: Callable[[], None]
    ) -> Steps:
        outer, outer_broken = self.mask, self.broken
        live: Mask = outer
        self.broken = NOBODY
        while True:
            self.mask = live
            condition = going()
            if not isinstance(condition, np.ndarray):
                if not condition:
                    break
            else:
                live = both(live, condition)
            if not any_active(live):
                break
            self.mask = live
            before()
            yield from self.run(body)
            live = self._without(self._without(live, self.broken), self._done())
            if not any_active(live):
                break
            after()
        self.broken = outer_broken
        self.mask = self._without(outer, self._done())

    def _without(self, mask: Mask, gone: Mask) -> Mask:
        return mask if gone is NOBODY else without(mask, gone)

    def _done(self) -> Mask:
        """Lanes whose thread is done; outside threads, that is said of the block only."""
        if self.returned is NOBODY or self.lanes:
            return self.returned
        return np.True_ if np.all(self.returned) else NOBODY

    def _parallel(self, node: nodes.Parallel) -> Steps:
        yield from self._at_once(node, node.vars, tuple(map(self.extent, node.extents)), 0)

    def _at_once(
        self, loop: nodes.Parallel | nodes.For, vars: tuple[Var, ...], extents: tuple[int, ...], start: int
    ) -> Steps:
        if not self.parallel and sums_in(loop):
            for place in np.ndindex(*extents):
                yield from self._lanes_of(vars, (1,) * len(vars), loop.body, place)
            return
        watched = frozenset() if self.parallel else read_and_stored(loop)
        if watched and 0 not in extents:
            self.iterations = IterationConflicts(extents, len(self.lanes), watched)
        yield from self._lanes_of(vars, extents, loop.body, (start,) * len(vars))
        if watched:
            self.iterations = None

    def _lanes_of(self, vars: tuple[Var, ...], extents: tuple[int, ...], body: Seq, start: tuple[int, ...]) -> Steps:
        """Run `body` for all index tuples at once, as lanes in front of those that are there."""
        if 0 in extents:
            return
        lanes, mask, parallel = self.lanes, self.mask, self.parallel
        self.lanes, self.parallel = (*extents, *lanes), True
        for axis, (var, extent) in enumerate(zip(vars, extents, strict=True)):
            shape = [1] * len(self.lanes)
            shape[axis] = extent
            self.values[var] = (start[axis] + np.arange(extent)).astype(var.dtype.numpy).reshape(shape)
        yield from self.run(body)
        self.lanes, self.parallel, self.mask = lanes, parallel, mask

    def _break(self, node: nodes.Break) -> None:
        self.broken = np.logical_or(self.broken, np.True_ if self.mask is None else self.mask)
        self.mask = NOBODY

    def _continue(self, node: nodes.Continue) -> None:
        self.mask = NOBODY

    def _return(self, node: nodes.Return) -> None:
        self.returned = np.logical_or(self.returned, np.True_ if self.mask is None else self.mask)
        self.mask = NOBODY

    # Channels -----------------------------------------------------------------------------------

    def _landed(self, node: nodes.Commit | nodes.Wait) -> None:
        """Asynchronous operators have their effects where they are issued, the earliest that is allowed."""

    def _channel(self, node: nodes.Channel) -> None:
        self.channels[node.name] = ChannelState(node, self.varying.instances)

    def _await_slot(self, node: nodes.Acquire | nodes.Receive) -> Steps:
        ring, number = self.channels[node.channel], self.uniform(node.iteration)
        is_ready = ring.is_free if isinstance(node, nodes.Acquire) else ring.is_full
        while not is_ready(self.role, number):
            yield
        self.woken += 1

    def _forward(self, node: nodes.Publish | nodes.Release) -> None:
        verb = "publish" if isinstance(node, nodes.Publish) else "release"
        self.channels[node.channel].pass_on(self.role, self.uniform(node.iteration), verb)
        self.woken += 1

    # Facts and messages -------------------------------------------------------------------------

    def _fails(self, condition: Expr) -> bool:
        missed = np.logical_not(self.value(condition))
        return bool(np.any(missed if self.mask is None else np.logical_and(missed, self.mask)))

    def _assert(self, node: nodes.Assert) -> None:
        if self._fails(node.condition):
            raise AssertionFailed(f"device assertion failed{': ' * bool(node.message)}{node.message}")

    def _assume(self, node: nodes.Assume) -> None:
        if self._fails(node.condition):
            raise WrongAssumption(
                "this assumption does not hold",
                hint="the compiler relies on what T.assume says: correct it, or pass arguments that satisfy it",
            )

    # Operators and calls ------------------------------------------------------------------------

    def _operator(self, node: TileOperator) -> Steps:
        if isinstance(node, Copy) and node.rank is not None:
            copy_between_blocks(self, node)
        elif self.lanes and (self.parallel or node in self.varying.dependent):
            yield from self._dispatch(node.lower())
        elif not (isinstance(node, Copy) and node.mask is not None and copy_for_blocks(self, node)):
            run_operator(self, node)

    def _evaluate_in_steps(self, node: nodes.Evaluate) -> Steps:
        """A call for its effect; one in which others are waited for hands over to them."""
        waits = WAITING_CALLS.get(node.value.function)
        if waits is None:
            self.value(node.value)
        else:
            yield from waits(self, node.value)


_Simple: TypeAlias = "Callable[[Executor, Any], None]"
_Compound: TypeAlias = "Callable[[Executor, Any], Steps]"

_SIMPLE: Mapping[type[Statement], _Simple] = {
    nodes.Let: Executor._let, nodes.Allocate: Executor._allocate, nodes.Store: Executor._store,
    nodes.Break: Executor._break, nodes.Continue: Executor._continue, nodes.Return: Executor._return,
    nodes.Assert: Executor._assert, nodes.Assume: Executor._assume, nodes.Print: show,
    nodes.Commit: Executor._landed, nodes.Wait: Executor._landed, nodes.Channel: Executor._channel,
    nodes.Publish: Executor._forward, nodes.Release: Executor._forward,
}  # fmt: skip

_COMPOUND: Mapping[type[Statement], _Compound] = {
    nodes.Seq: Executor._seq, nodes.If: Executor._if, nodes.For: Executor._for, nodes.Pipelined: Executor._pipelined,
    nodes.While: Executor._while, nodes.Parallel: Executor._parallel, nodes.Kernel: Executor._kernel,
    nodes.Acquire: Executor._await_slot, nodes.Receive: Executor._await_slot, nodes.Roles: Executor._roles,
    nodes.Evaluate: Executor._evaluate_in_steps, TileOperator: Executor._operator,
}  # fmt: skip
