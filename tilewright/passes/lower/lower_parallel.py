"""A `Parallel` on a machine without threads becomes nested loops, the innermost one for vectors.

Before::

    @stage("lowered")
    def f(A: float32[32, 64], B: float32[64], C: float32[32, 64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i, j in parallel(64, 32):
                C[j, i] = A[j, i] + B[i]

After::

    @stage("threaded")
    def f(A: float32[32, 64], B: float32[64], C: float32[32, 64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for j in range(32):
                for i in vectorize(64):
                    C[j, i] = A[j, i] + B[i]

Iterations are independent, so the loop over neighbouring elements may become the innermost one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir import Rewriter, find, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, map_kernels, nested

REGISTER_SCOPES = ("fragment", "local")


def lower_parallel(function: ir.Function, context: Context) -> ir.Function:
    """Replace `Parallel` by loops, and fragments and locals by arrays of the one thread."""
    return map_kernels(function, lambda one: replace(one, body=_Loops()(one.body), layouts=()), stage="threaded")


class _Loops(Rewriter):
    def __init__(self) -> None:
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        """The same tile as memory of one thread."""
        if buffer.scope not in REGISTER_SCOPES:
            return buffer
        if buffer not in self.buffers:
            source = self.map_buffer(buffer.source) if buffer.source is not None else None
            self.buffers[buffer] = replace(buffer, scope="register", source=source)
        return self.buffers[buffer]

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        inner = innermost(loop)
        order = [axis for axis in range(len(loop.vars)) if axis != inner] + [inner]
        kinds = ["serial"] * (len(order) - 1) + ["vectorize"]
        vars, extents = [loop.vars[axis] for axis in order], [loop.extents[axis] for axis in order]
        return nested(vars, extents, self(loop.body), kinds, loop.span)


def innermost(loop: ir.Parallel) -> int:
    """The dimension whose neighbours lie side by side in most accesses; the last one among equals."""
    accesses = [node for node in find(loop.body, ir.Load, ir.Store) if node.buffer.rank]
    best, best_cost = len(loop.vars) - 1, None
    for axis in reversed(range(len(loop.vars))):
        extent = loop.extents[axis]
        if isinstance(extent, int) and extent == 1 and len(loop.vars) > 1:
            continue
        cost = sum(_cost(node.buffer, node.indices, loop.vars[axis], isinstance(node, ir.Store)) for node in accesses)
        if best_cost is None or cost < best_cost:
            best, best_cost = axis, cost
    return best


def _cost(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var, is_store: bool) -> int:
    """What an access costs in a loop over `var`: nothing where it is contiguous or does not move."""
    if buffer.scope == "scalar":
        return 0
    moves = [var in walk(index) for index in indices]
    weight = 2 if is_store else 1
    if not any(moves):
        return 0
    if any(moves[:-1]):
        return 4 * weight
    return 0 if ir.is_literal(Analyzer().stride(indices[-1], var), 1) else 2 * weight
