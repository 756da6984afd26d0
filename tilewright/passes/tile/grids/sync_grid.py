"""Barriers of a whole grid get the word of memory in which its blocks count one another.

Before (in a host program)::

    with kernel(blocks={bx: 64}, ...):
        ...
        grid_sync()

After::

    arrivals = tensor(uint32[1])
    with kernel(blocks={bx: 64}, ...):
        ...
        grid_sync(arrivals[0])

The word is a workspace: zero when it is made, and left as it was by each barrier but for its highest bit. All blocks
must run at once; a grid of which no machine of this kind could hold so many is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.errors import GridTooLarge
from tilewright.ir import UINT32, Allocate, Buffer, Call, Function, Kernel, Region, const
from tilewright.ir.visitor import Rewriter, Rewritten, changed
from tilewright.ir.walking import find
from tilewright.passes.context import Context

GRID_SYNC = "grid_sync"


def sync_grid(function: Function, context: Context) -> Function:
    """Give every kernel with a barrier of its grid a word to count in.

    Raises
    ------
    GridTooLarge : more blocks than the machine runs at once.
    """
    return function.with_body(_SyncGrid(context)(function.body))


def syncs_grid(kernel: Kernel) -> bool:
    """Whether all blocks of a kernel wait for one another: a cooperative launch."""
    return any(node.function == GRID_SYNC for node in find(kernel.body, Call))


class _SyncGrid(Rewriter):
    def __init__(self, context: Context) -> None:
        self.context = context

    def visit_Kernel(self, kernel: Kernel) -> Rewritten:
        if not syncs_grid(kernel):
            return kernel
        known = [extent for extent in kernel.grid if isinstance(extent, int)]
        blocks, most = math.prod(known), self.context.arch.resident_blocks(kernel.num_threads)
        if len(known) == len(kernel.grid) and most is not None and blocks > most:
            raise GridTooLarge(
                f"T.sync_grid() needs all {blocks} blocks to be resident, but {self.context.arch.name} runs at most "
                f"{most} of {kernel.num_threads} threads at once",
                span=kernel.span,
                hint="launch fewer blocks, and let each loop over several tiles",
            )
        arrivals = Buffer("arrivals", (1,), UINT32, "global")
        counted = (Region(arrivals, (const(0),), (1,)),)
        body = changed(
            kernel.body, Call, by=lambda one: replace(one, arguments=counted) if one.function == GRID_SYNC else one
        )
        return [Allocate(arrivals, span=kernel.span), replace(kernel, body=body)]
