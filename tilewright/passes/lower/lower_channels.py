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
    signal_wait(ring_empty[k % 4], k // 4 % 2 ^ 1)
    signal_arrive_expect_tx(ring_full[k % 4], 16384)
    copy(A[...], tiles[k % 4, :, :], barrier=ring_full[k % 4])
    ...
    signal_wait(ring_full[k % 4], k // 4 % 2)
    gemm(tiles[k % 4, :, :], ...)
    if tx % 128 == 0:
        signal_arrive(ring_empty[k % 4])

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
from tilewright.ir import INT32, INTRINSICS, UINT32, UPDATES, perform, performed
from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewriter, Rewritten, listed
from tilewright.ir.walking import find, holds, walk
from tilewright.ops import CP_ASYNC, SYNC, Copy
from tilewright.passes import Context, map_kernels
from tilewright.passes.lower.channel_rings import BY_ENGINE, Ring, mechanisms_of, ring_of
from tilewright.passes.tile.grids.drop_dependent_launch import WORDS
from tilewright.passes.tile.layouts.plan_synchronization import barrier, is_fence, proxy_fence

_LIGHT = (
    ir.Seq, ir.For, ir.While, ir.Break, ir.Continue, ir.Let, ir.If, ir.Acquire, ir.Publish, ir.Allocate, ir.Assume
)  # fmt: skip


def lower_channels(function: ir.Function, context: Context) -> ir.Function:
    """Replace channels and their statements.

    Raises
    ------
    ChannelMisuse : a copy into a slot that its role has not acquired, or a channel of a scope that the machine lacks.
    """
    return map_kernels(function, _lower)


def _lower(kernel: ir.Kernel) -> ir.Kernel:
    rings = {node.name: ring_of(node, kernel) for node in find(kernel, ir.Channel)}
    if not holds(kernel, ir.Roles):
        return kernel
    body = _Lower(kernel, rings)(kernel.body)
    return replace(kernel, body=body)


class _Lower(Rewriter):
    def __init__(self, kernel: ir.Kernel, rings: dict[str, Ring]) -> None:
        self.kernel, self.rings = kernel, rings
        self.thread = kernel.thread_vars[0]
        self.role: ir.Role | None = None
        self.alone = False
        self.held: dict[str, ir.Expr] = {}
        self.announced: set[str] = set()

    def _first_thread(self, *statements: ir.Statement) -> ir.Statement:
        """Statements that one thread executes."""
        if self.alone and len(statements) == 1:
            return statements[0]
        body = ir.seq(*statements)
        return body if self.alone else ir.If(ir.binary("eq", self.thread, ir.const(0)), body)

    # Declarations --------------------------------------------------------------------------------

    def visit_Channel(self, channel: ir.Channel) -> Rewritten:
        ring = self.rings[channel.name]
        slot = ir.Var(INT32, "slot")
        rows = [(ring.full, ring.full_arrivals)] + [(ring.empty, ring.empty_arrivals)] * (not channel.is_private)
        begin = [perform("signal_init", ir.Region(row, (slot,), (1,)), ir.const(count)) for row, count in rows]
        loop = ir.counted(slot, ring.full.size, ir.seq(*begin), "unroll", span=channel.span)
        body = ir.seq(loop, perform("fence_signal_init"))
        start = ir.If(ir.binary("eq", self.thread, ir.const(0)), body, span=channel.span)
        return [*(ir.Allocate(row, span=channel.span) for row, _ in rows), start]

    def visit_Roles(self, roles: ir.Roles) -> Rewritten:
        if any(ring.blocks > 1 for ring in self.rings.values()):
            # Blocks see one another's barriers before the roles begin, and none leaves while others arrive at its own.
            # Neither barrier publishes data, so neither waits for stores to be visible.
            both = perform("cluster_arrive_relaxed"), perform("cluster_wait")
            return [*both, self.generic(roles), *both]
        return [barrier(), self.generic(roles)] if self.rings else self.generic(roles)

    def visit_Role(self, role: ir.Role) -> ir.Role:
        own = {node.buffer for node in find(role.body, ir.Allocate)}
        self.role, self.alone = role, all(self._is_light(node, own) for node in walk(role.body))
        self.held = {}
        body = self(role.body)
        if self.alone:
            body = ir.seq(ir.If(ir.binary("eq", self.thread, ir.const(0)), body, span=role.span))
        self.role, self.alone = None, False
        return replace(role, body=body)

    def _is_light(self, node: ir.Record, own: set[ir.Buffer]) -> bool:
        """Whether one thread may do it alone: each has its own of a scalar that outlives the role, and all do what
        changes memory for each or asks the others."""
        if isinstance(node, Copy):
            return node.schedule.by_engine and node.source.buffer.scope == "global" and node.barrier is None
        if isinstance(node, ir.TileOperator):
            return False
        if isinstance(node, ir.Call):
            return node.function not in UPDATES and not INTRINSICS[node.function].collective
        if isinstance(node, ir.Evaluate):
            return performed(node) in WORDS
        if isinstance(node, ir.Store):
            return node.buffer.scope == "scalar" and node.buffer in own
        return not isinstance(node, ir.Statement) or isinstance(node, _LIGHT)

    # Slots ---------------------------------------------------------------------------------------

    def _slot(self, row: ir.Buffer, stages: int, iteration: ir.Expr) -> ir.Region:
        """The barrier of an iteration's slot, in the part of the row that is this instance's."""
        place = ir.cast(iteration, UINT32) % ir.const(stages, UINT32)
        if row.size != stages:
            assert self.role is not None and self.role.index is not None
            place = ir.cast(self.role.index, UINT32) * ir.const(stages, UINT32) + place
        return ir.Region(row, (place,), (1,))

    def _parity(self, stages: int, iteration: ir.Expr, flipped: bool) -> ir.Expr:
        """The phase that iteration number i waits for: 0 the first time around, 1 the second, and so on."""
        phase = ir.cast(iteration, UINT32) // ir.const(stages, UINT32)
        parity = ir.index_binary("and", phase, ir.const(1, UINT32))
        return ir.index_binary("xor", parity, ir.const(1, UINT32)) if flipped else parity

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        """Bytes of copies that stand between an acquire and its publish are announced all at once."""
        before = self.announced
        made: list[ir.Statement] = []
        for position, statement in enumerate(body.statements):
            if isinstance(statement, ir.Acquire):
                made += self._acquire(statement, body.statements[position + 1 :])
                continue
            found = listed(self.visit(statement))
            made += found[1:] if made and found and is_fence(made[-1]) and is_fence(found[0]) else found
        self.announced = before
        return replace(body, statements=tuple(made))

    def _acquire(self, statement: ir.Acquire, rest: Sequence[ir.Statement]) -> list[ir.Statement]:
        ring, number = self.rings[statement.channel], statement.iteration
        self.held[statement.channel] = number
        channel = ring.channel
        assert self.role is not None
        # Warps that leave no arrival in the slot must not wait for it either: nothing would keep them from falling
        # behind by a whole round of the ring, and a parity says nothing of a phase that is two ago.
        wait_alone = mechanisms_of(channel, self.role) <= {BY_ENGINE}
        made: list[ir.Statement] = []
        if not channel.is_private:
            empty, parity = self._slot(ring.empty, channel.stages, number), self._parity(channel.stages, number, True)
            wait = perform("signal_wait", empty, parity, span=statement.span)
            made.append(self._first_thread(wait) if wait_alone else wait)
        end = next(
            (i for i, other in enumerate(rest) if isinstance(other, ir.Publish) and other.channel == channel.name), None
        )
        window = ir.Seq(tuple(rest[:end]))
        into = (node for node in find(window, Copy) if node.destination.buffer in channel.buffers)
        copies = [node for node in into if node.schedule.by_engine]
        total = _announced(window, copies)
        if end is not None and total:
            self.announced = self.announced | {channel.name}
            full = self._slot(ring.full, channel.stages, number)
            made.append(self._first_thread(perform("signal_arrive_expect_tx", full, ir.const(total))))
        return made

    def visit_Publish(self, statement: ir.Publish) -> Rewritten:
        ring = self.rings[statement.channel]
        assert self.role is not None
        mechanisms = mechanisms_of(ring.channel, self.role)
        full = self._slot(ring.full, ring.channel.stages, statement.iteration)
        made: list[ir.Statement] = []
        if BY_ENGINE in mechanisms and statement.channel not in self.announced:
            made.append(self._first_thread(perform("signal_arrive", full)))
        if CP_ASYNC in mechanisms:
            made.append(perform("async_copy_signal_arrive_noinc", full))
        if SYNC in mechanisms:
            made += [proxy_fence()] if SYNC in ring.fenced else []
            made += self._arrive(full)
        if not mechanisms:
            made.append(self._first_thread(perform("signal_arrive", full)))
        self.held.pop(statement.channel, None)
        self.announced = self.announced - {statement.channel}
        return made

    def _arrive(self, barrier: ir.Region) -> list[ir.Statement]:
        """One arrival for a warp, of what all its lanes have done."""
        lane = self.thread % ir.WARP
        return [
            perform("sync_warp"),
            ir.If(ir.binary("eq", lane, ir.const(0)), ir.seq(perform("signal_arrive", barrier))),
        ]

    def visit_Receive(self, statement: ir.Receive) -> Rewritten:
        ring = self.rings[statement.channel]
        stages = ring.channel.stages
        full = self._slot(ring.full, stages, statement.iteration)
        parity = self._parity(stages, statement.iteration, False)
        wait = perform("signal_wait", full, parity, span=statement.span)
        return [wait, proxy_fence()] if CP_ASYNC in ring.fenced else wait

    def visit_Release(self, statement: ir.Release) -> Rewritten:
        ring = self.rings[statement.channel]
        assert self.role is not None
        fence = [proxy_fence()] if self.role.name in ring.loading else []
        if ring.channel.is_private:
            return [*fence, perform("sync_warp", span=statement.span)]
        slot = self._slot(ring.empty, ring.channel.stages, statement.iteration)
        if ring.blocks > 1:
            by_group = self.role.name in ring.by_group
            lane = self.thread % (ir.WARPGROUP if by_group else ir.WARP)
            one_each = ir.binary("lt", lane, ir.const(ring.blocks))
            arrive_at_each = ir.If(one_each, ir.seq(*self._arrive_at(ring, slot, lane)), span=statement.span)
            return arrive_at_each if by_group else [*fence, perform("sync_warp"), arrive_at_each]
        arrive = perform("signal_arrive", slot)
        if self.role.name not in ring.by_group:
            return [*fence, *self._arrive(slot)]
        first = ir.binary("eq", self.thread % ir.WARPGROUP, ir.const(0))
        return ir.If(first, ir.seq(arrive), span=statement.span)

    def _arrive_at(self, ring: Ring, slot: ir.Region, lane: ir.Expr) -> list[ir.Statement]:
        """A lane's arrival at one block: those of the first line, then those of the others but for the block itself."""
        blocks = math.prod(self.kernel.attribute("cluster"))
        if ring.lines[0] == (1, blocks):
            return [perform("signal_arrive_cluster", slot, lane)]
        rank = ir.Var(INT32, "rank")
        limits = [ir.Assume(ir.index_binary("ge", rank, 0)), ir.Assume(ir.index_binary("lt", rank, blocks))]
        found: ir.Expr = rank
        before = 0
        for distance, count in ring.lines:
            own = rank // distance % count
            number = lane - before
            if before > 0:
                beyond = ir.Select(INT32, ir.index_binary("ge", number, own), ir.const(1), ir.const(0))
                number = number + beyond
            place = rank + (number - own) * distance
            found = ir.Select(INT32, ir.index_binary("lt", lane, before), found, place) if before > 0 else place
            before += count - (before > 0)
        return [
            ir.Let(rank, ir.Call(INT32, "cluster_rank", ())),
            *limits,
            perform("signal_arrive_cluster", slot, found),
        ]

    # Copies --------------------------------------------------------------------------------------

    def visit_Copy(self, copy: Copy) -> Rewritten:
        if not copy.schedule.by_engine or copy.source.buffer.scope != "global" or copy.barrier is not None:
            return copy
        ring = next(ring for ring in self.rings.values() if copy.destination.buffer in ring.channel.buffers)
        number = self.held.get(ring.channel.name)
        if number is None:
            raise ChannelMisuse(
                f"this copy fills a slot of {ring.channel.name!r} that its role has not acquired",
                span=copy.span,
                hint="write it between `acquire` and `publish`",
            )
        if copy.schedule.multicast and ring.channel.scope != "cluster":
            raise ChannelMisuse(
                f"this copy is sent to all blocks of the cluster, but {ring.channel.name!r} joins those of one block",
                span=copy.span,
                hint='write T.channel(..., scope="cluster")',
            )
        full = self._slot(ring.full, ring.channel.stages, number)
        copy = replace(copy, barrier=full)
        if ring.channel.name in self.announced:
            return self._first_thread(copy)
        return self._first_thread(perform("signal_expect_tx", full, ir.const(copy.landing_bytes)), copy)


def _announced(body: ir.Seq, copies: Sequence[Copy]) -> int | None:
    """Bytes of all `copies` in a body; None where some may be made more or less often than their place says."""
    total = 0
    for statement in body.statements:
        inside = [node for node in walk(statement) if any(node is copy for copy in copies)]
        if not inside:
            continue
        if isinstance(statement, Copy):
            total += statement.landing_bytes
        elif isinstance(statement, ir.For) and statement.numbers is not None:
            below = _announced(statement.body, copies)
            if below is None:
                return None
            total += len(statement.numbers) * below
        else:
            return None
    return total
