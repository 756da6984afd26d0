"""`T.gemm` on ``mma.sync``: each warp loads operand fragments with ldmatrix and multiplies its tiles.

For each step of k a warp reads its rows of a and its columns of b into registers, then issues one instruction for
every tile it holds; the accumulator stays where it is.  Operands have two sets of registers: while one step is
multiplied, the next one is on its way from shared memory.
"""

from __future__ import annotations

from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    For,
    If,
    Seq,
    Statement,
    Var,
    const,
    index_binary,
    seq,
)
from tilewright.layout.digits import REGISTER
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context
from tilewright.targets.gpu import operand_loads as _operand_loads  # noqa: F401  registers a way to load operands
from tilewright.targets.gpu.warp_product import Operand, WarpProduct

SCHEDULE_FENCE = Evaluate(Call(BOOL, "schedule_fence", ()))
"""The compiler moves nothing over it, where it would load what many later steps take."""


def lower_gemm(gemm: Gemm, context: Context) -> Statement | None:
    """The thread code of a gemm that has a plan."""
    return _WarpGemm.lower(gemm, context)


class _WarpGemm(WarpProduct[Gemm]):
    """A dense one: the next step's operands are loaded beside a product."""

    def statements(self) -> Seq:
        gemm, plan = self.gemm, self.plan
        instruction = plan.instruction
        assert instruction.a_fragment is not None and instruction.b_fragment is not None
        sizes = [one.extent(REGISTER) for one in (instruction.a_fragment, instruction.b_fragment)]
        left = Operand(gemm.a, True, gemm.transpose_a, plan.tiles_m, sizes[0], instruction.k)
        right = Operand(gemm.b, False, not gemm.transpose_b, plan.tiles_n, sizes[1], instruction.k)
        a, b = self._part(left, "a"), self._part(right, "b")
        parts = [(operand, part) for operand, part in ((left, a), (right, b)) if not operand.in_registers]
        if self._apart:
            return self._step_by_step(left, right, a, b)
        first = [statement for operand, part in parts for statement in self._loads(operand, part, const(0))]
        unrolled = _unrolled(plan.tiles_k) if len(parts) == 2 else plan.tiles_k
        iteration, inner = Var(INT32, "k_steps"), Var(INT32, "k_step")
        self.block.bind(iteration, plan.tiles_k // unrolled)
        self.block.bind(inner, unrolled)
        step = self.block.simplify(index_binary("add", index_binary("mul", iteration, unrolled), inner))
        body: list[Statement] = [self._multiply(left, right, a, b, step)]
        if parts and plan.tiles_k > 1:
            following = index_binary("add", step, 1)
            inside = index_binary("lt", following, plan.tiles_k)
            with self.block.analyzer.scope():
                self.block.analyzer.assume(inside)
                ahead = [statement for operand, part in parts for statement in self._loads(operand, part, following)]
            body.insert(0, If(inside, seq(ahead), span=gemm.span))
        loop = For(inner, const(0), const(unrolled), const(1), seq(body), "unroll", span=gemm.span)
        if unrolled < plan.tiles_k:
            loop = For(iteration, const(0), const(plan.tiles_k // unrolled), const(1), seq(loop), span=gemm.span)
        allocated = [Allocate(part, span=gemm.span) for _, part in parts]
        return seq(self._clear(), allocated, first, loop)

    def _step_by_step(self, left: Operand, right: Operand, a: Buffer, b: Buffer) -> Seq:
        """One step at a time, where registers are few: bytes that are gathered have one each on their way."""
        step = Var(INT32, "k_step")
        self.block.bind(step, self.plan.tiles_k)
        parts = [(operand, part) for operand, part in ((left, a), (right, b)) if not operand.in_registers]
        loads = [statement for operand, part in parts for statement in self._loads(operand, part, step)]
        fences = [SCHEDULE_FENCE] if self.arch.has("steps_apart") and self.plan.tiles_k > 1 else []
        body = seq(loads, self._multiply(left, right, a, b, step), fences)
        kind = "serial" if len(parts) == 2 and self._gathers else "unroll"
        loop = For(step, const(0), const(self.plan.tiles_k), const(1), body, kind, span=self.gemm.span)
        return seq(self._clear(), [Allocate(part, span=self.gemm.span) for _, part in parts], loop)

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 2 if self.plan.tiles_k > 1 and not self._apart else 1

    @property
    def _apart(self) -> bool:
        """Whether operands of one step are there at a time."""
        return self._gathers or self.arch.has("steps_apart")

    @property
    def _gathers(self) -> bool:
        """Whether bytes of an operand come one by one: matrix loads transpose nothing but pairs of them."""
        operands = ((self.gemm.a, self.gemm.transpose_a), (self.gemm.b, not self.gemm.transpose_b))
        return any(
            region.buffer.scope != "fragment" and transposed and region.dtype.bits == 8
            for region, transposed in operands
        )


def _unrolled(steps: int) -> int:
    """How many of so many steps are written out: an even number where not all of them, for the two sets of
    registers."""
    return next((count for count in (8, 6, 4) if steps > 8 and steps % count == 0), steps)
