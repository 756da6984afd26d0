"""`T.gemm_sp` on warps: the loads of a gemm, half of A, and for each tile of rows a word of metadata a lane."""

from __future__ import annotations

from abc import abstractmethod

from tilewright.ir.dtypes import UINT32
from tilewright.ir.nodes import (
    Expr,
    Let,
    Seq,
    Statement,
    Var,
)
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.targets.gpu.warp_product import WarpProduct


class SparseWarpProduct(WarpProduct[SparseGemm]):
    """A warp's gemm whose left operand is half as deep."""

    @abstractmethod
    def word(self, first_row: Expr, step: Expr) -> Expr:
        """This lane's word of metadata for the tile of rows from `first_row` on, at a step of k."""

    def statements(self) -> Seq:
        left, right = self._operands(False)
        return self._step_by_step(left, right, self._part(left, "a"), self._part(right, "b"))

    def _beside(self, row: Var, step: Expr) -> tuple[list[Statement], tuple[Expr, ...]]:
        self.block.bind(row, self.plan.tiles_m)
        word = Var(UINT32, "places")
        return [Let(word, self._word(row, step), span=self.gemm.span)], (word,)

    def _word(self, tile: Var, step: Expr) -> Expr:
        plan = self.plan
        warp = self.block.thread // plan.instruction.threads
        group = warp % plan.warps_m
        first = group * plan.tiles_m + tile
        return self.word(first * plan.instruction.m, step)
