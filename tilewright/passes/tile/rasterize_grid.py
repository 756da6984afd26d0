"""Walks a grid in panels (`T.use_swizzle`), so that blocks that run together share rows and columns in the L2 cache.

Before (``raster=("row", 4)``)::

    with kernel(blocks={bx: 10, by: 6}, ...):
        ...

After: panels of four rows, each walked column by column, every second one backwards::

    with kernel(blocks={block_x: 10, block_y: 6}, ...):
        block: int32 = block_x + block_y * 10
        panel: int32 = block // 40
        height: int32 = min(6 - panel * 4, 4)
        place: int32 = block - panel * 40
        across: int32 = place // height
        bx: int32 = across if panel % 2 == 0 else 9 - across
        by: int32 = panel * 4 + place % height
        ...

Panels of columns exchange the two dimensions.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import (
    Assume,
    Expr,
    Extent,
    Function,
    Kernel,
    Let,
    Select,
    Statement,
    Var,
    cast,
    expr,
    index_binary,
    seq,
)
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels

RASTER = "raster"


def rasterize_grid(function: Function, context: Context) -> Function:
    """Give each kernel that asks for it block indices in the order of its panels."""
    return map_kernels(function, _rasterize)


def _rasterize(kernel: Kernel) -> Kernel:
    wanted = kernel.attribute(RASTER)
    if wanted is None or len(kernel.grid) < 2 or kernel.attribute("cluster", (1, 1, 1)) != (1, 1, 1):
        return kernel
    order, size = wanted
    (x, y), (columns, rows) = kernel.block_vars[:2], kernel.grid[:2]
    launched = (Var(INT32, "block_x"), Var(INT32, "block_y"))
    names: list[Statement] = []

    def name(word: str, value: Expr) -> Var:
        var = Var(INT32, word)
        names.append(Let(var, cast(value, INT32), span=kernel.span))
        return var

    block = name("block", index_binary("add", launched[0], index_binary("mul", launched[1], columns)))
    along, width = ((x, columns), (y, rows)) if order == "row" else ((y, rows), (x, columns))
    per_panel = index_binary("mul", along[1], size)
    panel = name("panel", index_binary("floordiv", block, per_panel))
    first = index_binary("mul", panel, size)
    height = name("height", index_binary("min", index_binary("sub", width[1], first), size))
    place = name("place", index_binary("sub", block, index_binary("mul", panel, per_panel)))
    across = name("across", index_binary("floordiv", place, height))
    forwards = index_binary("eq", index_binary("floormod", panel, 2), 0)
    backwards = index_binary("sub", index_binary("sub", along[1], 1), across)
    names.append(Let(along[0], _turned(forwards, across, backwards), span=kernel.span))
    inside = index_binary("add", first, index_binary("floormod", place, height))
    names.append(Let(width[0], cast(inside, INT32), span=kernel.span))
    facts = [_within(var, extent) for var, extent in ((x, columns), (y, rows))]
    rest = {var: value for var, value in kernel.attributes if var != RASTER}
    return replace(
        kernel, block_vars=(*launched, *kernel.block_vars[2:]), attributes=tuple(rest.items()),
        body=replace(kernel.body, statements=seq(names, facts, kernel.body.statements).statements),
    )  # fmt: skip


def _turned(forwards: Expr, across: Expr, backwards: Expr) -> Expr:
    return Select(INT32, forwards, cast(across, INT32), cast(backwards, INT32))


def _within(var: Var, extent: Extent) -> Assume:
    """A block index is what a block index is, however it was computed."""
    both = index_binary("all", index_binary("ge", var, 0), index_binary("lt", var, expr(extent)))
    return Assume(both)
