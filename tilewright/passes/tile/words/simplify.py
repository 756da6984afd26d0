"""Conditions that are decided by sizes, ranges of loops and assumptions are decided here, and dead code goes.

Before::

    @stage("traced")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 2}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(32):
                if bx * 32 + i < 64:
                    C[bx * 32 + i] = A[bx * 32 + i] if i >= 0 else 0.0
                else:
                    C[0] = 1.0

After::

    @stage("traced")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 2}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(32):
                C[bx * 32 + i] = A[bx * 32 + i]

Index arithmetic stays as the author wrote it; `flatten_buffers` simplifies what is left of it.
"""

from __future__ import annotations

from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewritten
from tilewright.passes import Context, DecidingRewriter


def simplify(function: ir.Function, context: Context) -> ir.Function:
    """Remove branches that are never taken and loops that never run."""
    return function.with_body(_Simplify(function)(function.body))


class _Simplify(DecidingRewriter):
    def visit_While(self, loop: ir.While) -> Rewritten:
        return None if self.decided(loop.condition) is False else self.generic(loop)
