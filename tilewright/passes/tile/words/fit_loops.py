"""Shrinks parallel loops to the iterations that their condition admits, and unrolls short loops that index fragments.

Before::

    for s in range(2):
        for i, j in parallel(64, 64):
            if i < 32:
                half[i, j] = tile[i + s * 32, j]

After::

    for i, j in parallel(32, 64):
        half[i, j] = tile[i, j]
    for i, j in parallel(32, 64):
        half[i, j] = tile[i + 32, j]

Registers have no addresses, so an index into a fragment that is known only at run time would go through shared memory.
Machines without threads need none of this.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import LEAVING, Rewriter, Rewritten, conjuncts, find, fresh, holds, substitute, variables
from tilewright.ir import nodes as ir
from tilewright.passes.context import Context

MOST_ITERATIONS = 8
"""The most iterations that are unrolled."""


def fit_loops(function: ir.Function, context: Context) -> ir.Function:
    """Shrink parallel loops to the iterations that work, and unroll short loops that index fragments."""
    return function.with_body(_Fit()(function.body))


class _Fit(Rewriter):
    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        if len(loop.body.statements) != 1 or loop.layout is not None:
            return loop
        only = loop.body.statements[0]
        if not isinstance(only, ir.If) or only.otherwise is not None:
            return loop
        extents = list(loop.extents)
        for condition in conjuncts(only.condition):
            found = _end(condition, loop)
            if found is None:
                return loop
            axis, end = found
            extents[axis] = end
        if tuple(extents) == loop.extents:
            return loop
        return replace(loop, extents=tuple(extents), body=only.then)

    def visit_For(self, loop: ir.For) -> Rewritten:
        made = self.generic(loop)
        numbers = made.numbers
        if made.kind not in ("serial", "unroll") or numbers is None:
            return made
        if not 1 < len(numbers) <= MOST_ITERATIONS or not _places_fragments(made):
            return made
        copies = [substitute(fresh(made.body), {made.var: ir.const(one, made.var.dtype)}) for one in numbers]
        return ir.Seq(tuple(copies), span=loop.span)


def _end(condition: ir.Expr, loop: ir.Parallel) -> tuple[int, int] | None:
    """The loop's dimension that a condition bounds, and its bound; None for another condition."""
    if not isinstance(condition, ir.Binary) or condition.op not in ("lt", "le") or condition.left not in loop.vars:
        return None
    axis = loop.vars.index(condition.left)  # type: ignore[arg-type]
    extent, end = loop.extents[axis], condition.right
    if not isinstance(extent, int) or not isinstance(end, ir.Const):
        return None
    stop = int(end.value) + (condition.op == "le")
    return (axis, stop) if 0 < stop < extent else None


def _places_fragments(loop: ir.For) -> bool:
    """Whether a loop's variable indexes fragments in its parallel loops, and nothing leaves the loop early."""
    if holds(loop.body, *LEAVING):
        return False
    for inner in find(loop.body, ir.Parallel):
        for node in find(inner.body, ir.Load, ir.Store, ir.Region):
            indices = node.starts if isinstance(node, ir.Region) else node.indices
            if node.buffer.scope == "fragment" and any(loop.var in variables(index) for index in indices):
                return True
    return False
