"""Chooses where the elements of right operands lie, so that micro-kernels read them one load after the other.

A tile that only feeds gemms gets the panel order of the machine's dot-product instruction, and what fills it
does the packing; a packed weight gets the order of its number type, the same for every kernel that reads it.

Before::

    copy(B[n:n + 64, k:k + 128], tile)
    gemm(a, tile, c, transpose_b=True)

After: the same text, and for ``tile`` the fact ``panels1[nk 64x128: 16 lanes, run 4, share 1]``, which
`apply_operand_layouts` turns into indices; for packed parameters the attribute ``packed_layouts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import UINT8, DType, children, find, of_views
from tilewright.ir import nodes as ir
from tilewright.layout.panels import PanelLayout
from tilewright.machine import Arch, OperandPlan, TileInstruction, first_match, has_tiles
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context, Fact

FACT: Fact[dict[ir.Buffer, PhysicalOperand]] = Fact("operand_layouts", dict)
"""What became of tiles and weights that lie in panels."""

FEW_ROWS = 8
"""Up to this many rows, converting an operand in registers costs less than storing it converted."""
LANE_BYTES = 4
"""Width of one column in a panel of codes: a 32-bit total each."""


@dataclass(frozen=True, slots=True)
class PhysicalOperand:
    """A tile or weight in panel order.

    Attributes
    ----------
    memory : one-dimensional; bytes for codes of fewer than eight bits, else elements.
    declare : statements that bring `memory` into being, for views of parameters.
    leading : extents of the dimensions before the matrix, in a workspace of several tiles.
    """

    memory: ir.Buffer
    layout: PanelLayout
    declare: tuple[ir.Statement, ...] = ()
    leading: tuple[ir.Extent, ...] = ()

    def tile(self, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Number of the tile that an element or region starts in, from its indices."""
        number: ir.Expr = ir.const(0)
        for index, extent in zip(indices, self.leading):
            number = number * extent + index
        return number

    def position(self, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Place of one element in the memory."""
        within = self.layout.position(*indices[len(self.leading) :])
        if not self.leading:
            return within
        return self.tile(indices) * self.layout.size + within


def physical_operand(region: ir.Region, context: Context) -> PhysicalOperand | None:
    """How `region`'s buffer is laid out, or None where its elements lie row by row."""
    found = context.facts[FACT]
    operand = found.get(region.buffer)
    if operand is None or region.buffer.scope != "global":
        return operand
    memory = replace(operand.memory)  # a view of its own for every place that declares one
    return PhysicalOperand(memory, operand.layout, (ir.Allocate(memory),), operand.leading)


def plan_operand_layouts(function: ir.Function, context: Context) -> ir.Function:
    """Choose panel layouts of packed parameters and of the right operands of gemms."""
    facts = context.facts[FACT]
    gemms = list(find(function.body, Gemm))
    packed: list[tuple[str, PanelLayout]] = []
    for param in function.params:
        if isinstance(param, ir.Buffer) and param.packed and param.rank == 2 and _is_static(param):
            layout = packed_layout(param, _transposed(param, gemms), context.arch)
            facts[param] = PhysicalOperand(_view(param, layout), layout)
            packed.append((param.name, layout))
    for tile, layout, dtype in _tiles(function, gemms):
        memory = ir.Buffer(tile.name, (layout.size,), dtype, tile.scope)
        facts[tile] = PhysicalOperand(memory, layout)
    if not packed:
        return function
    attributes = (*(a for a in function.attributes if a[0] != "packed_layouts"), ("packed_layouts", tuple(packed)))
    return replace(function, attributes=attributes)


def packed_layout(weight: ir.Buffer, transposed: bool, arch: Arch) -> PanelLayout:
    """The order of a packed weight: a function of its type, its shape and the machine only."""
    rows, columns = weight.static_shape
    n, k = (rows, columns) if transposed else (columns, rows)
    lanes, dtype = max(1, arch.vector_bytes // LANE_BYTES), weight.dtype
    together = max((i.words for i in arch.products(TileInstruction) if i.vector == dtype), default=1)
    if dtype.is_integer and dtype.bits <= 8:
        beside = min(side_by_side(arch), -(-n // lanes)) if dtype.is_packed else 1
        return PanelLayout(n, k, transposed, lanes, 4, dtype.per_byte, together, beside)
    if has_tiles(arch, dtype):
        return PanelLayout(n, k, transposed, lanes, LANE_BYTES // dtype.storage_bytes, together=together)
    plan = first_match(dtype, dtype, arch)
    run = plan.instruction.depth if plan is not None and plan.instruction.vector == dtype else 1
    return PanelLayout(n, k, transposed, lanes if dtype.bits <= 32 else max(1, lanes // 2), run)


def side_by_side(arch: Arch) -> int:
    """Panels of codes of fewer than eight bits that lie side by side: as many as one row of a product takes at once.

    In one piece Zen 5 reads codes out of its third-level cache a fifth faster than in six; only vectors of 64 bytes
    were measured.
    """
    return (6 if arch.l1_bytes >= 48 << 10 else 4) if arch.vector_bytes == 64 else 1


def _view(param: ir.Buffer, layout: PanelLayout) -> ir.Buffer:
    """The parameter's memory, in the order of the layout."""
    codes = param.dtype.is_packed
    size = layout.size // param.dtype.per_byte
    return ir.Buffer(f"{param.name}_panels", (size,), UINT8 if codes else param.dtype, "local", source=param)


def _is_static(buffer: ir.Buffer) -> bool:
    return all(isinstance(extent, int) for extent in buffer.shape)


def _transposed(param: ir.Buffer, gemms: list[Gemm]) -> bool:
    """Whether the weight is (n, k): as the gemm that reads it says, else yes."""
    return next((gemm.transpose_b for gemm in gemms if gemm.b.buffer is param), True)


def _tiles(function: ir.Function, gemms: list[Gemm]) -> Iterator[tuple[ir.Buffer, PanelLayout, DType]]:
    """Tiles that only gemms read, all in the same way, with the layout and the element type that suit them."""
    other_uses = _other_uses(function)
    wanted: dict[ir.Buffer, set[tuple[PanelLayout, DType] | None]] = {}
    for gemm in gemms:
        wanted.setdefault(gemm.b.buffer, set()).add(tile_layout(gemm))
    for buffer, layouts in wanted.items():
        found = next(iter(layouts))
        if len(layouts) == 1 and found is not None and buffer not in other_uses:
            yield buffer, *found


def tile_layout(gemm: Gemm) -> tuple[PanelLayout, DType] | None:
    """The panel layout for the right operand of one gemm, or None where it should stay as it is."""
    tile = gemm.b.buffer
    if (
        tile.scope not in ("shared", "fragment", "local")
        or tile.rank != 2
        or not gemm.b.is_whole
        or tile.source is not None
    ):
        return None
    if not isinstance(gemm.plan, OperandPlan) or tile.dtype.is_packed:
        return None
    instruction = gemm.plan.instruction
    if gemm.n % instruction.lanes or gemm.k % instruction.depth:
        return None
    stored = instruction.vector if tile.dtype.is_float and gemm.m > FEW_ROWS else tile.dtype
    if instruction.depth == 1 and not gemm.transpose_b and gemm.m <= FEW_ROWS:
        return None  # its rows are vectors of columns already
    if instruction.depth > 1 and instruction.vector.is_float and not tile.dtype.is_float:
        return None  # runs of integers become floats one by one
    return PanelLayout(gemm.n, gemm.k, gemm.transpose_b, instruction.lanes, instruction.depth), stored


def _other_uses(function: ir.Function) -> set[ir.Buffer]:
    """Buffers that something else than a gemm's b reads, or that are views or have views."""
    found = of_views(function.body)

    def visit(node: object) -> None:
        if isinstance(node, Gemm):
            found.update(region.buffer for region in node.effects().reads if region is not node.b)
            found.add(node.c.buffer)
        elif isinstance(node, ir.TileOperator):
            found.update(region.buffer for region in node.effects().reads)
        elif isinstance(node, (ir.Load, ir.Region)):
            found.add(node.buffer)
        for child in children(node):
            if isinstance(node, ir.TileOperator) and isinstance(child, ir.Region):
                for start in child.starts:
                    visit(start)
            else:
                visit(child)

    visit(function.body)
    return found
