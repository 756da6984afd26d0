"""Micro-kernels: a few rows by a few vectors of a product, kept in registers over a whole run of k.

A micro-kernel is written in the IR: register buffers, loads of vectors, broadcasts, unrolled loops and one
dot-product instruction.  What differs between formats is the right operand (`multiplicands`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Expr,
    Extent,
    Let,
    Load,
    Seq,
    Statement,
    Store,
    Var,
    binary,
    const,
)
from tilewright.machine.dot import MULTIPLY_ADD, DotInstruction, OperandPlan
from tilewright.targets.cpu.multiplicands import Left, Right
from tilewright.targets.cpu.register_tiles import RegisterTile
from tilewright.targets.cpu.vectors import loop


def each(tile: RegisterTile, body: Callable[[Expr, Expr], Sequence[Statement]]) -> list[Statement]:
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
    begin: Callable[[Expr, Expr], Expr]
    finish: Callable[[Expr, Expr, Expr], Sequence[Statement]]

    def statements(self, row: Expr, vector: Expr, first_load: Extent, stop_load: Extent) -> list[Statement]:
        """The tile at `row` and `vector`, summed over the loads from `first_load` up to `stop_load`."""
        instruction, tile = self.plan.instruction, self.tile
        lanes = instruction.lanes
        totals = Buffer("totals", (tile.rows * tile.vectors * lanes,), instruction.accumulator, "register")
        wide = instruction.accumulator.with_lanes(lanes)

        def place(i: Expr, j: Expr) -> Expr:
            return i * (tile.vectors * lanes) + j * lanes

        def clear(i: Expr, j: Expr) -> list[Statement]:
            return [Store(totals, (place(i, j),), self.begin(i, j))]

        def finish(i: Expr, j: Expr) -> Sequence[Statement]:
            return self.finish(i, j, Load(wide, totals, (place(i, j),)))

        return [
            Allocate(totals),
            *each(tile, clear),
            *loop("step", first_load, stop_load, lambda position: self._step(totals, place, row, vector, position)),
            *each(tile, finish),
        ]  # fmt: skip

    def _step(
        self, totals: Buffer, place: Callable[[Expr, Expr], Expr], row: Expr, vector: Expr, position: Expr
    ) -> list[Statement]:
        """One load of every vector of columns, and the products it feeds."""
        right, tile = self.right, self.tile
        loaded = Buffer("loaded", (tile.vectors * right.loaded.lanes,), right.loaded.scalar, "register")

        def fetch(j: Expr) -> list[Statement]:
            asking = right.ahead(vector + j, position, row)
            return [*asking, Store(loaded, (j * right.loaded.lanes,), right.load(vector + j, position))]

        statements: list[Statement] = [Allocate(loaded), *loop("j", 0, tile.vectors, fetch, "unroll")]
        first = position * right.step
        if right.number(Load(right.loaded, loaded, (const(0),)), const(0)) is not None:
            return statements + loop("part", 0, right.step, lambda part: self._products(
                totals, place, loaded, lambda value: _present(right.number(value, part)), row,
                first + part))  # fmt: skip
        for offset, operand in right.parts():
            statements += self._products(totals, place, loaded, operand, row, first + offset)
        return statements

    def _products(self, totals: Buffer, place: Callable[[Expr, Expr], Expr], loaded: Buffer,
        operand: Callable[[Expr], Expr],
                  row: Expr, k: Expr) -> list[Statement]:  # fmt: skip
        """One step of the instruction for the whole tile."""
        instruction, tile, right = self.plan.instruction, self.tile, self.right
        wide = instruction.accumulator.with_lanes(instruction.lanes)
        elements = instruction.vector.with_lanes(instruction.lanes * instruction.depth)
        vectors = Buffer("vectors", (tile.vectors * elements.lanes,), instruction.vector, "register")

        def unpack(j: Expr) -> list[Statement]:
            return [
                Store(vectors, (j * elements.lanes,), operand(Load(right.loaded, loaded, (j * right.loaded.lanes,))))
            ]

        def row_of(i: Expr) -> list[Statement]:
            broadcast = self.left.broadcast(instruction, row + i, k)
            shared = Var(broadcast.dtype, "shared")

            def product(j: Expr) -> list[Statement]:
                total = Load(wide, totals, (place(i, j),))
                value = multiply(instruction, total, Load(elements, vectors, (j * elements.lanes,)), shared)
                return [Store(totals, (place(i, j),), value)]

            return [Let(shared, broadcast), *loop("j", 0, tile.vectors, product, "unroll")]

        body = [Allocate(vectors), *loop("j", 0, tile.vectors, unpack, "unroll"),
                *loop("i", 0, tile.rows, lambda i: [Seq(tuple(row_of(i)))], "unroll")]  # fmt: skip
        return [Seq(tuple(body))]


def _present(value: Expr | None) -> Expr:
    assert value is not None
    return value


def multiply(instruction: DotInstruction, total: Expr, vector: Expr, broadcast: Expr) -> Expr:
    """``total + vector . broadcast`` by one instruction."""
    if instruction.function != MULTIPLY_ADD:
        return Call(total.dtype, instruction.function, (total, vector, broadcast))
    if total.dtype.is_float:
        return Call(total.dtype, "fma", (vector, broadcast, total))
    return binary("add", total, binary("mul", vector, broadcast))
