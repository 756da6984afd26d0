"""Lanes that transpose a gemm's left operand load the first words of the next step beside the products of this one.

Before (in the role that computes)::

    for k in range(steps):
        part = fragment(float32[128, 152])
        receive("loads", k)
        gemm(b_ring[k % 4, :, :], a_ring[k % 4, :, :], part, transpose_a=True, clear=True)
        release("loads", k)
        ...

After::

    b_ring_first = local(uint32[4])
    if steps > 0:
        receive("loads", 0)
        load_ahead(b_ring[0, :, :])
    for k in range(steps):
        part = fragment(float32[128, 152])
        b_ring_transposed = local(float8_e4m3fn[64])
        gemm(token="wgmma", b_ring[k % 4, :, :], a_ring[k % 4, :, :], part, transpose_a=True, clear=True)
        commit("wgmma")
        if k + 1 < steps:
            receive("loads", k + 1)
            load_ahead(b_ring[(k + 1) % 4, :, :])
        wait("wgmma", pending=0)
        release("loads", k)
        ...

Products out of registers cannot begin before a slot is there, its words are read and their bytes are transposed. What
one warpgroup waits for then another one's products hide only where the two drift apart, and they mostly begin together.
Ahead, four registers a lane hold the words of one instruction: those of the others are read beside the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir import UINT32, Rewritten, find, holds, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.ops import Gemm, GemmPlan, LoadAhead
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.gemms.gemm_groups import RoleRewriter, conditional
from tilewright.passes.tile.gemms.overlap_gemms import iterations_of

WORDS = 4
"""Registers of 32 bits that a lane loads for one instruction."""


def load_ahead(function: ir.Function, context: Context) -> ir.Function:
    """Load the first words of operands that lanes transpose an iteration ahead."""
    return map_kernels(function, lambda kernel: kernel.with_body(_Roles(kernel)(kernel.body)))


class _Roles(RoleRewriter):
    def visit_For(self, loop: ir.For) -> Rewritten:
        made: ir.For = self.generic(loop)
        gemms = list(find(made.body, Gemm))
        if self.role is None or len(gemms) != 1 or not _is_transposed(gemms[0]):
            return made
        gemm, statements = gemms[0], made.body.statements
        receives = (one for one in statements if isinstance(one, ir.Receive))
        receive = next((one for one in receives if gemm.a.buffer in self.channels[one.channel].buffers), None)
        if gemm not in statements or receive is None or not self._may_receive_ahead(made, gemm, receive):
            return made
        return self._ahead(made, gemm, receive)

    def _may_receive_ahead(self, loop: ir.For, gemm: Gemm, receive: ir.Receive) -> bool:
        """Whether the slot of the next iteration comes without what this one does behind the start of its products."""
        statements = loop.body.statements
        before = statements[: statements.index(gemm)]
        names = {one.var for one in find(loop.body, ir.Let)}
        used = {*find(receive, ir.Var), *find(gemm.a, ir.Var)}
        numbers = iterations_of(loop, loop.body, receive.iteration)
        if receive not in before or numbers is None or numbers.before or names & used:
            return False
        if holds(loop.body, ir.Acquire, ir.Publish, ir.Evaluate, ir.Break, ir.Continue, ir.Return):
            return False
        if any(holds(one, ir.Release) for one in before) or _count(loop, receive.channel) > 1:
            return False
        released = [self.channels[one.channel] for one in find(loop.body, ir.Release)]
        operands = {gemm.a.buffer, gemm.b.buffer}
        changed = any(operands & touched(one).writes for one in statements if one is not gemm)
        return not changed and all(channel.stages > 1 for channel in released)

    def _ahead(self, loop: ir.For, gemm: Gemm, receive: ir.Receive) -> list[ir.Statement]:
        token = self.new_group()
        name, plan = gemm.a.buffer.name, gemm.plan
        assert isinstance(plan, GemmPlan)
        words = ir.Buffer(f"{name}_first", (WORDS,), UINT32, "local")
        transposed = ir.Buffer(f"{name}_transposed", (plan.left_registers,), gemm.a.dtype, "local")
        plan = replace(plan, words=words, transposed=transposed)
        following = loop.var + 1
        simplify = Analyzer().simplify

        def received(number: ir.Expr) -> list[ir.Statement]:
            """The slot of an iteration, and its first words."""
            moved = substitute(ir.seq(receive, LoadAhead(gemm.a, plan=plan, span=gemm.span)), {loop.var: number})
            return list(moved.statements)

        beside = ir.If(ir.index_binary("lt", following, loop.stop), ir.seq(received(following)), span=receive.span)
        started: Sequence[ir.Statement] = (
            ir.Allocate(transposed, span=gemm.span),
            replace(gemm, plan=plan, token=token),
            ir.Commit(token, span=gemm.span),
            beside,
            ir.Wait(token, span=gemm.span),
        )
        body = [
            part for one in loop.body.statements if one is not receive for part in (started if one is gemm else [one])
        ]
        first = conditional(simplify(ir.index_binary("lt", loop.start, loop.stop)), received(loop.start), loop.span)
        return [ir.Allocate(words, span=gemm.span), *first, replace(loop, body=ir.seq(*body))]


def _count(loop: ir.For, channel: str) -> int:
    """How often an iteration receives from a channel."""
    return sum(one.channel == channel for one in find(loop.body, ir.Receive))


def _is_transposed(gemm: Gemm) -> bool:
    return isinstance(gemm.plan, GemmPlan) and gemm.token is None and gemm.plan.instruction.transposes
