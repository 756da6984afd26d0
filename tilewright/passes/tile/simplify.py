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

from typing import Any

from tilewright.ir import nodes
from tilewright.ir.nodes import Const, Expr, Function, Seq
from tilewright.passes.context import Context
from tilewright.passes.scoped import ScopedRewriter


def simplify(function: Function, context: Context) -> Function:
    """Remove branches that are never taken and loops that never run."""
    body = _Simplify(function)(function.body)
    return function if body is function.body else function.with_body(body)


class _Simplify(ScopedRewriter):
    def decided(self, condition: Expr) -> bool | None:
        """The value of a condition, where it is certain."""
        result = self.analyzer.simplify(condition)
        return bool(result.value) if isinstance(result, Const) else None

    def visit_If(self, branch: nodes.If) -> Any:
        value = self.decided(branch.condition)
        if value is None:
            return super().visit_If(branch)
        taken = branch.then if value else branch.otherwise
        return None if taken is None else _spliced(self(taken))

    def visit_Select(self, select: nodes.Select) -> Any:
        value = self.decided(select.condition)
        if value is None:
            return super().visit_Select(select)
        return self.visit(select.then if value else select.otherwise)

    def visit_For(self, loop: nodes.For) -> Any:
        if self.analyzer.prove(nodes.index_binary("ge", loop.start, loop.stop)):
            return None
        return super().visit_For(loop)

    def visit_While(self, loop: nodes.While) -> Any:
        return None if self.decided(loop.condition) is False else self.generic(loop)


def _spliced(body: Seq) -> Any:
    """The statements of a branch in place of it; in a scope of their own where they declare names."""
    declares = any(isinstance(statement, (nodes.Let, nodes.Allocate)) for statement in body.statements)
    return body if declares else list(body.statements)
