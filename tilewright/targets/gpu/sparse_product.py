"""`T.gemm_sp` on warps: the loads of a gemm, half of A, and for each tile of rows a word of metadata a lane."""

from __future__ import annotations

from abc import abstractmethod

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import UINT32
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.targets.gpu.warp_product import WarpProduct


class SparseWarpProduct(WarpProduct[SparseGemm]):
    """A warp's gemm whose left operand is half as deep."""

    @abstractmethod
    def word(self, first_row: ir.Expr, step: ir.Expr) -> ir.Expr:
        """This lane's word of metadata for the tile of rows from `first_row` on, at a step of k."""

    def statements(self) -> ir.Seq:
        left, right = self._operands(False)
        return self._step_by_step(left, right, self._part(left, "a"), self._part(right, "b"))

    def _beside(self, row: ir.Var, step: ir.Expr) -> tuple[list[ir.Statement], tuple[ir.Expr, ...]]:
        self.block.bind(row, self.plan.tiles_m)
        word = ir.Var(UINT32, "places")
        return [ir.Let(word, self._word(row, step), span=self.gemm.span)], (word,)

    def _word(self, tile: ir.Var, step: ir.Expr) -> ir.Expr:
        plan = self.plan
        warp = self.block.thread // plan.instruction.threads
        group = warp % plan.warps_m
        first = group * plan.tiles_m + tile
        return self.word(first * plan.instruction.m, step)
