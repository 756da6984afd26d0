"""Waits for what nobody starts are left out: `T.gemm` is waited for where the compiler says, one thread copies by
itself.

Before (an author who asked every gemm not to wait, ``wg_wait=-1``)::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)
    wait("wgmma", pending=0)

After::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)

Where a block is one thread, the author's loops of copies (`T.attr(..., "async_scope")`) are ordinary loops, and have
ended where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.nodes import Commit, Function, Kernel, Parallel, TileOperator, Wait
from tilewright.ir.visitor import Rewriter, find
from tilewright.ops.copy import BY_HAND, TMA_STORES
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels
from tilewright.passes.tile.gemms.overlap_gemms import WGMMA


def drop_idle_waits(function: Function, context: Context) -> Function:
    """Remove the author's waits for products in kernels that start none, and of one thread those for its copies."""
    alone = not context.arch.has("threads")
    return map_kernels(function, lambda kernel: _dropped(kernel, alone))


def _dropped(kernel: Kernel, alone: bool) -> Kernel:
    started = {node.token for node in find(kernel.body, TileOperator)}
    if not alone:
        started |= {BY_HAND}
    made: Kernel = _Drop(frozenset({WGMMA, BY_HAND, TMA_STORES} - started))(kernel)
    return made


@dataclass(slots=True)
class _Drop(Rewriter):
    idle: frozenset[str]

    def visit_Wait(self, wait: Wait) -> Wait | None:
        return None if wait.token in self.idle else wait

    def visit_Commit(self, commit: Commit) -> Commit | None:
        return None if commit.token in self.idle else commit

    def visit_Parallel(self, loop: Parallel) -> Parallel:
        return replace(loop, token=None) if loop.token in self.idle else loop
