"""Kernels without blocks are dropped, so that no pass has to reason about indices that do not exist.

Before::

    with kernel(0, 4) as (x, y):
        ...

After: nothing.  Grids of sizes known only at launch stay; launching one without blocks does nothing.
"""

from __future__ import annotations

from tilewright.ir.nodes import Const, Extent, Function
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels


def drop_empty_grids(function: Function, context: Context) -> Function:
    """Remove kernels of which some grid extent is 0."""
    return map_kernels(function, lambda kernel: None if any(map(_is_zero, kernel.grid)) else kernel)


def _is_zero(extent: Extent) -> bool:
    return extent == 0 if isinstance(extent, int) else isinstance(extent, Const) and extent.value == 0
