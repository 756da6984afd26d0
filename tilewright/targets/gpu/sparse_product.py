"""`T.gemm_sp` on warps: the loads of a gemm, half of A, and for each tile of rows a word of metadata a lane."""

from __future__ import annotations

from tilewright.ir.dtypes import INT32, UINT32
from tilewright.ir.nodes import (
    Allocate,
    Expr,
    For,
    Let,
    Seq,
    Statement,
    Var,
    const,
    index_binary,
    seq,
)
from tilewright.layout.digits import REGISTER
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.targets.gpu.warp_product import Operand, WarpProduct


class SparseWarpProduct(WarpProduct[SparseGemm]):
    """A warp's gemm whose left operand is half as deep."""

    def word(self, first_row: Expr, step: Expr) -> Expr:
        """This lane's word of metadata for the tile of rows from `first_row` on, at a step of k."""
        raise NotImplementedError

    def statements(self) -> Seq:
        gemm, plan = self.gemm, self.plan
        instruction = plan.instruction
        assert instruction.a_fragment is not None and instruction.b_fragment is not None
        left = Operand(gemm.a, True, False, plan.tiles_m, instruction.a_fragment.extent(REGISTER), instruction.kept)
        right = Operand(
            gemm.b, False, not gemm.transpose_b, plan.tiles_n, instruction.b_fragment.extent(REGISTER), instruction.k
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

    def _beside(self, row: Var, step: Expr) -> tuple[list[Statement], tuple[Expr, ...]]:
        self.block.bind(row, self.plan.tiles_m)
        word = Var(UINT32, "places")
        return [Let(word, self._word(row, step), span=self.gemm.span)], (word,)

    def _word(self, tile: Var, step: Expr) -> Expr:
        plan = self.plan
        warp = index_binary("floordiv", self.block.thread, plan.instruction.threads)
        group = index_binary("floormod", warp, plan.warps_m)
        first = index_binary("add", index_binary("mul", group, plan.tiles_m), tile)
        return self.word(index_binary("mul", first, plan.instruction.m), step)
