"""Waits for products that nobody starts are left out: those of `T.gemm` are waited for where the compiler says.

Before (an author who asked every gemm not to wait, ``wg_wait=-1``)::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)
    wait("wgmma", pending=0)

After::

    gemm(q, keys, scores)
    gemm(q_tail, keys_tail, scores)
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tilewright.ir.nodes import Function, Kernel, Token, Wait
from tilewright.ir.visitor import Rewriter, find
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels
from tilewright.passes.tile.overlap_gemms import WGMMA


def drop_idle_waits(function: Function, context: Context) -> Function:
    """Remove the author's waits for products in kernels that start none."""
    return map_kernels(function, _dropped)


def _dropped(kernel: Kernel) -> Kernel:
    made: Kernel = _Drop({product.token for product in find(kernel.body, Product)})(kernel)
    return made


@dataclass(slots=True)
class _Drop(Rewriter):
    started: Set[Token | None]

    def visit_Wait(self, wait: Wait) -> Wait | None:
        return None if wait.token == WGMMA and WGMMA not in self.started else wait
