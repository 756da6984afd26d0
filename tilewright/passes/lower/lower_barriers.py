"""Barriers and copies that the author handles by hand become what single threads do.

Before (128 threads)::

    ready = barrier(uint64[1])
    begin_barriers(ready, "block", 128)
    copy(source=A[0:64, 0:64], destination=tile, prefer="tma", barrier=ready[0])
    signal_arrive(ready[0])

After::

    ready = barrier(uint64[1])
    if tx == 0:
        signal_init(ready[0], 128)
        fence_signal_init()
    sync_threads()
    if tx == 0:
        signal_expect_tx(ready[0], 8192)
        copy(...)                            # signals ready[0]
    signal_arrive(ready[0])

One barrier serves all rows of mbarriers that are made together.  The first of the threads that come to a
copy starts it; neighbouring copies that signal one barrier are announced at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from tilewright.interpreter.over_threads import may_hold, thread_indices
from tilewright.ir import INT32, Rewriter, Rewritten, find, listed, perform, performed, same, substitute
from tilewright.ir import nodes as ir
from tilewright.ops import TMA_STORES, Copy
from tilewright.passes import Context, map_kernels, negated
from tilewright.passes.tile.layouts.plan_synchronization import barrier

ORDERED = {"signal_arrive_cluster": "signal_arrive_cluster_release", "signal_wait": "signal_wait_cluster"}
"""What barriers do that order memory which blocks share."""


def lower_barriers(function: ir.Function, context: Context) -> ir.Function:
    """Replace what begins barriers, and give copies by hand the thread that starts them."""
    return map_kernels(function, _lower)


def _lower(kernel: ir.Kernel) -> ir.Kernel:
    by_hand = any(
        node.buffer.scope == "barrier" if isinstance(node, ir.Allocate) else node.by_hand
        for node in find(kernel.body, ir.Allocate, Copy)
    )
    return replace(kernel, body=_Lower(kernel)(kernel.body)) if by_hand else kernel


class _Lower(Rewriter):
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.thread_vars = kernel.thread_vars
        self.indices = thread_indices(kernel.thread_vars, kernel.threads)
        self.names: dict[ir.Var, ir.Expr] = {}
        self.reached: np.ndarray | bool = True
        """Which threads may come here."""
        self.unmet: str | None = None
        """Who must meet before barriers just made are used."""
        self.shares = any(node.rank is not None for node in find(kernel.body, Copy))

    # Who executes ---------------------------------------------------------------------------------

    def visit_Role(self, role: ir.Role) -> ir.Role:
        before = self.indices
        self.indices = thread_indices(self.thread_vars, (role.threads, 1, 1))
        made: ir.Role = self.generic(role)
        self.indices = before
        return made

    def visit_Let(self, let: ir.Let) -> ir.Let:
        self.names[let.var] = substitute(let.value, self.names)
        return let

    def visit_If(self, branch: ir.If) -> Rewritten:
        condition = substitute(branch.condition, self.names)
        before = self.reached
        self.reached = np.logical_and(before, may_hold(condition, self.indices))
        then = self(branch.then)
        self.reached = np.logical_and(before, may_hold(negated(condition), self.indices))
        otherwise = None if branch.otherwise is None else self(branch.otherwise)
        self.reached = before
        return replace(branch, then=then, otherwise=otherwise)

    def _leader(self, *statements: ir.Statement, span: Any = None) -> list[ir.Statement]:
        """Statements that the first of the threads that come here executes."""
        if np.ndim(self.reached) == 0:
            return [ir.If(ir.binary("eq", self._thread(), ir.const(0)), ir.seq(*statements), span=span)]
        threads = np.flatnonzero(self.reached)
        if len(threads) <= 1:
            return list(statements) if len(threads) else []
        return [ir.If(ir.binary("eq", self._thread(), ir.const(int(threads[0]))), ir.seq(*statements), span=span)]

    def _thread(self) -> ir.Expr:
        """The index of the executing thread, in its block or role."""
        total: ir.Expr = ir.const(0)
        stride = 1
        for var, values in self.indices.items():
            extent = int(values.max()) + 1
            if extent > 1:
                total = total + var * stride
            stride *= extent
        return total

    # Barriers -------------------------------------------------------------------------------------

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        made: list[ir.Statement] = []
        waiting = list(body.statements)
        while waiting:
            statement = waiting.pop(0)
            if (
                self.unmet
                and not isinstance(statement, (ir.Allocate, ir.Let))
                and performed(statement) != "begin_barriers"
            ):
                made += self._barrier()
            if isinstance(statement, Copy) and statement.barrier is not None and statement.rank is None:
                together = [statement]
                while waiting and _joins(following := waiting[0], statement):
                    together.append(following)
                    waiting.pop(0)
                made += self._loads(together, statement.barrier)
                continue
            made += listed(self.visit(statement))
        made += self._barrier()
        return replace(body, statements=tuple(made))

    def _barrier(self) -> list[ir.Statement]:
        """The synchronisation of threads before they use mbarriers."""
        scope, self.unmet = self.unmet, None
        return [] if scope is None else [perform("cluster_sync") if scope == "cluster" else barrier()]

    def visit_Evaluate(self, statement: ir.Evaluate) -> Rewritten:
        value = statement.value
        if value.function == "begin_barriers":
            (row,) = value.regions
            self.unmet = "cluster" if "cluster" in (value.arguments[1], self.unmet) else "block"
            begin = [
                perform("signal_init", ir.Region(row.buffer, (ir.const(place),), (1,)), count)
                for place, count in enumerate(value.operands)
            ]
            return self._leader(*begin, perform("fence_signal_init"), span=statement.span)
        if self.shares and value.function in ORDERED:
            return replace(statement, value=replace(value, function=ORDERED[value.function]))
        return statement

    # Copies ---------------------------------------------------------------------------------------

    def _loads(self, copies: Sequence[Copy], barrier: ir.Region) -> list[ir.Statement]:
        """Loads that signal one barrier: announced, then started."""
        total = sum(copy.landing_bytes for copy in copies)
        announced = perform("signal_expect_tx", barrier, ir.const(total))
        started = [part for copy in copies for part in self._started(copy)]
        return self._leader(replace(announced, span=copies[0].span), *started, span=copies[0].span)

    def _started(self, copy: Copy) -> list[ir.Statement]:
        """A load, or who loads for whom in a cluster."""
        blocks = math.prod(self.kernel.attribute("cluster", (1,)))
        everyone = (1 << blocks) - 1
        mask = None if copy.mask is None else copy.mask & everyone
        alone = replace(copy, mask=None)
        if mask is None or mask & (mask - 1) == 0:
            return [alone]
        rank = ir.Call(INT32, "cluster_rank", ())
        lowest = (mask & -mask).bit_length() - 1
        otherwise = None
        if mask != everyone:
            member = ir.index_binary("and", ir.index_binary("shr", ir.const(mask), rank), 1)
            otherwise = ir.seq(ir.If(ir.binary("eq", member, ir.const(0)), ir.seq(alone), span=copy.span))
        for_all = ir.seq(replace(copy, mask=mask))
        return [ir.If(ir.binary("eq", rank, ir.const(lowest)), for_all, otherwise, span=copy.span)]

    def visit_Copy(self, copy: Copy) -> Rewritten:
        if copy.barrier is None or copy.rank is None:
            return self._leader(copy, span=copy.span) if copy.by_hand else copy
        told = perform("signal_arrive_expect_tx_cluster", copy.barrier, copy.rank, ir.const(copy.landing_bytes))
        return self._leader(told, copy, span=copy.span)

    def visit_Commit(self, commit: ir.Commit) -> Rewritten:
        if commit.token != TMA_STORES:
            return commit
        return self._leader(perform("bulk_commit"), span=commit.span)

    def visit_Wait(self, wait: ir.Wait) -> Rewritten:
        if wait.token != TMA_STORES:
            return wait
        function = "bulk_wait_read" if wait.reading_only else "bulk_wait"
        return perform(function, ir.const(wait.pending), span=wait.span)


def _joins(statement: ir.Statement, first: Copy) -> TypeGuard[Copy]:
    """Whether a statement is a load that signals the same barrier."""
    if not isinstance(statement, Copy) or statement.barrier is None or statement.rank is not None:
        return False
    return same(statement.barrier, first.barrier)
