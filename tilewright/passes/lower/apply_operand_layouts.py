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
from tilewright.ir.dtypes import DType
from tilewright.ir.effects import root
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Expr,
    Function,
    Kernel,
    Load,
    Region,
    Seq,
    Store,
    cast,
    product,
)
from tilewright.ir.visitor import Rewritten
from tilewright.passes.context import Context
from tilewright.passes.scoped import PlaceRewriter
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, PhysicalOperand


def apply_operand_layouts(function: Function, context: Context) -> Function:
    """Replace logical indices of tiles in panel order by places in their memory."""
    tiles = {buffer: operand for buffer, operand in context.facts[FACT].items() if buffer.scope != "global"}
    return function.with_body(_Tiles(tiles)(function.body)) if tiles else function


def apply_packed_layouts(function: Function, context: Context) -> Function:
    """The same for single elements of packed parameters, once their guards are written."""
    weights = {buffer: operand for buffer, operand in context.facts[FACT].items() if buffer.scope == "global"}
    return function.with_body(_Weights(weights)(function.body)) if weights else function


class _Tiles(PlaceRewriter):
    def __init__(self, operands: dict[Buffer, PhysicalOperand]) -> None:
        self.operands = operands

    def map_buffer(self, buffer: Buffer) -> Buffer:
        operand = self.operands.get(buffer)
        return buffer if operand is None else operand.memory

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        operand = self.operands.get(buffer)
        return (buffer, indices) if operand is None else (operand.memory, (operand.layout.position(*indices),))

    def visit_Load(self, load: Load) -> Expr:
        self.check_single(load.buffer, load.dtype)
        made: Expr = self._moved(load)
        return made

    def visit_Store(self, store: Store) -> Rewritten:
        self.check_single(store.buffer, store.value.dtype)
        made: Store = self._moved(store)
        if store.buffer not in self.operands:
            return made
        return replace(made, value=cast(made.value, made.buffer.dtype))  # which has every value of the tile's type

    def check_single(self, buffer: Buffer, dtype: DType) -> None:
        if buffer in self.operands and dtype.lanes > 1:
            raise InternalError(f"{buffer.name} is in panel order, but is touched by vectors of consecutive elements")

    def visit_Region(self, region: Region) -> Region:
        if region.buffer in self.operands:
            raise InternalError(f"{region.buffer.name} is in panel order, but is used as a region")
        return self.generic(region)


class _Weights(PlaceRewriter):
    """Accesses of single elements go through one flat view, declared where the kernel begins."""

    def __init__(self, operands: dict[Buffer, PhysicalOperand]) -> None:
        self.operands = operands
        self.used: dict[Buffer, Buffer] = {}

    def visit_Kernel(self, kernel: Kernel) -> Rewritten:
        self.used = {}
        body = self(kernel.body)
        if not self.used:
            return kernel.with_body(body)
        views = tuple(Allocate(view) for view in self.used.values())
        return replace(kernel, body=Seq((*views, *body.statements), span=body.span))

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        operand = self.operands.get(buffer)
        if operand is None:
            return buffer, indices
        size = operand.layout.size * product(operand.leading)
        flat = Buffer(f"{buffer.name}_elements", (size,), buffer.dtype, "register", source=root(buffer))
        return self.used.setdefault(buffer, flat), (operand.position(indices),)

    def visit_Region(self, region: Region) -> Region:
        return self.generic(region)
