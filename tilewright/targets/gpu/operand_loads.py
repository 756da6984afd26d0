"""Operands of matrix instructions by ordinary loads: each lane reads its own elements, as many at once as lie side by
side."""

from __future__ import annotations

from tilewright.arith import Analyzer
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.layout import REGISTER, Layout, shared_rows, vector_width
from tilewright.ops.base import zero
from tilewright.passes.rows import is_plain_tensor, row_unsupported
from tilewright.targets.gpu.warp_product import OPERAND_LOADS, OperandLoad


def load_elements(load: OperandLoad) -> list[ir.Statement]:
    """A loop over the tiles of an operand, in it one over the vectors that a lane holds of a tile."""
    product, operand, part = load.product, load.operand, load.part
    layout = load.fragment
    lanes = _vector(load, layout)
    tile, vector = ir.Var(INT32, "tile"), ir.Var(INT32, "r")
    product.block.analyzer.bind_extent(tile, operand.tiles)
    product.block.analyzer.bind_extent(vector, operand.registers // lanes)
    register = vector * lanes if lanes > 1 else vector
    row, column = layout.held_at(load.lane, register)
    across, deep = (row, column) if operand.is_left else (column, row)
    source = product.element(operand, tile, across, load.step, deep)
    within = tile * operand.registers + register
    span, place = product.gemm.span, load.register(within)
    read = _read(load, ir.Load(part.dtype.with_lanes(lanes), source.buffer, source.starts), place)
    inner = ir.counted(vector, operand.registers // lanes, ir.seq(read), "unroll", span=span)
    return [ir.counted(tile, operand.tiles, ir.seq(inner), "unroll", span=span)]


def _read(load: OperandLoad, found: ir.Load, place: ir.Expr) -> ir.Statement:
    """A lane reads some of its elements; those of a tensor where they are in bounds, else what is safe."""
    block, tensor, part, span = load.product.block, load.operand.region.buffer, load.part, load.product.gemm.span
    guard, lanes = block.guard(tensor, found.indices), found.dtype.lanes
    if guard is None:
        return ir.Store(part, (place,), found, span=span)
    safe = block.safe_value(tensor) or zero(found.dtype.scalar)
    if lanes > 1 and not load.product.arch.has("guarded_loads"):
        lane = ir.Var(INT32, "lane")
        fill = ir.Store(part, (place + lane,), safe, span=span)
        beyond = ir.counted(lane, lanes, ir.seq(fill), "unroll", span=span)
        return ir.If(guard, ir.seq(ir.Store(part, (place,), found, span=span)), ir.seq(beyond), span=span)
    value = ir.Select(found.dtype, guard, found, safe if lanes == 1 else ir.Broadcast(found.dtype, safe))
    return ir.Store(part, (place,), value, span=span)


def _vector(load: OperandLoad, layout: Layout) -> int:
    """How many consecutive registers of a lane hold elements that lie side by side in the shared tile."""
    operand, block = load.operand, load.product.block
    region, dtype = operand.region, load.part.dtype
    if dtype.is_packed:
        return 1
    # The last dimension of the tile is k, or what goes across: which of the fragment's two that is depends on the side.
    along = int(operand.is_left != operand.transposed)
    lanes = vector_width(layout, dtype.stored_bits, dimension=along, place=REGISTER)
    if region.buffer.scope == "global":
        return 1 if block.safe_value(region.buffer) is not None else _of_tensor(region, lanes, block.analyzer)
    tile = block.layouts.get(region.buffer) or shared_rows(region.buffer.static_shape, dtype.stored_bits, None)
    lanes = min(lanes, vector_width(tile, dtype.stored_bits))
    return lanes if block.analyzer.divides(region.starts[-1], lanes) else 1


def _of_tensor(region: ir.Region, lanes: int, analyzer: Analyzer) -> int:
    """The most neighbours of a tensor's row that one access may read wherever a row begins, and that are in bounds
    together."""
    tensor = region.buffer
    while lanes > 1 and not (
        is_plain_tensor(tensor)
        and row_unsupported(tensor, tensor.dtype.nbytes(lanes), analyzer) is None
        and analyzer.divides(tensor.shape[-1], lanes)
        and analyzer.divides(region.starts[-1], lanes)
    ):
        lanes //= 2
    return lanes


OPERAND_LOADS["load"] = load_elements
