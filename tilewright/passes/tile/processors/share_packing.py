"""Operands that many blocks would copy next to themselves, each for itself, are copied once, in a kernel before.

Gemms read compact tiles: rows side by side of the left operand, panels of the right one.  Blocks of one row of
the grid all fill the same tiles of the left operand, those of one column the same tiles of the right one.  A
kernel before fills them all, in a workspace, and gemms read them there.

Before::

    @stage("traced")
    def f(A: float32[256, 32], B: float32[32, 64], C: float32[256, 64]) -> C:
        with kernel(blocks={bn: 2, bm: 4}, threads={tx: 1, ty: 1, tz: 1}):
            b = shared(float32[16, 32])
            c = fragment(float32[64, 32])
            fill(destination=c, value=float32(0.0))
            for k in range(2):
                copy(source=B[k * 16 : +16, bn * 32 : +32], destination=b)
                gemm(a=A[bm * 64 : +64, k * 16 : +16], b=b, c=c)
            copy(source=c, destination=C[bm * 64 : +64, bn * 32 : +32])

After::

    @stage("traced")
    def f(A: float32[256, 32], B: float32[32, 64], C: float32[256, 64]) -> C:
        b_packed = tensor(float32[2048])
        with kernel(blocks={bn: 2, k: 2}, threads={tx: 1, ty: 1, tz: 1}):
            b_tiles = tensor(float32[2, 2, 16, 32], source=b_packed)
            copy(source=B[k * 16 : +16, bn * 32 : +32], destination=b_tiles[bn, k, :, :])
        with kernel(blocks={bn: 2, bm: 4}, threads={tx: 1, ty: 1, tz: 1}):
            b_tiles = tensor(float32[2, 2, 16, 32], source=b_packed)
            c = fragment(float32[64, 32])
            fill(destination=c, value=float32(0.0))
            for k in range(2):
                gemm(a=A[bm * 64 : +64, k * 16 : +16], b=b_tiles[bn, k, :, :], c=c)
            copy(source=c, destination=C[bm * 64 : +64, bn * 32 : +32])
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir import INT32, INT64, DType, Rewriter, changed, find, holds, substitute, without_tiles
from tilewright.ir import nodes as ir
from tilewright.layout.panels import PanelLayout
from tilewright.machine import Arch, OperandPlan, TilePlan
from tilewright.ops import Copy, Gemm
from tilewright.passes import Context, fresh
from tilewright.passes.tile.gemms.gemm_candidates import replanned
from tilewright.passes.tile.processors import forward_operands as operands
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, PhysicalOperand, tile_layout

MOST_GRID_DIMENSIONS = 3


def share_packing(function: ir.Function, context: Context) -> ir.Function:
    """Copy operands of gemms once where several blocks read them."""
    return function.with_body(_Hosts(function, context)(function.body))


@dataclass(frozen=True, slots=True)
class _Shared:
    """A tile that blocks share.

    Attributes
    ----------
    copy : what fills it.
    layout : of a right operand, None for rows side by side.
    memory : the workspace.
    places : the loops and grid dimensions that it depends on, with their extents.
    pitch : elements from a row of a left operand to the next, where that is more than a row has.
    """

    copy: Copy
    layout: PanelLayout | None
    memory: ir.Buffer
    places: dict[ir.Var, ir.Extent]
    pitch: int | None = None


class _Hosts(Rewriter):
    def __init__(self, function: ir.Function, context: Context) -> None:
        self.function, self.context = function, context

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel | list[ir.Statement]:
        counts = [_readers(kernel, tile) for tile in self.tiles(kernel)]
        unknown = [count for count in counts if not isinstance(count, int)]
        surely = self.sharing(kernel, [isinstance(count, int) and count > 1 for count in counts])
        if not unknown:
            return surely if surely != [kernel] else kernel
        several = functools.reduce(lambda one, other: one * other, unknown)
        both = self.sharing(_another(kernel), [count != 1 for count in counts])
        return [ir.If(ir.index_binary("gt", several, 1), ir.Seq(tuple(both)), ir.Seq(tuple(surely)), span=kernel.span)]

    def tiles(self, kernel: ir.Kernel) -> list[_Shared]:
        """Tiles that several blocks fill alike and only one gemm reads, in a fixed order."""
        staged = operands.StagedOperands(self.function, self.context)
        staged(kernel)
        loops = dict(_loops_around_copies(kernel.body, {}))
        grid = dict(zip(kernel.block_vars, kernel.grid, strict=True))
        found = []
        for gemm, name, copy in staged.found:
            if staged.readers[copy.destination.buffer] != 1 or not isinstance(copy, Copy):
                continue
            if copy not in loops or not _is_plain(copy, staged.safe):
                continue
            form: tuple[PanelLayout | None, DType] | None
            form = _left_form(gemm) if name == "a" else tile_layout(gemm)
            places = _places(copy, {**grid, **loops[copy]})
            if form is not None and places is not None and not set(grid) <= set(places):
                pitch = _pitch(gemm, self.context) if name == "a" else None
                found.append(_shared(copy, form[0], form[1], places, pitch))
        return found

    def sharing(self, kernel: ir.Kernel, chosen: list[bool]) -> list[ir.Statement]:
        """The kernel with the chosen ones of its tiles in workspaces, behind kernels that fill them."""
        tiles = [tile for tile, share in zip(self.tiles(kernel), chosen, strict=True) if share]
        if not tiles:
            return [kernel]
        regions = {tile.copy.destination.buffer: self.view(tile, tuple(tile.places)) for tile in tiles}
        sources = self.context.facts[operands.SOURCES]
        for tile in tiles:
            if operands.tells_ends(tile.copy, tile.copy.destination) and _ends_with_shifts(kernel, tile.copy):
                sources[regions[tile.copy.destination.buffer]] = tile.copy.source
        made = _reading(kernel, regions, self.context.arch)
        views = tuple(ir.Allocate(region.buffer) for region in regions.values())
        made = made.with_body(replace(made.body, statements=(*views, *made.body.statements)))
        return [*(statement for tile in tiles for statement in self.filling(tile)), made]

    def filling(self, tile: _Shared) -> list[ir.Statement]:
        """The workspace, and the kernel that fills it: one block a tile."""
        vars = {var: replace(var) for var in tile.places}
        destination = self.view(tile, tuple(vars.values()))
        copy = replace(substitute(tile.copy, vars), destination=destination)
        body = ir.Seq((ir.Allocate(destination.buffer), copy), span=copy.span)
        x, y, z = (ir.Var(INT32, f"t{axis}") for axis in "xyz")
        grid = tuple(tile.places.values())
        return [
            ir.Allocate(tile.memory),
            ir.Kernel(tuple(vars.values()), grid, (x, y, z), (1, 1, 1), body, span=copy.span),
        ]

    def view(self, tile: _Shared, place: tuple[ir.Expr, ...]) -> ir.Region:
        """The tile at a place of the workspace."""
        leading, inner = tuple(tile.places.values()), tile.copy.destination.buffer.shape
        name, dtype = tile.copy.destination.buffer.name, tile.memory.dtype
        strides = None if tile.pitch is None else ir.row_major_strides((*leading, *inner[:-1], tile.pitch))
        tiles = ir.Buffer(f"{name}_tiles", (*leading, *inner), dtype, "global", strides, tile.memory)
        if tile.layout is not None:
            panels = ir.Buffer(f"{name}_panels", tile.memory.shape, dtype, "local", source=tile.memory)
            facts = self.context.facts[FACT]
            facts[tiles] = PhysicalOperand(panels, tile.layout, leading=leading)
        return ir.Region(tiles, (*place, ir.const(0), ir.const(0)), (*(1 for _ in leading), *inner))


def _reading(kernel: ir.Kernel, regions: dict[ir.Buffer, ir.Region], arch: Arch) -> ir.Kernel:
    """Gemms read the workspace; the tiles and what filled them go."""

    def read(gemm: Gemm) -> Gemm:
        a, b = (regions.get(region.buffer, region) for region in (gemm.a, gemm.b))
        return gemm if a is gemm.a and b is gemm.b else replanned(gemm, arch, a=a, b=b)

    kernel = changed(kernel, Copy, by=lambda one: None if one.destination.buffer in regions else one)
    return without_tiles(changed(kernel, Gemm, by=read), regions)


# What blocks share ------------------------------------------------------------------------------


def _ends_with_shifts(kernel: ir.Kernel, copy: Copy) -> bool:
    """Whether what gemms add beside their products ends where a tile's source does."""
    return all(
        operands.shift_ends_with(gemm, name, copy.source)
        for gemm in find(kernel, Gemm)
        for name in ("a", "b")
        if getattr(gemm, name).buffer is copy.destination.buffer
    )


def _another(kernel: ir.Kernel) -> ir.Kernel:
    """The same kernel with indices, loops and tiles of its own."""
    vars = {var: replace(var) for var in (*kernel.block_vars, *kernel.thread_vars)}
    body = fresh(substitute(kernel.body, vars))
    x, y, z = (vars[var] for var in kernel.thread_vars)
    return replace(kernel, block_vars=tuple(vars[var] for var in kernel.block_vars), thread_vars=(x, y, z), body=body)


def _readers(kernel: ir.Kernel, tile: _Shared) -> ir.Extent:
    """Blocks that fill the same tile."""
    count: ir.Extent = 1
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
        if var not in tile.places:
            count = count * extent
    return count


def _shared(
    copy: Copy, layout: PanelLayout | None, dtype: DType, places: dict[ir.Var, ir.Extent], pitch: int | None
) -> _Shared:
    rows, columns = copy.destination.buffer.static_shape
    size: ir.Extent = rows * (pitch or columns) if layout is None else layout.size
    for extent in places.values():
        size = (size if isinstance(extent, int) else ir.cast(ir.expr(size), INT64)) * extent
    return _Shared(
        copy, layout, ir.Buffer(f"{copy.destination.buffer.name}_packed", (size,), dtype, "global"), places, pitch
    )


def _pitch(gemm: Gemm, context: Context) -> int | None:
    """Elements between rows that a matrix unit loads sixteen at a time.

    An odd number of lines, so that the sixteen lie in different sets of the first-level cache.
    """
    size, line = gemm.a.dtype.storage_bytes, context.arch.line_bytes
    if not isinstance(gemm.plan, TilePlan) or gemm.k * size % (2 * line):
        return None
    return gemm.k + line // size


def _left_form(gemm: Gemm) -> tuple[None, DType] | None:
    """Rows of the type that the instruction broadcasts; None where rows are read where they are, or shifted anyway."""
    plan = gemm.plan if isinstance(gemm.plan, OperandPlan) else None
    if plan is None or plan.left_offset or gemm.transpose_a or gemm.m <= operands.FEW_ROWS:
        return None
    return None, plan.instruction.broadcast


def _is_plain(copy: Copy, safe: set[ir.Buffer]) -> bool:
    """Whether the tile holds elements of a matrix of the caller's, zeros beyond its end."""
    source = copy.source
    return (
        source.buffer.scope == "global"
        and source.buffer.source is None
        and not source.buffer.placed
        and source.buffer not in safe
        and not source.buffer.packed
        and not source.dtype.is_packed
        and source.tile_shape == copy.destination.tile_shape
        and not any(holds(start, ir.Load) for start in source.starts)
    )


def _places(copy: Copy, extents: dict[ir.Var, ir.Extent]) -> dict[ir.Var, ir.Extent] | None:
    """The loops and grid dimensions that the source depends on; None where there is something else, or too many."""
    used = {node for start in copy.source.starts for node in find(start, ir.Var)}
    if not used <= set(extents) or not 0 < len(used) <= MOST_GRID_DIMENSIONS:
        return None
    return {var: extent for var, extent in extents.items() if var in used}


def _loops_around_copies(
    node: ir.Statement, around: dict[ir.Var, ir.Extent]
) -> Iterator[tuple[Copy, dict[ir.Var, ir.Extent]]]:
    """Every copy that surely runs, with the loops around it that count from zero."""
    if isinstance(node, Copy):
        yield node, around
    elif isinstance(node, ir.Seq):
        for statement in node.statements:
            yield from _loops_around_copies(statement, around)
    elif isinstance(node, (ir.For, ir.Pipelined)):
        numbers = node.numbers
        if numbers is not None and (numbers.start, numbers.step) == (0, 1):
            yield from _loops_around_copies(node.body, {**around, node.var: numbers.stop})
