"""Channels become barriers in shared memory that count arrivals and bytes; their statements become waits and arrivals.

Before (one writer whose copies the copy engine makes, one reader of two warpgroups)::

    channel("ring", tiles, stages=4, writers=("producer",), readers=("consumers",))
    ...
    acquire("ring", k)
    copy(A[...], tiles[k % 4, :, :])
    publish("ring", k)
    ...
    receive("ring", k)
    gemm(tiles[k % 4, :, :], ...)
    release("ring", k)

After::

    ring_full = barrier(uint64[4])        # completes when the copies have landed: one arrival and their bytes
    ring_empty = barrier(uint64[4])       # completes when every reader is done: one arrival a warpgroup
    ...
    mbarrier_wait(ring_empty[k % 4], k // 4 % 2 ^ 1)
    mbarrier_arrive_expect_tx(ring_full[k % 4], 16384)
    copy(A[...], tiles[k % 4, :, :])      # signals ring_full[k % 4]
    ...
    mbarrier_wait(ring_full[k % 4], k // 4 % 2)
    gemm(tiles[k % 4, :, :], ...)
    if tx % 128 == 0:
        mbarrier_arrive(ring_empty[k % 4])

A role that only drives the copy engine is the work of one thread; so is, in another role, a channel that only the
engine fills. Where threads themselves fill or read a slot, one lane arrives for its warp, behind a meeting of its lanes
(and a fence where matrix instructions read what they wrote by descriptor). For cp.async copies each thread leaves an
arrival that follows them when they land; the fence then stands behind the reader's wait. The slots of a channel of
scope ``"warp"`` have no second barrier: what a warp has read it fills again by itself. Where readers alternate, one of
them arrives for a slot: they receive one after the other, so that none waits for a parity whose phase is not the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ChannelMisuse
from tilewright.ir import nodes
from tilewright.ir.control import perform, performed
from tilewright.ir.dtypes import INT32, UINT32
from tilewright.ir.nodes import (
    WARP,
    WARPGROUP,
    Acquire,
    Allocate,
    Assume,
    Buffer,
    Call,
    Channel,
    ChannelStatement,
    Evaluate,
    Expr,
    For,
    Function,
    If,
    Kernel,
    Let,
    Publish,
    Receive,
    Record,
    Region,
    Release,
    Role,
    Roles,
    Seq,
    Statement,
    Var,
    binary,
    const,
    counted,
    index_binary,
    seq,
)
from tilewright.ir.visitor import Rewriter, Rewritten, find, holds, listed, walk
from tilewright.ops.copy import CP_ASYNC, ENGINE, SYNC, Copy
from tilewright.passes.context import Context, Fact
from tilewright.passes.lower.channel_rings import BY_ENGINE, Ring, mechanisms_of, ring_of
from tilewright.passes.scoped import map_kernels
from tilewright.passes.tile.grids.drop_dependent_launch import WORDS
from tilewright.passes.tile.layouts.plan_synchronization import barrier, proxy_fence

BARRIERS: Fact[dict[Copy, Region]] = Fact("copy_barriers", dict)
"""The barrier that each copy of the copy engine signals, by operator."""

_LIGHT = (
    Seq, For, nodes.While, nodes.Break, nodes.Continue, nodes.Let, If, Acquire, Publish, Allocate, nodes.Assume
)  # fmt: skip


def lower_channels(function: Function, context: Context) -> Function:
    """Replace channels and their statements.

    Raises
    ------
    ChannelMisuse : a copy into a slot that its role has not acquired, or a channel of a scope that the machine lacks.
    """
    return map_kernels(function, lambda kernel: _lower(kernel, context))


def _lower(kernel: Kernel, context: Context) -> Kernel:
    rings = {node.name: ring_of(node, kernel) for node in find(kernel, Channel)}
    if not holds(kernel, Roles):
        return kernel
    body = _Lower(kernel, rings, context)(kernel.body)
    return replace(kernel, body=body)


class _Lower(Rewriter):
    def __init__(self, kernel: Kernel, rings: dict[str, Ring], context: Context) -> None:
        self.kernel, self.rings = kernel, rings
        self.barriers = context.facts[BARRIERS]
        self.thread = kernel.thread_vars[0]
        self.role: Role | None = None
        self.alone = False
        self.held: dict[str, Expr] = {}
        self.announced: set[str] = set()

    def _first_thread(self, *statements: Statement) -> Statement:
        """Statements that one thread executes."""
        if self.alone and len(statements) == 1:
            return statements[0]
        body = seq(*statements)
        return body if self.alone else If(binary("eq", self.thread, const(0)), body)

    # Declarations --------------------------------------------------------------------------------

    def visit_Channel(self, channel: Channel) -> Rewritten:
        ring = self.rings[channel.name]
        slot = Var(INT32, "slot")
        rows = [(ring.full, ring.full_arrivals)] + [(ring.empty, ring.empty_arrivals)] * (not channel.is_private)
        begin = [perform("mbarrier_init", Region(row, (slot,), (1,)), const(count)) for row, count in rows]
        loop = counted(slot, ring.full.size, seq(*begin), "unroll", span=channel.span)
        body = seq(loop, perform("fence_mbarrier_init"))
        start = If(binary("eq", self.thread, const(0)), body, span=channel.span)
        return [*(Allocate(row, span=channel.span) for row, _ in rows), start]

    def visit_Roles(self, roles: Roles) -> Rewritten:
        if any(ring.blocks > 1 for ring in self.rings.values()):
            # Blocks see one another's barriers before the roles begin, and none leaves while others arrive at its own.
            # Neither meeting hands memory over, so neither waits for stores to be seen.
            meeting = perform("cluster_arrive_relaxed"), perform("cluster_wait")
            return [*meeting, self.generic(roles), *meeting]
        return [barrier(), self.generic(roles)] if self.rings else self.generic(roles)

    def visit_Role(self, role: Role) -> Role:
        own = {node.buffer for node in find(role.body, Allocate)}
        self.role, self.alone = role, all(self._is_light(node, own) for node in walk(role.body))
        self.held = {}
        body = self(role.body)
        if self.alone:
            body = seq(If(binary("eq", self.thread, const(0)), body, span=role.span))
        self.role, self.alone = None, False
        return replace(role, body=body)

    def _is_light(self, node: Record, own: set[Buffer]) -> bool:
        """Whether one thread may do it alone: each has its own of a scalar that outlives the role."""
        if isinstance(node, Copy):
            return node.prefer in ENGINE and node.source.buffer.scope == "global" and node.barrier is None
        if isinstance(node, nodes.TileOperator):
            return False
        if isinstance(node, Evaluate):
            return performed(node) in WORDS
        if isinstance(node, nodes.Store):
            return node.buffer.scope == "scalar" and node.buffer in own
        return not isinstance(node, Statement) or isinstance(node, _LIGHT)

    # Slots ---------------------------------------------------------------------------------------

    def _slot(self, row: Buffer, stages: int, iteration: Expr) -> Region:
        """The barrier of an iteration's slot, in the part of the row that is this instance's."""
        place = nodes.cast(iteration, UINT32) % const(stages, UINT32)
        if row.size != stages:
            assert self.role is not None and self.role.index is not None
            place = nodes.cast(self.role.index, UINT32) * const(stages, UINT32) + place
        return Region(row, (place,), (1,))

    def _parity(self, stages: int, iteration: Expr, flipped: bool) -> Expr:
        """The phase that iteration number i waits for: 0 the first time around, 1 the second, and so on."""
        phase = nodes.cast(iteration, UINT32) // const(stages, UINT32)
        parity = index_binary("and", phase, const(1, UINT32))
        return index_binary("xor", parity, const(1, UINT32)) if flipped else parity

    def visit_Seq(self, body: Seq) -> Rewritten:
        """Bytes of copies that stand between an acquire and its publish are announced all at once."""
        before = self.announced
        made: list[Statement] = []
        for position, statement in enumerate(body.statements):
            if isinstance(statement, Acquire):
                made += self._acquire(statement, body.statements[position + 1 :])
                continue
            made += listed(self.visit(statement))
        self.announced = before
        return replace(body, statements=tuple(made))

    def _acquire(self, statement: Acquire, rest: Sequence[Statement]) -> list[Statement]:
        ring, number = self.rings[statement.channel], statement.iteration
        self.held[statement.channel] = number
        channel = ring.channel
        assert self.role is not None
        # Warps that leave no arrival in the slot must not wait for it either: nothing would keep them from falling
        # behind by a whole round of the ring, and a parity says nothing of a phase that is two ago.
        wait_alone = mechanisms_of(channel, self.role) <= {BY_ENGINE}
        made: list[Statement] = []
        if not channel.is_private:
            empty, parity = self._slot(ring.empty, channel.stages, number), self._parity(channel.stages, number, True)
            wait = perform("mbarrier_wait", empty, parity, span=statement.span)
            made.append(self._first_thread(wait) if wait_alone else wait)
        end = next(
            (i for i, other in enumerate(rest) if isinstance(other, Publish) and other.channel == channel.name), None
        )
        window = Seq(tuple(rest[:end]))
        copies = [
            node for node in find(window, Copy) if node.prefer in ENGINE and node.destination.buffer in channel.buffers
        ]  # fmt: skip
        total = _announced(window, copies)
        if end is not None and total:
            self.announced = self.announced | {channel.name}
            full = self._slot(ring.full, channel.stages, number)
            made.append(self._first_thread(perform("mbarrier_arrive_expect_tx", full, const(total))))
        return made

    def visit_Publish(self, statement: Publish) -> Rewritten:
        ring = self.rings[statement.channel]
        assert self.role is not None
        mechanisms = mechanisms_of(ring.channel, self.role)
        full = self._slot(ring.full, ring.channel.stages, statement.iteration)
        made: list[Statement] = []
        if BY_ENGINE in mechanisms and statement.channel not in self.announced:
            made.append(self._first_thread(perform("mbarrier_arrive", full)))
        if CP_ASYNC in mechanisms:
            made.append(perform("cp_async_mbarrier_arrive_noinc", full))
        if SYNC in mechanisms:
            made += [proxy_fence()] if SYNC in ring.fenced else []
            made += self._arrive(full)
        if not mechanisms:
            made.append(self._first_thread(perform("mbarrier_arrive", full)))
        self.held.pop(statement.channel, None)
        self.announced = self.announced - {statement.channel}
        return made

    def _arrive(self, barrier: Region) -> list[Statement]:
        """One arrival for a warp, of what all its lanes have done."""
        lane = self.thread % WARP
        return [perform("sync_warp"), If(binary("eq", lane, const(0)), seq(perform("mbarrier_arrive", barrier)))]

    def visit_Receive(self, statement: Receive) -> Rewritten:
        ring = self.rings[statement.channel]
        stages = ring.channel.stages
        full = self._slot(ring.full, stages, statement.iteration)
        parity = self._parity(stages, statement.iteration, False)
        wait = perform("mbarrier_wait", full, parity, span=statement.span)
        return [wait, proxy_fence()] if CP_ASYNC in ring.fenced else wait

    def visit_Release(self, statement: Release) -> Rewritten:
        ring = self.rings[statement.channel]
        assert self.role is not None
        if ring.channel.is_private:
            return perform("sync_warp", span=statement.span)
        slot = self._slot(ring.empty, ring.channel.stages, statement.iteration)
        if ring.blocks > 1:
            by_group = self.role.name in ring.by_group
            lane = self.thread % (WARPGROUP if by_group else WARP)
            one_each = binary("lt", lane, const(ring.blocks))
            arrive_at_each = If(one_each, seq(*self._arrive_at(ring, slot, lane)), span=statement.span)
            return arrive_at_each if by_group else [perform("sync_warp"), arrive_at_each]
        arrive = perform("mbarrier_arrive", slot)
        if self.role.name not in ring.by_group:
            return self._arrive(slot)
        first = binary("eq", self.thread % WARPGROUP, const(0))
        return If(first, seq(arrive), span=statement.span)

    def _arrive_at(self, ring: Ring, slot: Region, lane: Expr) -> list[Statement]:
        """A lane's arrival at one block: those of the first line, then those of the others but for the block itself."""
        blocks = math.prod(self.kernel.attribute("cluster"))
        if ring.lines[0] == (1, blocks):
            return [perform("mbarrier_arrive_cluster", slot, lane)]
        rank = Var(INT32, "rank")
        limits = [Assume(index_binary("ge", rank, 0)), Assume(index_binary("lt", rank, blocks))]
        found: Expr = rank
        before = 0
        for distance, count in ring.lines:
            own = rank // distance % count
            number = lane - before
            if before > 0:
                beyond = nodes.Select(INT32, index_binary("ge", number, own), const(1), const(0))
                number = number + beyond
            place = rank + (number - own) * distance
            found = nodes.Select(INT32, index_binary("lt", lane, before), found, place) if before > 0 else place
            before += count - (before > 0)
        return [Let(rank, Call(INT32, "cluster_rank", ())), *limits, perform("mbarrier_arrive_cluster", slot, found)]

    def visit_ChannelStatement(self, statement: ChannelStatement) -> Rewritten:
        raise ChannelMisuse(f"{type(statement).__name__} has no meaning here", span=statement.span)

    # Copies --------------------------------------------------------------------------------------

    def visit_Copy(self, copy: Copy) -> Rewritten:
        if (
            copy.prefer not in ENGINE
            or copy.source.buffer.scope != "global"
            or copy in self.barriers
            or copy.rank is not None
        ):
            return copy
        ring = next(ring for ring in self.rings.values() if copy.destination.buffer in ring.channel.buffers)
        number = self.held.get(ring.channel.name)
        if number is None:
            raise ChannelMisuse(
                f"this copy fills a slot of {ring.channel.name!r} that its role has not acquired",
                span=copy.span, hint="write it between `acquire` and `publish`",
            )  # fmt: skip
        if copy.multicast and ring.channel.scope != "cluster":
            raise ChannelMisuse(
                f"this copy is sent to all blocks of the cluster, but {ring.channel.name!r} joins those of one block",
                span=copy.span, hint='write T.channel(..., scope="cluster")',
            )  # fmt: skip
        full = self._slot(ring.full, ring.channel.stages, number)
        self.barriers[copy] = full
        if ring.channel.name in self.announced:
            return self._first_thread(copy)
        return self._first_thread(perform("mbarrier_expect_tx", full, const(copy.landing_bytes)), copy)


def _announced(body: Seq, copies: Sequence[Copy]) -> int | None:
    """Bytes of all `copies` in a body; None where some may be made more or less often than their place says."""
    total = 0
    for statement in body.statements:
        inside = [node for node in walk(statement) if any(node is copy for copy in copies)]
        if not inside:
            continue
        if isinstance(statement, Copy):
            total += statement.landing_bytes
        elif isinstance(statement, For) and statement.numbers is not None:
            below = _announced(statement.body, copies)
            if below is None:
                return None
            total += len(statement.numbers) * below
        else:
            return None
    return total
