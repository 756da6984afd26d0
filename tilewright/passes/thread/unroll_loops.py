"""Loops marked ``unroll`` become their iterations, one after the other, where their number is known.

Before::

    @stage("final")
    def f(A: float32[32], C: float32[32]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in unroll(2):
                C[i * 16].x16 = A[i * 16].x16 + A[0].x16

After::

    @stage("final")
    def f(A: float32[32], C: float32[32]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            C[0].x16 = A[0].x16 + A[0].x16
            C[16].x16 = A[16].x16 + A[0].x16

Register tiles are then accessed at constant places, which is what lets them live in registers.  Very long loops
keep the mark, and the device's compiler decides.
"""

from __future__ import annotations

from tilewright.ir import Rewriter, Rewritten, find, new_names, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, map_kernels, with_values

MOST_STATEMENTS = 4096
"""Loops that would give more statements than this stay loops."""


def unroll_loops(function: ir.Function, context: Context) -> ir.Function:
    """Write out the loops of kind ``unroll``."""
    return map_kernels(function, _Unroll())


class _Unroll(Rewriter):
    def visit_For(self, loop: ir.For) -> Rewritten:
        loop = self.generic(loop)
        trips = loop.numbers
        if loop.kind != "unroll" or trips is None or _leaves(loop.body):
            return loop
        statements = list(find(loop.body, ir.Statement))
        if len(trips) * len(statements) > MOST_STATEMENTS:
            return loop
        made: list[ir.Statement] = []
        for value in trips:
            vars, buffers = new_names(loop.body)
            body = with_values(loop.body, {**vars, loop.var: ir.const(value, loop.var.dtype)}, buffers)
            made += [body] if body.declares else body.statements
        return made


def _leaves(body: ir.Seq) -> bool:
    """Whether the body may go on to the next iteration, or leave the loop, before its end."""
    return any(
        isinstance(node, (ir.Break, ir.Continue))
        for node in walk(body, lambda n: not isinstance(n, (ir.For, ir.While)))
    )
