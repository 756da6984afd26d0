"""Gives the elements of operands in panel order (`plan_operand_layouts`) their place in memory.

Before (``tile`` is (n, k), in panels of 16 lanes)::

    tile[n, k] = B[n, k]

After::

    tile[(n // 16) * 64 + k // 4 * 64 + n % 16 * 4 + k % 4] = B[n, k]

Micro-kernels already speak of the memory itself; this pass is for everything else that touches an element.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import InternalError
from tilewright.ir import DType, Rewritten, root
from tilewright.ir import nodes as ir
from tilewright.passes import Context, PlaceRewriter
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, PhysicalOperand


def apply_operand_layouts(function: ir.Function, context: Context) -> ir.Function:
    """Replace logical indices of tiles in panel order by places in their memory."""
    tiles = {buffer: operand for buffer, operand in context.facts[FACT].items() if buffer.scope != "global"}
    return function.with_body(_Tiles(tiles)(function.body)) if tiles else function


def apply_packed_layouts(function: ir.Function, context: Context) -> ir.Function:
    """The same for single elements of packed parameters, once their guards are written."""
    weights = {buffer: operand for buffer, operand in context.facts[FACT].items() if buffer.scope == "global"}
    return function.with_body(_Weights(weights)(function.body)) if weights else function


class _Tiles(PlaceRewriter):
    def __init__(self, operands: dict[ir.Buffer, PhysicalOperand]) -> None:
        self.operands = operands

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        operand = self.operands.get(buffer)
        return buffer if operand is None else operand.memory

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        operand = self.operands.get(buffer)
        return (buffer, indices) if operand is None else (operand.memory, (operand.layout.position(*indices),))

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        self.check_single(load.buffer, load.dtype)
        made: ir.Expr = self._moved(load)
        return made

    def visit_Store(self, store: ir.Store) -> Rewritten:
        self.check_single(store.buffer, store.value.dtype)
        made: ir.Store = self._moved(store)
        if store.buffer not in self.operands:
            return made
        return replace(made, value=ir.cast(made.value, made.buffer.dtype))  # which has every value of the tile's type

    def check_single(self, buffer: ir.Buffer, dtype: DType) -> None:
        if buffer in self.operands and dtype.lanes > 1:
            raise InternalError(f"{buffer.name} is in panel order, but is touched by vectors of consecutive elements")

    def visit_Region(self, region: ir.Region) -> ir.Region:
        if region.buffer in self.operands:
            raise InternalError(f"{region.buffer.name} is in panel order, but is used as a region")
        return self.generic(region)


class _Weights(PlaceRewriter):
    """Accesses of single elements go through one flat view, declared where the kernel begins."""

    def __init__(self, operands: dict[ir.Buffer, PhysicalOperand]) -> None:
        self.operands = operands
        self.used: dict[ir.Buffer, ir.Buffer] = {}

    def visit_Kernel(self, kernel: ir.Kernel) -> Rewritten:
        self.used = {}
        body = self(kernel.body)
        if not self.used:
            return kernel.with_body(body)
        views = tuple(ir.Allocate(view) for view in self.used.values())
        return replace(kernel, body=ir.Seq((*views, *body.statements), span=body.span))

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        operand = self.operands.get(buffer)
        if operand is None:
            return buffer, indices
        size = operand.layout.size * ir.product(operand.leading)
        flat = ir.Buffer(f"{buffer.name}_elements", (size,), buffer.dtype, "register", source=root(buffer))
        return self.used.setdefault(buffer, flat), (operand.position(indices),)

    def visit_Region(self, region: ir.Region) -> ir.Region:
        return self.generic(region)
