"""Lets warpgroups begin one after the other where each waits for its products before it works on them.

Before (a role of two warpgroups; sums are promoted after each gemm)::

    for k in range(steps):
        receive("loads", k)
        gemm(a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=part, clear=True)
        release("loads", k)
        for i, j in parallel(128, 128):
            total[i, j] = total[i, j] + part[i, j]

After::

    for k in range(steps):
        receive("loads", k)
        if k == 0:
            delay(tx // 128 * 256)
        gemm(a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=part, clear=True)
        ...

Warpgroups that start together have the matrix unit take turns between them, finish together, and leave it idle while
both add up.  One that is late by the time of its own products stays so: each then adds up beside the other's products.
Loops with gemms that go on from older sums are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import Call, Evaluate, For, Function, If, Kernel, Role, Seq, Statement, cast, index_binary, seq
from tilewright.ir.visitor import Rewriter, walk
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels
from tilewright.passes.tile.select_instructions import FACT as PLANS
from tilewright.passes.tile.select_instructions import WARP, GemmPlan

GROUP = 128


def stagger_groups(function: Function, context: Context) -> Function:
    """Delay the later warpgroups of roles at the first gemm of a loop that waits for its own."""
    plans: Mapping[Gemm, GemmPlan] = context.facts.get(PLANS, {})
    return map_kernels(function, lambda kernel: _stagger(kernel, plans))


def _stagger(kernel: Kernel, plans: Mapping[Gemm, GemmPlan]) -> Kernel:
    body = _Roles(kernel, plans)(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Roles(Rewriter):
    def __init__(self, kernel: Kernel, plans: Mapping[Gemm, GemmPlan]) -> None:
        self.kernel, self.plans = kernel, plans
        self.role: Role | None = None

    def visit_Role(self, role: Role) -> Any:
        if role.warps * WARP <= GROUP:
            return role
        self.role = role
        made = self.generic(role)
        self.role = None
        return made

    def visit_For(self, loop: For) -> Any:
        if self.role is None:
            return loop
        place = next((i for i, one in enumerate(loop.body.statements) if self._waits(one)), None)
        gemms = [node for node in walk(loop.body) if isinstance(node, Gemm)]
        if place is None or not all(gemm.clear is True for gemm in gemms):
            return self.generic(loop)
        gemm = loop.body.statements[place]
        assert isinstance(gemm, Gemm)
        statements = (*loop.body.statements[:place], self._delay(loop, gemm), *loop.body.statements[place:])
        return replace(loop, body=Seq(statements, span=loop.body.span))

    def _waits(self, statement: Statement) -> bool:
        plan = self.plans.get(statement) if isinstance(statement, Gemm) else None
        return plan is not None and plan.instruction.asynchronous and getattr(statement, "token", None) is None

    def _delay(self, loop: For, gemm: Gemm) -> Statement:
        """Each warpgroup waits as long as the products of those before it take."""
        plan = self.plans[gemm]
        share = plan.m * plan.n * plan.k // (plan.warps_m * plan.warps_n)
        group = index_binary("floordiv", self.kernel.thread_vars[0], GROUP)
        cycles = index_binary("mul", group, 2 * share // plan.instruction.rate)
        first = index_binary("eq", loop.var, cast(loop.start, loop.var.dtype))
        return If(first, seq(Evaluate(Call(BOOL, "delay", (cast(cycles, INT32),)))), span=gemm.span)
