"""Warpgroups that work for long on what their gemms made take turns at starting these, so that one multiplies
meanwhile.

Before (two warpgroups)::

    for k in range(steps):
        receive("keys", k)
        gemm(token="wgmma", q, keys[k % 2, :, :], scores, clear=True)
        commit("wgmma")
        wait("wgmma", pending=0)
        ...                                       # the largest score, exponents, their sum

After::

    for k in range(steps):
        receive("keys", k)
        take_turn(k == 0)
        gemm(token="wgmma", q, keys[k % 2, :, :], scores, clear=True)
        commit("wgmma")
        pass_turn()
        wait("wgmma", pending=0)
        ...
    if steps > 0:
        end_turns()

Without turns all warpgroups may start their products at once, get them at once and work at once, while the matrix unit
has nothing to do. It works on groups in the order in which they were started: the second warpgroup's products follow
the first one's without a gap, and the first one adds meanwhile. The first warpgroup has the first turn, and behind the
loop it takes what the last one passed, so that no turn is left over for the next loop.

A warpgroup that waits for its turn cannot reach a barrier: warpgroups that exchange memory between the products of an
iteration take no turns, and start these together anyway. Where little is done with the products (sums that are
promoted), warpgroups drift apart by themselves, and ordering them costs more than it gains. Source: the ping-pong of
FlashAttention-3 (Shah et al., 2024), section 3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import LOOPS, Rewriter, Rewritten, find, having, holds, perform, performed, touched
from tilewright.ir import nodes as ir
from tilewright.ops import Gemm, Reduce, Scan
from tilewright.passes.context import Context
from tilewright.passes.tile.gemms.gemm_groups import conditional
from tilewright.passes.tile.grids.ping_pong import narrowed
from tilewright.passes.tile.layouts.plan_synchronization import BARRIERS
from tilewright.passes.tile.roles.divide_roles import SPECIALIZED

GROUP = 4
"""Warps of a warpgroup."""

MOST = 4
"""Warpgroups that may take turns: each has a named barrier, of which there are few."""

WORK = 3
"""Passes over the elements of each product from which on turns pay."""


def order_warpgroups(function: ir.Function, context: Context) -> ir.Function:
    """Order the gemms of warpgroups that use what these make before they start the next."""
    return function.with_body(_Order()(function.body))


class _Order(Rewriter):
    def __init__(self) -> None:
        self.groups = self.instances = 1
        self.slots: dict[str, int] = {}

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        """Roles that the author divided are the author's to order."""
        self.slots = {one.name: one.stages for one in find(kernel.body, ir.Channel)}
        made: ir.Kernel = self.generic(kernel) if kernel.attribute(SPECIALIZED) else kernel
        return made

    def visit_Role(self, role: ir.Role) -> ir.Role:
        groups = role.warps // GROUP if role.warps % GROUP == 0 and role.instances == 1 else 1
        with having(self, groups=groups, instances=role.instances):
            return self.generic(role)

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        """Consumers that alternate (`ping_pong`) take their turn when they receive the first tile, and pass it behind
        the last: that of the ring, where each of them has slots of its own of what follows."""
        made: ir.Seq = self.generic(body)
        if self.instances == 1 or not any(performed(one) == "pass_turn" for one in made.statements):
            return made
        receives = [place for place, one in enumerate(made.statements) if holds(one, ir.Receive)]
        while len(receives) > 1 and self._has_own_slots(made.statements[receives[-1]]):
            receives.pop()
        return replace(made, statements=tuple(narrowed(made.statements, receives)))

    def _has_own_slots(self, receive: ir.Statement) -> bool:
        """Whether a consumer receives into slots that no other one reads: it comes once a tile."""
        return isinstance(receive, ir.Receive) and self.slots[receive.channel] % self.instances == 0

    def visit_For(self, loop: ir.For) -> Rewritten:
        made: ir.For = self.generic(loop)
        if not 1 < self.groups <= MOST or not ir.is_literal(made.step, 1):
            return made
        statements = made.body.statements
        runs = _runs(statements)
        if not runs or not _works_between(statements) or any(_holds_gemm(one) for one in statements):
            return made
        if any(_may_synchronise(one) for start, end in runs for one in statements[max(0, start - 1) : end + 1]):
            return made
        changed = list(statements)
        for start, end in reversed(runs):
            opening = ir.index_binary("eq", made.var, made.start) if start == runs[0][0] else ir.const(False)
            span = statements[start].span
            between = statements[start : end + 1]
            taken, passed = perform("take_turn", opening, span=span), perform("pass_turn", span=span)
            changed[start : end + 1] = [taken, *between, passed]
        last = perform("end_turns", span=made.span)
        ending = conditional(ir.index_binary("lt", made.start, made.stop), [last], made.span)
        return [replace(made, body=replace(made.body, statements=tuple(changed))), *ending]


def _runs(statements: Sequence[ir.Statement]) -> list[tuple[int, int]]:
    """First and last place of what starts gemms up to each wait."""
    found: list[tuple[int, int]] = []
    first = last = -1
    for place, one in enumerate(statements):
        if isinstance(one, Gemm) and one.token is not None and first < 0:
            first = place
        elif isinstance(one, ir.Commit):
            last = place
        elif isinstance(one, ir.Wait) and 0 <= first < last:
            found.append((first, last))
            first = last = -1
    return found


def _works_between(statements: Sequence[ir.Statement]) -> bool:
    """Whether threads do much with what a gemm made in the iteration that made it."""
    waited = {one.token for one in statements if isinstance(one, ir.Wait) and one.pending == 0}
    made = Counter(one.c.buffer for one in statements if isinstance(one, Gemm) and one.token in waited)
    work = [one for one in statements if isinstance(one, (ir.Parallel, ir.TileOperator)) and not isinstance(one, Gemm)]
    passes = Counter(buffer for one in work for buffer in touched(one).all if buffer in made)
    return any(passes[buffer] >= WORK * products for buffer, products in made.items())


def _may_synchronise(statement: ir.Statement) -> bool:
    """Whether all threads of the role may wait for one another in a statement: folds through shared memory are made
    later."""
    return holds(statement, Reduce, Scan) or any(call.function in BARRIERS for call in find(statement, ir.Call))


def _holds_gemm(statement: ir.Statement) -> bool:
    """Whether gemms stand deeper than iterations are counted."""
    return isinstance(statement, LOOPS) and holds(statement, Gemm)
