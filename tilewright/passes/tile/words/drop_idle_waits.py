"""Waits for what nobody starts are left out: `T.gemm` is waited for where the compiler says, one thread copies by
itself.

Before (an author who asked every gemm not to wait, ``wg_wait=-1``)::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)
    wait("wgmma", pending=0)

After::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)

Where a block is one thread, what the author only starts (`T.async_copy`, `T.wgmma_gemm`, loops of copies) has ended
where it stands; but what barriers count, and other blocks are given, is left for `check_words` to refuse.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Commit, Function, Kernel, Parallel, TileOperator, Wait, changed, find
from tilewright.ops import BY_HAND, TMA_STORES, Copy
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.gemms.gemm_groups import WGMMA


def drop_idle_waits(function: Function, context: Context) -> Function:
    """Remove the author's waits for products in kernels that start none, and of one thread those for its copies."""
    if context.arch.has("threads"):
        started = {BY_HAND} if context.arch.starts_own_copies else set[str]()
        return map_kernels(function, lambda kernel: _dropped(kernel, started))
    return map_kernels(function, lambda kernel: _dropped(changed(kernel, TileOperator, by=_at_once), set()))


def _at_once(operator: TileOperator) -> TileOperator:
    """The operator as one thread does it, where it stands."""
    if operator.token is None or (isinstance(operator, Copy) and (operator.rank, operator.barrier) != (None, None)):
        return operator
    if isinstance(operator, Copy):
        operator = replace(operator, schedule=replace(operator.schedule, prefer=None))
    return replace(operator, token=None)


def _dropped(kernel: Kernel, started: set[str]) -> Kernel:
    idle = {WGMMA, BY_HAND, TMA_STORES} - started - {node.token for node in find(kernel.body, TileOperator)}
    kernel = changed(kernel, Wait, Commit, by=lambda one: None if one.token in idle else one)
    return changed(kernel, Parallel, by=lambda loop: replace(loop, token=None) if loop.token in idle else loop)
