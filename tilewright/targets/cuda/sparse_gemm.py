"""`T.gemm_sp` on ``mma.sp``: the loads of a gemm, half of A, and for each tile of rows a word of metadata a lane."""

from __future__ import annotations

from tilewright.ir.dtypes import BOOL, INT32, UINT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    Let,
    Region,
    Seq,
    Statement,
    Var,
    const,
    index_binary,
    seq,
)
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK
from tilewright.passes.tile.select_instructions import FACT, GemmPlan
from tilewright.targets.cuda.gemm import Operand, WarpGemm
from tilewright.targets.cuda.sparse_metadata import STEP_BYTES, lane_word
from tilewright.targets.cuda.warpgroup_gemm import lower_warpgroup_gemm


def lower_sparse_gemm(gemm: SparseGemm, context: Context) -> Statement | None:
    """The thread code of a sparse gemm that has a plan."""
    plan: GemmPlan | None = context.facts.get(FACT, {}).get(gemm)
    if plan is None:
        return None
    if plan.instruction.asynchronous:
        return lower_warpgroup_gemm(gemm, plan, context)
    return _SparseWarpGemm(gemm, plan, context.facts[BLOCK]).statements()  # type: ignore[arg-type]


class _SparseWarpGemm(WarpGemm):
    """A warp's gemm whose left operand is half as deep."""

    gemm: SparseGemm  # type: ignore[assignment]

    def statements(self) -> Seq:
        gemm, plan = self.gemm, self.plan
        instruction = plan.instruction
        assert instruction.a_fragment is not None and instruction.b_fragment is not None
        left = Operand(gemm.a, True, False, plan.tiles_m, instruction.a_fragment.registers, instruction.kept)
        right = Operand(
            gemm.b, False, not gemm.transpose_b, plan.tiles_n, instruction.b_fragment.registers, instruction.k
        )
        a, b = self._part(left, "a"), self._part(right, "b")
        step = Var(INT32, "k_step")
        self.block.bind(step, plan.tiles_k)
        loads = [
            statement for operand, part in ((left, a), (right, b)) for statement in self._loads(operand, part, step)
        ]
        body = seq(loads, self._multiply(left, right, a, b, step))
        loop = For(step, const(0), const(plan.tiles_k), const(1), body, "unroll", span=gemm.span)
        return seq(self._clear(), [Allocate(part, span=gemm.span) for part in (a, b)], loop)

    @property
    def _sets(self) -> int:
        return 1

    def _multiply(self, left: Operand, right: Operand, a: Buffer, b: Buffer, step: Expr) -> Statement:
        plan, accumulator = self.plan, self.block.registers(self.gemm.c.buffer)
        row, column, word = Var(INT32, "m_tile"), Var(INT32, "n_tile"), Var(UINT32, "places")
        self.block.bind(row, plan.tiles_m)
        size = plan.instruction.d_fragment.registers
        place = index_binary("mul", index_binary("add", index_binary("mul", row, plan.tiles_n), column), size)
        arguments = (
            Region(accumulator, (place,), (size,)), self._fragment(left, a, row, step), self._fragment(right, b, column, step), word,
        )  # fmt: skip
        call = Evaluate(Call(BOOL, plan.instruction.function, arguments), span=self.gemm.span)
        inner = For(column, const(0), const(plan.tiles_n), const(1), seq(call), "unroll", span=self.gemm.span)
        body = seq(Let(word, self._word(row, step), span=self.gemm.span), inner)
        return For(row, const(0), const(plan.tiles_m), const(1), body, "unroll", span=self.gemm.span)

    def _word(self, tile: Var, step: Expr) -> Expr:
        """This lane's word of metadata for a tile of rows at a step of k."""
        plan = self.plan
        warp = index_binary("floormod", index_binary("floordiv", self.block.thread, 32), plan.warps_m)
        first = index_binary("add", index_binary("mul", warp, plan.tiles_m), tile)
        step_bytes = STEP_BYTES * (2 if self.gemm.a.dtype.bits == 8 else 1)
        row, byte = index_binary("mul", first, plan.instruction.m), index_binary("mul", step, step_bytes)
        return lane_word(self.gemm, self.block, row, byte, 2)
