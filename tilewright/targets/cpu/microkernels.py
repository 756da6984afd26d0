"""Micro-kernels: a few rows by a few vectors of a product, kept in registers over a whole run of k.

A micro-kernel is written in the IR: register buffers, loads of vectors, broadcasts, unrolled loops and one
dot-product instruction.  What differs between formats is the right operand (`multiplicands`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir import nodes as ir
from tilewright.machine.dot import MULTIPLY_ADD, DotInstruction, OperandPlan
from tilewright.targets.cpu.multiplicands import Left, Right
from tilewright.targets.cpu.register_tiles import RegisterTile
from tilewright.targets.cpu.vectors import loop


def each(tile: RegisterTile, body: Callable[[ir.Expr, ir.Expr], Sequence[ir.Statement]]) -> list[ir.Statement]:
    """`body` for every row and vector of a tile, unrolled."""
    return loop("i", 0, tile.rows, lambda i: loop("j", 0, tile.vectors, lambda j: body(i, j), "unroll"), "unroll")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """One register tile of a product.

    Attributes
    ----------
    begin : what the total of one vector begins with, given its row and its vector within the tile.
    finish : statements that take that total, given the same and the total.
    """

    plan: OperandPlan
    left: Left
    right: Right
    tile: RegisterTile
    begin: Callable[[ir.Expr, ir.Expr], ir.Expr]
    finish: Callable[[ir.Expr, ir.Expr, ir.Expr], Sequence[ir.Statement]]

    def statements(
        self, row: ir.Expr, vector: ir.Expr, first_load: ir.Extent, stop_load: ir.Extent
    ) -> list[ir.Statement]:
        """The tile at `row` and `vector`, summed over the loads from `first_load` up to `stop_load`."""
        instruction, tile = self.plan.instruction, self.tile
        lanes = instruction.lanes
        totals = ir.Buffer("totals", (tile.rows * tile.vectors * lanes,), instruction.accumulator, "register")
        wide = instruction.accumulator.with_lanes(lanes)

        def place(i: ir.Expr, j: ir.Expr) -> ir.Expr:
            return i * (tile.vectors * lanes) + j * lanes

        def clear(i: ir.Expr, j: ir.Expr) -> list[ir.Statement]:
            return [ir.Store(totals, (place(i, j),), self.begin(i, j))]

        def finish(i: ir.Expr, j: ir.Expr) -> Sequence[ir.Statement]:
            return self.finish(i, j, ir.Load(wide, totals, (place(i, j),)))

        return [
            ir.Allocate(totals),
            *each(tile, clear),
            *loop("step", first_load, stop_load, lambda position: self._step(totals, place, row, vector, position)),
            *each(tile, finish),
        ]  # fmt: skip

    def _step(
        self,
        totals: ir.Buffer,
        place: Callable[[ir.Expr, ir.Expr], ir.Expr],
        row: ir.Expr,
        vector: ir.Expr,
        position: ir.Expr,
    ) -> list[ir.Statement]:
        """One load of every vector of columns, and the products it feeds."""
        right, tile = self.right, self.tile
        loaded = ir.Buffer("loaded", (tile.vectors * right.loaded.lanes,), right.loaded.scalar, "register")

        def fetch(j: ir.Expr) -> list[ir.Statement]:
            prefetches = right.ahead(vector + j, position, row)
            return [*prefetches, ir.Store(loaded, (j * right.loaded.lanes,), right.load(vector + j, position))]

        statements: list[ir.Statement] = [ir.Allocate(loaded), *loop("j", 0, tile.vectors, fetch, "unroll")]
        first = position * right.step
        if right.number(ir.Load(right.loaded, loaded, (ir.const(0),)), ir.const(0)) is not None:

            def of_part(part: ir.Expr) -> list[ir.Statement]:
                at = first + part
                return self._products(totals, place, loaded, lambda one: _present(right.number(one, part)), row, at)

            return statements + loop("part", 0, right.step, of_part)
        for offset, operand in right.parts():
            statements += self._products(totals, place, loaded, operand, row, first + offset)
        return statements

    def _products(
        self,
        totals: ir.Buffer,
        place: Callable[[ir.Expr, ir.Expr], ir.Expr],
        loaded: ir.Buffer,
        operand: Callable[[ir.Expr], ir.Expr],
        row: ir.Expr,
        k: ir.Expr,
    ) -> list[ir.Statement]:
        """One step of the instruction for the whole tile."""
        instruction, tile, right = self.plan.instruction, self.tile, self.right
        wide = instruction.accumulator.with_lanes(instruction.lanes)
        elements = instruction.vector.with_lanes(instruction.lanes * instruction.depth)
        vectors = ir.Buffer("vectors", (tile.vectors * elements.lanes,), instruction.vector, "register")

        def unpack(j: ir.Expr) -> list[ir.Statement]:
            return [
                ir.Store(
                    vectors, (j * elements.lanes,), operand(ir.Load(right.loaded, loaded, (j * right.loaded.lanes,)))
                )
            ]

        def row_of(i: ir.Expr) -> list[ir.Statement]:
            broadcast = self.left.broadcast(instruction, row + i, k)
            shared = ir.Var(broadcast.dtype, "shared")

            def product(j: ir.Expr) -> list[ir.Statement]:
                total = ir.Load(wide, totals, (place(i, j),))
                value = multiply(instruction, total, ir.Load(elements, vectors, (j * elements.lanes,)), shared)
                return [ir.Store(totals, (place(i, j),), value)]

            return [ir.Let(shared, broadcast), *loop("j", 0, tile.vectors, product, "unroll")]

        body = [ir.Allocate(vectors), *loop("j", 0, tile.vectors, unpack, "unroll"),
                *loop("i", 0, tile.rows, lambda i: [ir.Seq(tuple(row_of(i)))], "unroll")]  # fmt: skip
        return [ir.Seq(tuple(body))]


def _present(value: ir.Expr | None) -> ir.Expr:
    assert value is not None
    return value


def multiply(instruction: DotInstruction, total: ir.Expr, vector: ir.Expr, broadcast: ir.Expr) -> ir.Expr:
    """``total + vector . broadcast`` by one instruction."""
    if instruction.function != MULTIPLY_ADD:
        return ir.Call(total.dtype, instruction.function, (total, vector, broadcast))
    if total.dtype.is_float:
        return ir.Call(total.dtype, "fma", (vector, broadcast, total))
    return ir.binary("add", total, ir.binary("mul", vector, broadcast))
