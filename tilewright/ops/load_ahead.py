"""What lanes read of a gemm's left operand before the gemm begins: a pass writes it, authors do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir.nodes import UNPRINTED, Effects, Region, Statement, TileOperator, tile_operator
from tilewright.ops.gemm_plan import GemmPlan


@tile_operator("load_ahead")
class LoadAhead(TileOperator):
    """The words of the first instruction of a gemm whose left operand lanes transpose, into the registers of its plan.

    Fields
    ------
    a : the gemm's left operand.
    plan : the gemm's.

    It changes nothing that a program can see: the gemm still reads `a`, which must be the same until then.
    """

    a: Region
    plan: GemmPlan | None = field(default=None, kw_only=True, metadata=UNPRINTED)

    def check(self) -> Iterator[str]:
        return iter(())

    def effects(self) -> Effects:
        return Effects(reads=(self.a,), writes=())

    def reference(self, *reads: np.ndarray) -> tuple[()]:
        return ()

    def lower(self) -> Statement:
        raise InternalError("only machines whose lanes transpose operands load them ahead", span=self.span)
