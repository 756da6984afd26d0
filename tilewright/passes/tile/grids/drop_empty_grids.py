"""Kernels without blocks are dropped, so that no pass has to reason about indices that do not exist.

Before::

    with kernel(0, 4) as (x, y):
        ...

After: nothing.  Grids of sizes known only at launch stay; launching one without blocks does nothing.
"""

from __future__ import annotations

from tilewright.ir.nodes import Function, is_literal
from tilewright.passes import Context, map_kernels


def drop_empty_grids(function: Function, context: Context) -> Function:
    """Remove kernels of which some grid extent is 0."""
    return map_kernels(function, lambda kernel: None if any(is_literal(one, 0) for one in kernel.grid) else kernel)
