"""Barriers and copies that the author handles by hand become what single threads do.

Before (128 threads)::

    ready = barrier(uint64[1])
    begin_barriers(ready, "block", 128)
    copy(source=A[0:64, 0:64], destination=tile, prefer="tma", barrier=ready[0])
    mbarrier_arrive(ready[0])

After::

    ready = barrier(uint64[1])
    if tx == 0:
        mbarrier_init(ready[0], 128)
        fence_mbarrier_init()
    sync_threads()
    if tx == 0:
        mbarrier_expect_tx(ready[0], 8192)
        copy(...)                            # signals ready[0]
    mbarrier_arrive(ready[0])

One meeting serves all rows of barriers that are made together.  Of the threads that come to a copy the first one starts
it; neighbouring copies that signal one barrier are announced at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from tilewright.interpreter.over_threads import may_hold
from tilewright.ir import nodes
from tilewright.ir.control import perform, performed
from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import (
    Allocate,
    Call,
    Const,
    Evaluate,
    Expr,
    Function,
    If,
    Kernel,
    Let,
    Region,
    Role,
    Seq,
    Statement,
    Var,
    binary,
    const,
    index_binary,
    seq,
)
from tilewright.ir.visitor import Rewriter, Rewritten, find, listed, same, substitute
from tilewright.ops.copy import Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.lower_channels import BARRIERS
from tilewright.passes.scoped import map_kernels, negated
from tilewright.passes.tile.copies.filled_tiles import is_by_hand
from tilewright.passes.tile.layouts.plan_synchronization import barrier


def lower_barriers(function: Function, context: Context) -> Function:
    """Replace what begins barriers, and give copies by hand the thread that starts them."""
    return map_kernels(function, lambda kernel: _lower(kernel, context))


def _lower(kernel: Kernel, context: Context) -> Kernel:
    by_hand = any(
        node.buffer.scope == "barrier" if isinstance(node, Allocate) else is_by_hand(node)
        for node in find(kernel.body, Allocate, Copy)
    )
    return replace(kernel, body=_Lower(kernel, context)(kernel.body)) if by_hand else kernel


class _Lower(Rewriter):
    def __init__(self, kernel: Kernel, context: Context) -> None:
        self.kernel = kernel
        self.signals = context.facts[BARRIERS]
        self.thread_vars = kernel.thread_vars
        self.indices = _indices(kernel.thread_vars, kernel.threads)
        self.names: dict[Var, Expr] = {}
        self.reached: np.ndarray | bool = True
        """Which threads may come here."""
        self.unmet: str | None = None
        """Who must meet before barriers just made are used."""
        self.shares = any(node.rank is not None for node in find(kernel.body, Copy))

    # Who executes ---------------------------------------------------------------------------------

    def visit_Role(self, role: Role) -> Role:
        before = self.indices
        self.indices = _indices(self.thread_vars, (role.threads, 1, 1))
        made: Role = self.generic(role)
        self.indices = before
        return made

    def visit_Let(self, let: Let) -> Let:
        self.names[let.var] = substitute(let.value, self.names)
        return let

    def visit_If(self, branch: If) -> Rewritten:
        condition = substitute(branch.condition, self.names)
        before = self.reached
        self.reached = np.logical_and(before, may_hold(condition, self.indices))
        then = self(branch.then)
        self.reached = np.logical_and(before, may_hold(negated(condition), self.indices))
        otherwise = None if branch.otherwise is None else self(branch.otherwise)
        self.reached = before
        return replace(branch, then=then, otherwise=otherwise)

    def _leader(self, *statements: Statement, span: Any = None) -> list[Statement]:
        """Statements that the first of the threads that come here executes."""
        if np.ndim(self.reached) == 0:
            return [If(binary("eq", self._thread(), const(0)), seq(*statements), span=span)]
        threads = np.flatnonzero(self.reached)
        if len(threads) <= 1:
            return list(statements) if len(threads) else []
        return [If(binary("eq", self._thread(), const(int(threads[0]))), seq(*statements), span=span)]

    def _thread(self) -> Expr:
        """The index of the executing thread, in its block or role."""
        total: Expr = const(0)
        stride = 1
        for var, values in self.indices.items():
            extent = int(values.max()) + 1
            if extent > 1:
                total = total + var * stride
            stride *= extent
        return total

    # Barriers -------------------------------------------------------------------------------------

    def visit_Seq(self, body: Seq) -> Rewritten:
        made: list[Statement] = []
        waiting = list(body.statements)
        while waiting:
            statement = waiting.pop(0)
            if self.unmet and not isinstance(statement, (Allocate, Let)) and performed(statement) != "begin_barriers":
                made += self._meeting()
            if isinstance(statement, Copy) and statement.barrier is not None and statement.rank is None:
                together = [statement]
                while waiting and _joins(following := waiting[0], statement):
                    together.append(following)
                    waiting.pop(0)
                made += self._loads(together, statement.barrier)
                continue
            made += listed(self.visit(statement))
        made += self._meeting()
        return replace(body, statements=tuple(made))

    def _meeting(self) -> list[Statement]:
        """Where threads meet before they use barriers."""
        scope, self.unmet = self.unmet, None
        return [] if scope is None else [perform("cluster_sync") if scope == "cluster" else barrier()]

    def visit_Evaluate(self, statement: Evaluate) -> Rewritten:
        value = statement.value
        if isinstance(value, Call) and value.function == "begin_barriers":
            row, scope, *counts = value.arguments
            assert isinstance(row, Region)
            self.unmet = "cluster" if "cluster" in (scope, self.unmet) else "block"
            begin = [
                perform("mbarrier_init", Region(row.buffer, (const(place),), (1,)), count)
                for place, count in enumerate(counts) if isinstance(count, Const)
            ]  # fmt: skip
            return self._leader(*begin, perform("fence_mbarrier_init"), span=statement.span)
        if self.shares and isinstance(value, Call) and value.function in ("mbarrier_arrive_cluster", "mbarrier_wait"):
            ordered = {
                "mbarrier_arrive_cluster": "mbarrier_arrive_cluster_release",
                "mbarrier_wait": "mbarrier_wait_cluster",
            }
            return replace(statement, value=replace(value, function=ordered[value.function]))
        return statement

    # Copies ---------------------------------------------------------------------------------------

    def _loads(self, copies: Sequence[Copy], barrier: Region) -> list[Statement]:
        """Loads that signal one barrier: announced, then started."""
        total = sum(copy.landing_bytes for copy in copies)
        for copy in copies:
            self.signals[copy] = copy.barrier or barrier
        announced = perform("mbarrier_expect_tx", barrier, const(total))
        started = [part for copy in copies for part in self._started(copy)]
        return self._leader(replace(announced, span=copies[0].span), *started, span=copies[0].span)

    def _started(self, copy: Copy) -> list[Statement]:
        """A load, or who loads for whom in a cluster."""
        blocks = math.prod(self.kernel.attribute("cluster", (1,)))
        everyone = (1 << blocks) - 1
        mask = None if copy.mask is None else copy.mask & everyone
        if mask is None or mask & (mask - 1) == 0:
            return [self._sent(copy, None)]
        rank = Call(INT32, "cluster_rank", ())
        lowest = (mask & -mask).bit_length() - 1
        otherwise = None
        if mask != everyone:
            member = index_binary("and", index_binary("shr", const(mask), rank), 1)
            otherwise = seq(If(binary("eq", member, const(0)), seq(self._sent(copy, None)), span=copy.span))
        return [If(binary("eq", rank, const(lowest)), seq(self._sent(copy, mask)), otherwise, span=copy.span)]

    def _sent(self, copy: Copy, mask: int | None) -> Copy:
        """A copy for the blocks of a mask, or for this one alone; it signals the same barrier."""
        made = replace(copy, mask=mask)
        self.signals[made] = self.signals[copy]
        return made

    def visit_Copy(self, copy: Copy) -> Rewritten:
        if copy.barrier is None or copy.rank is None:
            return self._leader(copy, span=copy.span) if is_by_hand(copy) else copy
        self.signals[copy] = copy.barrier
        told = perform("mbarrier_arrive_expect_tx_cluster", copy.barrier, copy.rank, const(copy.landing_bytes))
        return self._leader(told, copy, span=copy.span)

    def visit_Commit(self, commit: nodes.Commit) -> Rewritten:
        if commit.token != STORES:
            return commit
        return self._leader(perform("bulk_commit"), span=commit.span)

    def visit_Wait(self, wait: nodes.Wait) -> Rewritten:
        if wait.token != STORES:
            return wait
        function = "bulk_wait_read" if wait.reading_only else "bulk_wait"
        return perform(function, const(wait.pending), span=wait.span)


STORES = "tma_store"
"""The token of stores by `T.tma_copy`."""


def _indices(thread_vars: Sequence[Var], threads: tuple[int, int, int]) -> dict[Var, np.ndarray]:
    x, y, z = threads
    thread = np.arange(x * y * z)
    return dict(zip(thread_vars, (thread % x, thread // x % y, thread // (x * y)), strict=True))


def _joins(statement: Statement, first: Copy) -> TypeGuard[Copy]:
    """Whether a statement is a load that signals the same barrier."""
    if not isinstance(statement, Copy) or statement.barrier is None or statement.rank is not None:
        return False
    return same(statement.barrier, first.barrier)
