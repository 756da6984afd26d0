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

from dataclasses import replace

from tilewright.ir import Commit, Function, Kernel, Parallel, TileOperator, Wait, changed, find
from tilewright.ops import BY_HAND, TMA_STORES
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.gemms.gemm_groups import WGMMA


def drop_idle_waits(function: Function, context: Context) -> Function:
    """Remove the author's waits for products in kernels that start none, and of one thread those for its copies."""
    alone = not context.arch.has("threads")
    return map_kernels(function, lambda kernel: _dropped(kernel, alone))


def _dropped(kernel: Kernel, alone: bool) -> Kernel:
    started = {node.token for node in find(kernel.body, TileOperator)}
    if not alone:
        started |= {BY_HAND}
    idle = {WGMMA, BY_HAND, TMA_STORES} - started
    kernel = changed(kernel, Wait, Commit, by=lambda one: None if one.token in idle else one)
    return changed(kernel, Parallel, by=lambda loop: replace(loop, token=None) if loop.token in idle else loop)
