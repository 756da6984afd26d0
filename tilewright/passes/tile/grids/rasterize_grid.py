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
        by: int32 = panel * 4 + place - across * height
        ...

Panels of columns exchange the two dimensions.  Those of the order ``"mlx"`` are of rows, and none is walked backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import Span
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.passes import Context, map_kernels

RASTER = "raster"


def rasterize_grid(function: ir.Function, context: Context) -> ir.Function:
    """Give each kernel that asks for it block indices in the order of its panels."""
    return map_kernels(function, _rasterize)


def _rasterize(kernel: ir.Kernel) -> ir.Kernel:
    wanted = kernel.attribute(RASTER)
    if wanted is None or len(kernel.grid) < 2 or kernel.attribute("cluster", (1, 1, 1)) != (1, 1, 1):
        return kernel
    columns = kernel.grid[0]
    launched = (ir.Var(INT32, "block_x"), ir.Var(INT32, "block_y"))
    block = ir.Var(INT32, "block")
    number = launched[0] + launched[1] * columns
    places, names = panel_place(block, kernel.grid[:2], wanted, kernel.span)
    names.insert(0, ir.Let(block, ir.cast(number, INT32), span=kernel.span))
    for var, place, extent in zip(kernel.block_vars[:2], places, kernel.grid[:2]):
        names.append(ir.Let(var, ir.cast(place, INT32), span=kernel.span))
        names.append(within(var, extent))
    rest = {var: value for var, value in kernel.attributes if var != RASTER}
    return replace(
        kernel,
        block_vars=(*launched, *kernel.block_vars[2:]),
        attributes=tuple(rest.items()),
        body=replace(kernel.body, statements=ir.seq(names, kernel.body.statements).statements),
    )


def panel_place(
    number: ir.Var, counts: Sequence[ir.Extent], raster: tuple[str, int], span: Span | None
) -> tuple[list[ir.Expr], list[ir.Statement]]:
    """Where tile `number` of a grid stands when its first two dimensions are walked in panels.

    Parameters
    ----------
    counts : tiles along each dimension of the grid, 1 to 3.
    raster : ``"row"``, ``"column"`` or ``"mlx"``, the direction of the panels, and tiles along a panel's short side.

    Returns
    -------
    One index a dimension, and statements that name what they are made of.
    """
    order, size = raster
    if len(counts) == 1:
        return [number], []
    names: list[ir.Statement] = []

    def name(word: str, value: ir.Expr) -> ir.Var:
        var = ir.Var(INT32, word)
        names.append(ir.Let(var, ir.cast(value, INT32), span=span))
        return var

    columns, rows = counts[:2]
    rest, deep = number, []
    if len(counts) == 3:
        plane = columns * rows
        deep = [number // plane]
        rest = name("rest", number % plane)
    along, width = (rows, columns) if order == "column" else (columns, rows)
    per_panel = along * size
    panel = name("panel", rest // per_panel)
    first = panel * size
    height = name("height", ir.index_binary("min", width - first, size))
    place = name("place", rest - panel * per_panel)
    across = name("across", place // height)
    forwards = ir.index_binary("eq", panel % 2, 0)
    backwards = along - 1 - across
    turned = across if order == "mlx" else ir.Select(INT32, forwards, ir.cast(across, INT32), ir.cast(backwards, INT32))
    inside = first + (place - across * height)
    return [inside, turned, *deep] if order == "column" else [turned, inside, *deep], names


def within(var: ir.Var, extent: ir.Extent) -> ir.Assume:
    """A block index is what a block index is, however it was computed."""
    both = ir.index_binary("all", ir.index_binary("ge", var, 0), ir.index_binary("lt", var, ir.expr(extent)))
    return ir.Assume(both)
