"""Every tile operator becomes what it means: the target's own way where it has one, else the operator's.

Before::

    @stage("traced")
    def f(A: float32[64], B: float32[64]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            copy(source=A, destination=B)

After::

    @stage("lowered")
    def f(A: float32[64], B: float32[64]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(64):
                B[i] = A[i]
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Function, Pipelined, Rewritten, TileOperator
from tilewright.passes import Context, ScopedRewriter, plain_loop
from tilewright.passes.lower.apply_operand_layouts import apply_operand_layouts


def lower_tiles(function: Function, context: Context) -> Function:
    """Replace tile operators by the statements that do their work, pipelines by plain loops.

    An override (``context.overrides``) may itself answer with tile operators; these are lowered in turn.  Operands
    that a micro-kernel reads in panel order get that order here, everywhere, so that the program stays whole.
    """
    body = _Lower(function, context)(function.body)
    return apply_operand_layouts(function.with_body(body, "lowered"), context)


class _Lower(ScopedRewriter):
    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = replace(context, analyzer=self.analyzer)

    def visit_TileOperator(self, operator: TileOperator) -> Rewritten:
        override = self.context.overrides.get(type(operator))
        lowered = override(operator, self.context) if override is not None else None
        if lowered is None:
            lowered = operator.lower()
        if lowered.span is None:
            lowered = replace(lowered, span=operator.span)
        return self.visit(lowered)

    def visit_Pipelined(self, loop: Pipelined) -> Rewritten:
        """What is left of pipelines on a machine whose copies are not asynchronous."""
        made = super().visit_Pipelined(loop)
        assert isinstance(made, Pipelined)
        return plain_loop(made)
