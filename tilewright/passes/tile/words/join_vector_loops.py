"""A vector loop that is all of a parallel loop's body becomes its last dimension.

Before::

    for i, j in parallel(64, 16):
        for v in vectorize(4):
            C[i, j * 4 + v] = tile[i, j * 4 + v]

After::

    for i, j, v in parallel(64, 16, 4):
        C[i, j * 4 + v] = tile[i, j * 4 + v]

Threads then move the author's vectors as they move those that the compiler finds; packed atomics are such loops, too.
A loop whose iterations change one place stays: they run in order.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import For, Function, Parallel, Rewriter, Rewritten, folds
from tilewright.passes.context import Context


def join_vector_loops(function: Function, context: Context) -> Function:
    """Make dimensions of parallel loops of the vector loops in them."""
    return function.with_body(_Join()(function.body))


class _Join(Rewriter):
    def visit_Parallel(self, loop: Parallel) -> Rewritten:
        made: Parallel = self.generic(loop)
        inner = made.body.statements[0] if len(made.body.statements) == 1 else None
        if not isinstance(inner, For) or inner.kind != "vectorize":
            return made
        if folds(inner) or made.layout is not None or made.coalesced_width is not None:
            return made
        numbers = inner.numbers
        if numbers is None or (numbers.start, numbers.step) != (0, 1):
            return made
        return replace(made, vars=(*made.vars, inner.var), extents=(*made.extents, numbers.stop), body=inner.body)
