"""`T.gemm_sp` on ``mma.sp``: words of metadata as its lanes give them."""

from __future__ import annotations

from tilewright.ir.nodes import Expr, Statement
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.passes.context import Context
from tilewright.targets.cuda.sparse_metadata import STEP_BYTES, lane_word
from tilewright.targets.gpu.gemm import SparseWarpProduct


def lower_sparse_gemm(gemm: SparseGemm, context: Context) -> Statement | None:
    """The thread code of a sparse gemm that has a plan."""
    return _SparseWarpGemm.lower(gemm, context)


class _SparseWarpGemm(SparseWarpProduct):
    def word(self, first_row: Expr, step: Expr) -> Expr:
        step_bytes = STEP_BYTES * (2 if self.gemm.a.dtype.bits == 8 else 1)
        return lane_word(self.gemm, self.block, first_row, step * step_bytes, 2)
