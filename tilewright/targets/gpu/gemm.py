"""`T.gemm` on ``mma.sync``: each warp loads operand fragments with ldmatrix and multiplies its tiles.

For each step of k a warp reads its rows of a and its columns of b into registers, then issues one instruction for
every tile it holds; the accumulator stays where it is.  Operands have two sets of registers: while one step is
multiplied, the next one is on its way from shared memory. A sparse product's left operand is half as deep, with a word
of metadata a lane for each tile of rows.
"""

from __future__ import annotations

from abc import abstractmethod

from tilewright.ir import INT32, UINT32, perform
from tilewright.ir import nodes as ir
from tilewright.ops import Gemm, SparseGemm
from tilewright.passes import Context
from tilewright.targets.gpu import operand_loads as _operand_loads  # noqa: F401  registers a way to load operands
from tilewright.targets.gpu.warp_product import WarpProduct

SCHEDULE_FENCE = perform("schedule_fence")
"""The compiler moves nothing over it, where it would load what many later steps take."""


def lower_gemm(gemm: Gemm, context: Context) -> ir.Statement | None:
    """The thread code of a gemm that has a plan."""
    return _WarpGemm.lower(gemm, context)


class _WarpGemm(WarpProduct[Gemm]):
    """A dense one: the next step's operands are loaded beside a product."""

    def statements(self) -> ir.Seq:
        gemm, plan = self.gemm, self.plan
        left, right = self._operands(gemm.transpose_a)
        a, b = self._part(left, "a"), self._part(right, "b")
        parts = [(operand, part) for operand, part in ((left, a), (right, b)) if not operand.in_registers]
        if self._stepwise:  # where registers are few: bytes that are gathered have one each on their way
            fences = [SCHEDULE_FENCE] if self.arch.has("steps_apart") and plan.tiles_k > 1 else []
            kind = "serial" if len(parts) == 2 and self._gathers else "unroll"
            return self._step_by_step(left, right, a, b, kind, *fences)
        first = [statement for operand, part in parts for statement in self._loads(operand, part, ir.const(0))]
        unrolled = _unrolled(plan.tiles_k) if len(parts) == 2 else plan.tiles_k
        iteration, inner = ir.Var(INT32, "k_steps"), ir.Var(INT32, "k_step")
        self.block.analyzer.bind_extent(iteration, plan.tiles_k // unrolled)
        self.block.analyzer.bind_extent(inner, unrolled)
        step = self.block.simplify(iteration * unrolled + inner)
        body: list[ir.Statement] = [self._multiply(left, right, a, b, step)]
        if parts and plan.tiles_k > 1:
            following = step + 1
            inside = ir.index_binary("lt", following, plan.tiles_k)
            with self.block.analyzer.scope():
                self.block.analyzer.assume(inside)
                ahead = [statement for operand, part in parts for statement in self._loads(operand, part, following)]
            body.insert(0, ir.If(inside, ir.seq(ahead), span=gemm.span))
        loop = ir.counted(inner, unrolled, ir.seq(body), "unroll", span=gemm.span)
        if unrolled < plan.tiles_k:
            loop = ir.counted(iteration, plan.tiles_k // unrolled, ir.seq(loop), span=gemm.span)
        allocated = [ir.Allocate(part, span=gemm.span) for _, part in parts]
        return ir.seq(self._clear(), allocated, first, loop)

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 2 if self.plan.tiles_k > 1 and not self._stepwise else 1

    @property
    def _stepwise(self) -> bool:
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


class SparseWarpProduct(WarpProduct[SparseGemm]):
    """A warp's gemm whose left operand is half as deep."""

    @abstractmethod
    def word(self, first_row: ir.Expr, step: ir.Expr) -> ir.Expr:
        """This lane's word of metadata for the tile of rows from `first_row` on, at a step of k."""

    def statements(self) -> ir.Seq:
        left, right = self._operands(False)
        return self._step_by_step(left, right, self._part(left, "a"), self._part(right, "b"))

    def _beside(self, row: ir.Var, step: ir.Expr) -> tuple[list[ir.Statement], tuple[ir.Expr, ...]]:
        self.block.analyzer.bind_extent(row, self.plan.tiles_m)
        word = ir.Var(UINT32, "places")
        return [ir.Let(word, self._word(row, step), span=self.gemm.span)], (word,)

    def _word(self, tile: ir.Var, step: ir.Expr) -> ir.Expr:
        plan = self.plan
        warp = self.block.thread // plan.instruction.threads
        group = warp % plan.warps_m
        first = group * plan.tiles_m + tile
        return self.word(first * plan.instruction.m, step)
