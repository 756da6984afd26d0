"""Places the barriers that shared memory needs: one where a dependence between threads crosses, no more.

Before::

    for i in parallel(128):
        tile[i] = A[i]
    gemm(tile, ...)

After::

    for i in parallel(128):
        tile[i] = A[i]
    sync_threads()
    gemm(tile, ...)

A barrier orders everything before it, so a walk through the program needs to remember only what was read and
written since the last one.  Loops are walked twice: the second time with what the first left behind.

Matrix instructions that read tiles by descriptor, and a copy engine that reads or fills them, come behind what threads
wrote only where the writing threads fence it, which follows the statement that writes (or the `Wait` for the copies
that do). So do copies into a tile behind what threads read of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilewright.interpreter.over_threads import may_hold, over_threads, thread_indices
from tilewright.interpreter.varying import find_varying
from tilewright.ir import find, having, header, holds, leaving, perform, performed, root, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.ops import Copy, GemmPlan, Product
from tilewright.passes import Context, map_kernels, plain_loop
from tilewright.passes.tile.copies.filled_tiles import copies_by_hand, slot_buffers, tiles_by_hand
from tilewright.passes.tile.copies.gathers import filled_by
from tilewright.passes.tile.layouts.cut_conditions import cut, joined, masked_loop, ordered_by_author, read_first
from tilewright.passes.tile.layouts.own_elements import OwnElements
from tilewright.passes.tile.layouts.shared_places import Access, Pending, SharedPlace, exchanged_tensors, touches
from tilewright.passes.tile.words.replace_words import replace_words


def plan_synchronization(function: ir.Function, context: Context) -> ir.Function:
    """Insert ``sync_threads`` where threads hand memory to one another: shared tiles, and tensors that are read and
    written.

    What an asynchronous operator touches counts from the `Wait` for its token: that tells the waiting thread alone,
    and a barrier all others.
    """
    planned = map_kernels(function, _synchronize if context.arch.has_threads else _synchronize_threads)
    return planned if planned is function else replace_words(planned, context)


def barrier() -> ir.Evaluate:
    """A barrier of all threads of the block."""
    return perform("sync_threads")


NOTHING = Pending()

BARRIERS = ("sync_threads", "cluster_sync", "grid_sync", "sync_threads_and", "sync_threads_or", "sync_threads_count")
"""Functions that are barriers of a block."""

LANDED = "async_copy_signal_arrive_noinc"
"""The arrival of a thread's copies."""

_MARK = ir.Buffer("mark", (1,), ir.BOOL, "shared")
"""No tile: what is left of it after a body tells whether a barrier was passed."""


def proxy_fence() -> ir.Evaluate:
    """Makes what a thread wrote to shared memory visible to what reads by descriptor."""
    return perform("fence_proxy_async_shared")


def _synchronize_threads(kernel: ir.Kernel) -> ir.Kernel:
    """Where a block is one thread, work of the whole block waits for nobody; threads that are spoken of do."""
    if not any(node in kernel.thread_vars for node in walk(kernel.body)):
        return kernel
    return kernel.with_body(_Walk(kernel, frozenset()).sequence(kernel.body, NOTHING)[0])


def _synchronize(kernel: ir.Kernel) -> ir.Kernel:
    slots = slot_buffers(kernel)
    walking = _Walk(kernel, slots)
    walking.by_descriptor = _by_descriptor(kernel).union(map(root, tiles_by_hand(kernel))) - slots
    loads = (copy for copy in copies_by_hand(kernel) if copy.barrier is not None)
    walking.refilled = {root(copy.destination.buffer) for copy in loads} - slots
    walking.tokens = {
        node.token
        for node in find(kernel.body, Copy, ir.Parallel)
        if node.token is not None and any(region.buffer in walking.by_descriptor for region in filled_by(node))
    }
    if walking.by_descriptor:
        walking.landing = any(node.function == LANDED for node in find(kernel.body, ir.Call))
    body, _ = walking.sequence(kernel.body, NOTHING)
    return kernel.with_body(body)


def _by_descriptor(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Shared tiles that asynchronous matrix instructions read."""
    gemms = find(kernel.body, Product)
    read = [gemm for gemm in gemms if isinstance(gemm.plan, GemmPlan) and gemm.plan.instruction.asynchronous]
    buffers = {region.buffer for gemm in read for region in (gemm.a, gemm.b)}
    return frozenset(buffer for buffer in buffers if buffer.scope == "shared")


@dataclass(slots=True)
class _Jumps:
    """What is pending where an iteration ends before its last statement: of the next one, and of what stands behind
    the loop; `header` is what the loop's condition touches."""

    header: Pending = NOTHING
    again: Pending = NOTHING
    out: Pending = NOTHING


class _Walk:
    """Walks statements in order; each method gives the statement with its barriers and what is pending after it.

    Buffers of channels are left to the channels.
    """

    def __init__(self, kernel: ir.Kernel, slots: frozenset[ir.Buffer]) -> None:
        self.kernel, self.slots = kernel, slots
        self.threads = thread_indices(kernel.thread_vars, kernel.threads)
        found = find_varying(kernel)
        self.names, self.varying = found.names, found.lanes
        """Names and statements that differ from thread to thread."""
        self.exchanged = exchanged_tensors(kernel)
        self.own = frozenset(self._own()) if self.exchanged else frozenset()
        self.by_descriptor: frozenset[ir.Buffer] = frozenset()
        """Tiles that matrix instructions read by descriptor, or that the copy engine moves."""
        self.refilled: set[ir.Buffer] = set()
        """Tiles that the author has the copy engine fill: barriers overtake loads that have not come back."""
        self.tokens: set[ir.Token | None] = set()
        """Of copies into such tiles."""
        self.jumps = _Jumps()
        """Of the innermost loop."""
        self.landing = False
        """Whether cp.async copies arrive at barriers: who waits at one, or for who did, fences what it will read."""

    def _own(self) -> Iterator[Access]:
        """Accesses to tensors of which single threads touch elements of their own alone."""
        elements = OwnElements(self.kernel, self.kernel.body, self.threads, self.names)
        alone = list(walk(self.kernel.body, lambda one: not isinstance(one, (ir.Parallel, ir.TileOperator, ir.Roles))))
        accesses = [one for one in alone if isinstance(one, (ir.Load, ir.Store, ir.Call))]
        of_roles = {root(one) for roles in find(self.kernel.body, ir.Roles) for one in find(roles, ir.Buffer)}
        for tensor in self.exchanged - of_roles:
            if elements.apart(accesses, tensor):
                yield from (one for one in accesses if tensor in map(root, find(one, ir.Buffer)))

    def touches(self, statement: ir.Statement) -> Pending:
        return touches(statement, self.exchanged, self.slots, self.own)

    def sequence(self, body: ir.Seq, pending: Pending) -> tuple[ir.Seq, Pending]:
        result: list[ir.Statement] = []
        for position, statement in enumerate(body.statements):
            made, pending = self.statement(statement, pending)
            if is_fence(made[-1]) and any(map(is_fence, body.statements[position + 1 : position + 2])):
                made = made[:-1]  # the author's own is enough
            result.extend(made)
        return with_statements(body, result), pending

    def statement(self, statement: ir.Statement, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        if isinstance(statement, ir.Seq):
            inner, pending = self.sequence(statement, pending)
            return [inner], pending
        if isinstance(statement, ir.Roles):
            return self._roles(statement, pending)
        if isinstance(statement, ir.Pipelined):  # where loads and work do not overlap
            return self._loop(plain_loop(statement), pending)
        if isinstance(statement, (ir.For, ir.While)) and not self._no_barrier(statement):
            loop = self._together(statement)
            if loop is not None:
                return self._loop(loop, pending)
            masked = ir.seq(*masked_loop(statement, None))
            self.varying |= set(find(masked, ir.If))
            made_of, pending = self.sequence(masked, pending)
            return list(made_of.statements), pending
        if isinstance(statement, ir.If):
            if _holds_barriers(statement) or statement not in self.varying:
                return self._branch(statement, pending)
            if holds(statement, ir.Return) and not ordered_by_author(statement):
                return self._leave(statement, pending)
            if self._is_cut(statement):
                pieces = cut(statement, self._syncs, self._alone, self._together)
                self.varying |= set(find(pieces, ir.If))
                made, pending = self.sequence(pieces, pending)
                return list(joined(made)), pending
        if isinstance(statement, (ir.Break, ir.Continue)):
            return self._jump(statement, pending), NOTHING
        if _is_barrier(statement):
            simple, pending = self._simple(statement, pending)
            return simple, pending.after_barrier()
        if self.landing and performed(statement) == "signal_wait":
            return [statement, proxy_fence()], pending
        if isinstance(statement, ir.Wait):
            fence = [proxy_fence()] if statement.token in self.tokens else []
            return [statement, *fence], pending.after_wait(
                statement.token, statement.pending == 0 and not statement.reading_only
            )
        first = read_first(statement, self._exchanges) if isinstance(statement, ir.Store) else None
        if first is not None:
            return self.statement(first, pending)
        return self._simple(statement, pending)

    def _jump(self, statement: ir.Break | ir.Continue, pending: Pending) -> list[ir.Statement]:
        """Threads take along what is pending, and pass by all barriers that stand behind."""
        if isinstance(statement, ir.Break):
            self.jumps.out = self.jumps.out.then(pending)
            return [statement]
        before = [barrier()] if pending.conflicts(self.jumps.header) else []
        self.jumps.again = self.jumps.again.then(pending.after_barrier() if before else pending)
        return [*before, statement]

    def _leave(self, branch: ir.If, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        """A branch in which threads leave: nobody waits for those, and what they did is done before."""
        if branch.otherwise is not None or not isinstance(branch.then.statements[0], ir.Return):
            pieces = cut(branch, lambda one: holds(one, ir.Return) or self._syncs(one), self._alone, self._together)
            self.varying |= set(find(pieces, ir.If))
            made, pending = self.sequence(pieces, pending)
            return list(joined(made)), pending
        before = [barrier()] if pending != pending.after_barrier() else []
        touched = self.touches(branch)
        return [*before, branch], (pending.after_barrier() if before else pending).then(touched)

    def _no_barrier(self, loop: ir.For | ir.While) -> bool:
        """Whether no barrier stands in a loop of single threads: its author says who waits for whom, or nobody need."""
        if _holds_barriers(loop):
            return False
        if ordered_by_author(loop):
            return self._together(loop) is None
        return not self._exchanges(loop)

    def _exchanges(self, statement: ir.Statement) -> bool:
        """Whether what one thread writes in a statement another one reads there, by the elements that each has."""
        touched = self.touches(statement)
        if not touched.conflicts(touched):
            return False
        elements = OwnElements(self.kernel, statement, self.threads, self.names)
        accesses = list(find(statement, ir.Load, ir.Store, ir.Call))
        own = frozenset(one for one in touched.buffers() if elements.apart(accesses, one))
        others = touches(statement, self.exchanged - own, self.slots | own, self.own)
        return others.conflicts(others)

    def _together(self, loop: ir.For | ir.While) -> ir.For | ir.While | None:
        """A loop as threads run it that leave it at one time, so that they can meet in it; None where they do not."""
        if loop not in self.varying or _holds_barriers(loop):
            return loop
        if isinstance(loop, ir.While) or holds(loop, ir.Break, ir.Continue, ir.Return):
            return None
        times = over_threads((loop.stop - loop.start + loop.step - 1) // loop.step, self.threads)
        if times is None or np.ptp(times) != 0:
            return None
        if all(self.names.isdisjoint(find(part, ir.Var, ir.Buffer)) for part in header(loop)):
            return loop
        iteration = ir.Var(loop.var.dtype, "turn")
        body = ir.seq(ir.Let(loop.var, loop.start + iteration * loop.step, span=loop.span), loop.body)
        return ir.counted(iteration, int(np.max(times)), body)

    def _is_cut(self, branch: ir.If) -> bool:
        """Whether threads that come to a branch exchange data in it, so that it needs a barrier."""
        if ordered_by_author(branch) or any(leaving(branch)):
            return False
        if branch.otherwise is None and self._alone(branch.condition):
            return False
        return self._syncs(ir.seq(branch.then, branch.otherwise))

    def _syncs(self, statement: ir.Statement) -> bool:
        """Whether a statement needs a barrier inside."""
        touched = self.touches(statement)
        if not touched.conflicts(touched):
            return False
        with having(self, jumps=_Jumps()):
            made, _ = self.statement(statement, NOTHING)
        return _barriers(ir.seq(made)) > _barriers(ir.seq(statement))

    def _alone(self, condition: ir.Expr) -> bool:
        """Whether a condition holds for one thread at most."""
        held = may_hold(condition, self.threads)
        return np.ndim(held) > 0 and int(np.count_nonzero(held)) <= 1

    def _only_reads(self, loop: ir.For | ir.While) -> bool:
        """Whether a loop hands nothing from thread to thread."""
        touched = self.touches(loop)
        return not (touched.written or touched.combined or touched.flying_reads or touched.flying_writes) and not holds(
            loop, ir.TileOperator, ir.Evaluate, ir.Wait, ir.Roles
        )

    def _simple(self, statement: ir.Statement, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        touched = self.touches(statement)
        fenced = any(place.buffer in self.by_descriptor for place in touched.written)
        fence = [proxy_fence()] if fenced or any(place.buffer in self.refilled for place in touched.read) else []
        before = [barrier()] if pending.conflicts(touched) else []
        left = (pending.after_barrier() if before else pending).then(touched)
        if any(leaving(statement)):
            self.jumps.again, self.jumps.out = self.jumps.again.then(left), self.jumps.out.then(left)
        return [*before, statement, *fence], left

    def _loop(self, loop: ir.For | ir.While, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        header = self.touches(ir.Assume(loop.condition)) if isinstance(loop, ir.While) else NOTHING
        before = [barrier()] if pending.conflicts(header) else []
        entry = (pending.after_barrier() if before else pending).then(header)
        _, left, jumps = self._trip(loop, entry, header)
        body, left, jumps = self._trip(loop, entry.then(self._carried(loop, left.then(jumps.again), header)), header)
        left = left.outside(ir.Seq((loop,)))
        after = pending.after_barrier()
        if after != pending and _barriers(body) > _barriers(loop.body) and self._only_reads(loop):
            # What it waits for was there before: one barrier in front of it serves all its iterations.
            made, left = self._loop(loop, after)
            return [barrier(), *made], left
        if left.conflicts(header):
            body = replace(body, statements=(*body.statements, barrier()))
            left = left.after_barrier().then(header)
        again: ir.Statement = loop if body is loop.body else replace(loop, body=body)
        ended = jumps.again.then(jumps.out).outside(ir.Seq((loop,)))
        return [*before, again], entry.then(left).then(ended)  # the loop may run zero times

    def _trip(self, loop: ir.For | ir.While, entry: Pending, header: Pending) -> tuple[ir.Seq, Pending, _Jumps]:
        """A loop's body, what is pending behind it, and where it is left before its end."""
        with having(self, jumps=_Jumps(header)):
            body, left = self.sequence(loop.body, entry)
            return body, left, self.jumps

    def _carried(self, loop: ir.For | ir.While, left: Pending, header: Pending) -> Pending:
        """What earlier iterations leave to one: the last one alone where each passes a barrier."""
        _, passed, jumps = self._trip(loop, left.then(Pending(written=frozenset({SharedPlace(_MARK)}))), header)
        every = not any(place.buffer is _MARK for place in passed.written | jumps.again.written)
        return left.next_iteration(loop) if every and isinstance(loop, ir.For) else left.anywhere()

    def _roles(self, roles: ir.Roles, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        """A barrier of the block before the roles and one after them; in between each role has barriers of its own."""
        before = [barrier()] if pending != NOTHING else []
        made, left = [], NOTHING
        for role in roles.roles:
            with having(self, threads=thread_indices(list(self.threads), (role.threads, 1, 1))):
                body, after = self.sequence(role.body, NOTHING)
            made.append(replace(role, body=body))
            left = left.then(after).then(
                self.touches(role.body).landed().outside(role)
            )  # a role's barriers tell no others
        return [*before, replace(roles, roles=tuple(made))], left

    def _branch(self, branch: ir.If, pending: Pending) -> tuple[list[ir.Statement], Pending]:
        """A condition under which threads meet is the same for all of them, so barriers may stand inside.

        Where a branch needs one for what is pending already, it stands before the condition and serves both ways.
        """
        before: list[ir.Statement] = []
        if pending.conflicts(self.touches(branch)):
            before, pending = [barrier()], pending.after_barrier()
        pending = pending.then(self.touches(ir.Assume(branch.condition)))
        then, after = self.sequence(branch.then, pending)
        otherwise, after_otherwise = branch.otherwise, pending
        if otherwise is not None:
            otherwise, after_otherwise = self.sequence(otherwise, pending)
        left = after.outside(branch).then(after_otherwise.outside(branch))
        return [*before, replace(branch, then=then, otherwise=otherwise)], left


def _holds_barriers(statement: ir.Statement) -> bool:
    """Whether a statement holds work of the whole block."""
    return any(isinstance(node, (ir.Parallel, ir.TileOperator)) or _is_barrier(node) for node in walk(statement))


FENCES = ("fence_proxy_async", "fence_proxy_async_shared")


def is_fence(node: object) -> bool:
    """Whether it is a fence of the author's or of the compiler's."""
    return performed(node) in FENCES


def _barriers(body: ir.Seq) -> int:
    return sum(map(_is_barrier, find(body, ir.Evaluate, ir.Let)))


def _is_barrier(node: object) -> bool:
    """Whether all threads meet, to vote or without."""
    if isinstance(node, ir.Let):
        return isinstance(node.value, ir.Call) and node.value.function in BARRIERS
    return performed(node) in BARRIERS
