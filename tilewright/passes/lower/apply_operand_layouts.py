"""Gives the elements of operands in panel order (`plan_operand_layouts`) their place in memory.

Before (``tile`` is (n, k), in panels of 16 lanes)::

    tile[n, k] = B[n, k]

After::

    tile[(n // 16) * 64 + k // 4 * 64 + n % 16 * 4 + k % 4] = B[n, k]

Micro-kernels already speak of the memory itself; this pass is for everything else that touches an element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.errors import InternalError
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
    Statement,
    Store,
    cast,
    product,
)
from tilewright.ir.visitor import Rewriter, Rewritten
from tilewright.passes.context import Context
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, PhysicalOperand


def apply_operand_layouts(function: Function, context: Context) -> Function:
    """Replace logical indices of tiles in panel order by places in their memory."""
    tiles = {buffer: operand for buffer, operand in _operands(context).items() if buffer.scope != "global"}
    if not tiles:
        return function
    return function.with_body(_Tiles(tiles)(function.body))


def apply_packed_layouts(function: Function, context: Context) -> Function:
    """The same for single elements of packed parameters, once their guards are written."""
    weights = {buffer: operand for buffer, operand in _operands(context).items() if buffer.scope == "global"}
    if not weights:
        return function
    rewriter = _Weights(weights)
    return function.with_body(rewriter(function.body))


def _operands(context: Context) -> dict[Buffer, PhysicalOperand]:
    return context.facts[FACT]


class _Tiles(Rewriter):
    def __init__(self, operands: dict[Buffer, PhysicalOperand]) -> None:
        self.operands = operands

    def map_buffer(self, buffer: Buffer) -> Buffer:
        operand = self.operands.get(buffer)
        return buffer if operand is None else operand.memory

    def visit_Allocate(self, allocate: Allocate) -> Statement:
        operand = self.operands.get(allocate.buffer)
        return allocate if operand is None else replace(allocate, buffer=operand.memory)

    def visit_Load(self, load: Load) -> Expr:
        operand = self.operands.get(load.buffer)
        made = self.generic(load)
        if operand is None:
            return made
        if load.dtype.lanes > 1:
            raise InternalError(
                f"{load.buffer.name} is in panel order, but is read as a vector of consecutive elements"
            )
        return replace(made, buffer=operand.memory, indices=(operand.layout.position(*made.indices),))

    def visit_Store(self, store: Store) -> Rewritten:
        operand = self.operands.get(store.buffer)
        made = self.generic(store)
        if operand is None:
            return made
        if store.value.dtype.lanes > 1:
            raise InternalError(
                f"{store.buffer.name} is in panel order, but is written as a vector of consecutive elements"
            )
        value = cast(made.value, operand.memory.dtype)  # every value of the tile's type is one of the memory's
        return replace(made, buffer=operand.memory, indices=(operand.layout.position(*made.indices),), value=value)

    def visit_Region(self, region: Region) -> Region:
        if region.buffer in self.operands:
            raise InternalError(f"{region.buffer.name} is in panel order, but is used as a region")
        return self.generic(region)


class _Weights(Rewriter):
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

    def visit_Load(self, load: Load) -> Expr:
        return self.placed(load)

    def visit_Store(self, store: Store) -> Rewritten:
        return self.placed(store)

    def placed(self, access: Any) -> Any:
        """A load or store of the element's place in the flat view."""
        operand = self.operands.get(access.buffer)
        made = self.generic(access)
        if operand is None:
            return made
        if access.buffer not in self.used:
            weight = access.buffer
            size = operand.layout.size * product(operand.leading)
            self.used[weight] = Buffer(
                f"{weight.name}_elements", (size,), weight.dtype, "register", source=root(weight)
            )
        return replace(made, buffer=self.used[access.buffer], indices=(operand.position(made.indices),))
