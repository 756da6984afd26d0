"""Tile operators and parallel loops on a thread's own memory become loops of each thread.

Before::

    @stage("traced")
    def f(A: float32[32], B: float32[32, 2]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            own = local(float32[2])
            fill(destination=own, value=float32(0.0))
            own[0] = A[tx]
            copy(source=own, destination=B[tx, :])

After::

    @stage("traced")
    def f(A: float32[32], B: float32[32, 2]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            own = local(float32[2])
            for i in vectorize(2):
                own[i] = 0.0
            own[0] = A[tx]
            for i in vectorize(2):
                B[tx, i] = own[i]

Each thread has a local tile of its own, so dividing such work among the threads would leave most of every tile
undone.  What differs between threads is done by each for itself, as the interpreter does; on a machine with
threads, so is everything that only writes local tiles.  Fragments belong to the block and stay with it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.interpreter.varying import find_varying
from tilewright.ir import Rewriter, find, touched
from tilewright.ir import nodes as ir
from tilewright.passes import Context, map_kernels, nested

UNROLLED = 64
"""Iterations up to which a loop over a local tile is unrolled, so that the tile stays in registers."""


def privatize_operators(function: ir.Function, context: Context) -> ir.Function:
    """Replace operators and parallel loops that each thread runs for itself by plain loops."""
    return map_kernels(function, lambda kernel: _privatize(kernel, context.arch.has_threads))


def _privatize(kernel: ir.Kernel, has_threads: bool) -> ir.Kernel:
    work = [s for s in find(kernel.body, ir.TileOperator, ir.Parallel) if "fragment" not in _scopes(s)]
    dependent = find_varying(kernel).dependent if work else ()
    private: set[ir.Statement] = {
        s for s in work if s in dependent or (has_threads and _scopes(s, written=True) == {"local"})
    }
    return replace(kernel, body=_Privatize(private)(kernel.body)) if private else kernel


def _scopes(statement: ir.Statement, written: bool = False) -> set[str]:
    """Where the memory lies that a statement touches (or writes), leaving out what it allocates itself."""
    own = {node.buffer for node in find(statement, ir.Allocate)}
    effects = touched(statement)
    return {buffer.scope for buffer in (effects.writes if written else effects.all) - own}


class _Privatize(Rewriter):
    def __init__(self, private: set[ir.Statement]) -> None:
        self.private = private

    def visit_TileOperator(self, operator: ir.TileOperator) -> ir.Statement:
        return _Serial()(replace(operator.lower(), span=operator.span)) if operator in self.private else operator

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        return _Serial()(loop) if loop in self.private else self.generic(loop)


class _Serial(Rewriter):
    """Parallel loops as the loops of one thread."""

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        inner = ["unroll"] * (len(loop.vars) - 1) + ["vectorize"]
        few = [isinstance(extent, int) and extent <= UNROLLED for extent in loop.extents]
        kinds = [kind if is_few else "serial" for kind, is_few in zip(inner, few, strict=True)]
        return nested(loop.vars, loop.extents, self(loop.body), kinds, loop.span)
