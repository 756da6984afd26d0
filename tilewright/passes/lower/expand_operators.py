"""On a machine with threads: operators that only move or change single elements become parallel loops.

Before::

    copy(A[0:64], tile)

After::

    for i in parallel(64):
        tile[i] = A[i]

Gemms with a plan and reductions of fragments stay: threads work on them together.  What reads a fragment at other
places than its own (a transpose, a scan, a gemm of scalars, an author's gather) does so through a shared tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir import Rewriter, find, having, perform
from tilewright.ir import nodes as ir
from tilewright.machine.fragment_records import follow_records
from tilewright.ops import CP_ASYNC, ENGINE, OWN, QUADS, Copy, Fill, Gemm, LoadAhead, Reduce, Scan, Transpose, Unpack
from tilewright.ops.gemm_plan import GemmPlan
from tilewright.ops.product import Product
from tilewright.passes import Context, plain_loop
from tilewright.passes.tile.layouts.layout_flow import accesses_of
from tilewright.passes.tile.layouts.through_shared import EXCHANGED, through_shared


def expand_operators(function: ir.Function, context: Context) -> ir.Function:
    """Replace operators that need no cooperation by loops, and pipelines by plain loops."""
    return function.with_body(_Expand(context)(function.body))


class _Expand(Rewriter):
    def __init__(self, context: Context) -> None:
        self.products: list[tuple[Product, GemmPlan]] = []
        self.asynchronous: set[ir.Buffer] = set()
        self.threads = 1
        self.exchanged = context.facts[EXCHANGED]

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Statement:
        self.threads = math.prod(kernel.threads)
        self.products = [(gemm, gemm.plan) for gemm in find(kernel.body, Product) if isinstance(gemm.plan, GemmPlan)]
        self.asynchronous = {gemm.c.buffer for gemm, plan in self.products if plan.instruction.asynchronous}
        made: ir.Statement = self.generic(kernel)
        return made

    def visit_Role(self, role: ir.Role) -> ir.Statement:
        with having(self, threads=role.threads):
            return self.generic(role)

    def visit_TileOperator(self, operator: ir.TileOperator) -> ir.Statement:
        if isinstance(operator, LoadAhead) or (isinstance(operator, Product) and operator.plan is not None):
            return operator
        if isinstance(operator, Reduce) and _stays(operator):
            return operator
        if isinstance(operator, Unpack) and self._in_order(operator):
            return operator
        if isinstance(operator, (Copy, Transpose)) and self._is_moved(operator):
            return operator
        lowered = self._for_threads(operator) or operator.lower()
        lowered = lowered if lowered.span is not None else replace(lowered, span=operator.span)
        effects = operator.effects()
        fresh = {region.buffer for region in effects.writes if region.is_whole}
        fresh -= {region.buffer for region in effects.reads}
        made = self._gathered_through_shared(lowered, fresh)
        if isinstance(operator, Fill) and operator.destination.buffer in self.asynchronous:
            # The target's compiler would put the one value in all these registers where products begin, behind their
            # fence.
            return ir.seq(made, perform("settle", operator.destination, span=operator.span))
        return made

    def _for_threads(self, operator: ir.TileOperator) -> ir.Statement | None:
        """What many threads with registers of their own do for an operator; None for its generic lowering."""
        if isinstance(operator, Gemm):
            return operator.lower_in_steps()
        return operator.lower_divided(self.threads) if isinstance(operator, Scan) else None

    def _is_moved(self, operator: Copy | Transpose) -> bool:
        """Whether a target's instructions move a tile as a whole."""
        prefer = operator.schedule.prefer
        if isinstance(operator, Copy) and operator.rank is not None:
            return True
        return prefer in (CP_ASYNC, OWN, *ENGINE) or (prefer == QUADS and self._is_right(operator.destination.buffer))

    def _is_right(self, tile: ir.Buffer) -> bool:
        """Whether a fragment is the right operand of instructions with 8 columns, and its rows are those columns."""
        rights = [plan for gemm, plan in self.products if gemm.b.buffer is tile and gemm.transpose_b]
        return any(plan.instruction.b_fragment is not None for plan in rights)

    def _in_order(self, unpack: Unpack) -> bool:
        """Whether the codes are operands whose fragments the records follow."""
        if unpack.codes is None:
            return True
        tile, bits = unpack.codes.buffer, unpack.codes.dtype.bits
        plans = [plan for gemm, plan in self.products if gemm.a.buffer is tile and not gemm.transpose_a]
        lefts = [plan.instruction.a_fragment for plan in plans]
        followed = (one is not None and follow_records(one, bits) for one in lefts)
        return bool(lefts) and all(followed) and unpack.codes.is_whole

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        if loop.token is not None:
            return loop
        return self._gathered_through_shared(loop, ())

    def _gathered_through_shared(self, statement: ir.Statement, fresh: Iterable[ir.Buffer]) -> ir.Statement:
        """`statement` with fragments that it does not access element by element moved to shared tiles meanwhile."""
        loops = list(find(statement, ir.Parallel))
        gathered = {access.buffer for loop in loops for access in accesses_of(loop) if access.axes is None}
        self.exchanged |= gathered
        return through_shared(statement, gathered, set(fresh)) if gathered else statement

    def visit_Pipelined(self, loop: ir.Pipelined) -> ir.Statement:
        return plain_loop(replace(loop, body=self(loop.body)))


def _stays(reduction: Reduce) -> bool:
    source, destination = reduction.source, reduction.destination
    return all(region.buffer.scope == "fragment" and region.is_whole for region in (source, destination))
