"""Products on warps that each hold whole instruction tiles: operands from shared memory to registers, and the
instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tilewright.errors import InternalError
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import (
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Region,
    Seq,
    Statement,
    Store,
    Var,
    binary,
    const,
    index_binary,
    seq,
)
from tilewright.layout.digits import REGISTER
from tilewright.layout.layout import Layout
from tilewright.machine.arch import Arch
from tilewright.ops.base import zero
from tilewright.ops.gemm_plan import GemmPlan
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView

G = TypeVar("G", bound=Product)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand as the warp reads it, step by step of k.

    Attributes
    ----------
    region : in shared memory, or a whole fragment.
    transposed : whether k is the first dimension of a, or the second of b.
    tiles : instruction tiles along m or n.
    registers : elements of one tile's fragment.
    """

    region: Region
    is_left: bool
    transposed: bool
    tiles: int
    registers: int
    k: int

    @property
    def in_registers(self) -> bool:
        return self.region.buffer.scope == "fragment"


@dataclass(frozen=True, slots=True)
class OperandLoad:
    """One step of k of an operand on its way into registers.

    Attributes
    ----------
    product : knows where the elements lie, and what the executing thread's place is.
    part : the registers.
    """

    product: WarpProduct[Any]
    operand: Operand
    part: Buffer
    step: Expr

    @property
    def fragment(self) -> Layout:
        """Which lane holds which element of an instruction's tile."""
        instruction = self.product.plan.instruction
        found = instruction.a_fragment if self.operand.is_left else instruction.b_fragment
        assert found is not None
        return found

    @property
    def lane(self) -> Expr:
        """The executing thread's place among those that multiply together."""
        return index_binary("floormod", self.product.block.thread, self.product.plan.instruction.threads)

    def register(self, number: Expr) -> Expr:
        """Place in the registers of one of this step's."""
        return index_binary("add", self.product.register_set(self.operand, self.step), number)


OPERAND_LOADS: dict[str, Callable[[OperandLoad], list[Statement] | None]] = {}
"""Ways to load operands, by the copy instruction that they take; None where a way does not fit.

A machine's table of copy instructions says which it has, and in which order they are tried.
"""


@dataclass(slots=True)
class WarpProduct(Generic[G]):
    """A product on warps; `statements` is its thread code."""

    gemm: G
    plan: GemmPlan
    block: BlockView
    arch: Arch

    @classmethod
    def lower(cls, gemm: G, context: Context) -> Statement | None:
        """The thread code of a product that has a plan whose instructions are waited for at once."""
        if gemm.plan is None or gemm.plan.instruction.asynchronous:
            return None
        return cls(gemm, gemm.plan, context.facts[BLOCK], context.arch).statements()

    def statements(self) -> Seq:
        raise NotImplementedError

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 1

    def register_set(self, operand: Operand, step: Expr) -> Expr:
        """The first register of the set for a step of k."""
        number = index_binary("floormod", step, self._sets)
        return self.block.simplify(index_binary("mul", number, operand.tiles * operand.registers))

    def _part(self, operand: Operand, name: str) -> Buffer:
        size = self._sets * operand.tiles * operand.registers
        return Buffer(f"{operand.region.buffer.name}_{name}", (size,), operand.region.dtype, "register")

    def _clear(self) -> list[Statement]:
        """Zeros in the accumulator, where the gemm drops what is there."""
        if self.gemm.clear is False:
            return []
        accumulator = self.block.registers(self.gemm.c.buffer)
        index = Var(INT32, "i")
        fill = Store(accumulator, (index,), zero(accumulator.dtype), span=self.gemm.span)
        loop = For(index, const(0), const(accumulator.size), const(1), seq(fill), "unroll", span=self.gemm.span)
        return [loop if self.gemm.clear is True else If(self.gemm.clear, seq(loop), span=self.gemm.span)]

    # Operands ------------------------------------------------------------------------------------

    def _loads(self, operand: Operand, part: Buffer, step: Expr) -> list[Statement]:
        """What brings an operand's registers for a step of k from shared memory: the machine's first way that fits."""
        for instruction in self.arch.copy_instructions:
            way = OPERAND_LOADS.get(instruction.function)
            if way is not None:
                made = way(OperandLoad(self, operand, part, step))
                if made is not None:
                    return made
        raise InternalError(f"{self.arch.name} cannot load {operand.region.buffer.name}", span=self.gemm.span)

    def element(self, operand: Operand, tile: Expr, across: Expr, step: Expr, deep: Expr) -> Region:
        """The shared element `across` rows into a tile and `deep` into a step of k, for this warp."""
        plan, instruction = self.plan, self.plan.instruction
        warp = index_binary("floordiv", self.block.thread, instruction.threads)
        if operand.is_left:
            group = index_binary("floormod", warp, plan.warps_m)
            size, tiles = instruction.m, plan.tiles_m
        else:
            group = index_binary("floordiv", warp, plan.warps_m)
            if plan.copies > 1:
                group = index_binary("floormod", group, plan.warps_n)
            size, tiles = instruction.n, plan.tiles_n
        first = index_binary("mul", index_binary("add", index_binary("mul", group, tiles), tile), size)
        outer = index_binary("add", first, across)
        inner = index_binary("add", index_binary("mul", step, operand.k), deep)
        pair = (inner, outer) if operand.transposed else (outer, inner)
        extra = operand.region.buffer.rank - 2
        return self.block.shared(operand.region, [const(0)] * extra + list(pair))

    # Products ------------------------------------------------------------------------------------

    def _multiply(self, left: Operand, right: Operand, a: Buffer, b: Buffer, step: Expr) -> Statement:
        plan, accumulator = self.plan, self.block.registers(self.gemm.c.buffer)
        row, column = Var(INT32, "m_tile"), Var(INT32, "n_tile")
        size = plan.instruction.d_fragment.extent(REGISTER)
        place = index_binary("mul", index_binary("add", index_binary("mul", row, plan.tiles_n), column), size)
        beside, more = self._beside(row, step)
        arguments: tuple[Expr | Region, ...] = (
            Region(accumulator, (place,), (size,)),
            self._fragment(left, a, row, step),
            self._fragment(right, b, column, step),
            *more,
        )
        call = Evaluate(Call(BOOL, plan.instruction.function, arguments), span=self.gemm.span)
        inner = For(column, const(0), const(plan.tiles_n), const(1), seq(call), "unroll", span=self.gemm.span)
        return For(row, const(0), const(plan.tiles_m), const(1), seq(beside, inner), "unroll", span=self.gemm.span)

    def _beside(self, row: Var, step: Expr) -> tuple[list[Statement], tuple[Expr, ...]]:
        """What the instruction takes besides, for a tile of rows, and what is loaded for it."""
        return [], ()

    def _fragment(self, operand: Operand, part: Buffer, tile: Var, step: Expr) -> Region:
        """The registers of one tile at one step of k."""
        if not operand.in_registers:
            within = index_binary("mul", tile, operand.registers)
            return Region(part, (index_binary("add", self.register_set(operand, step), within),), (operand.registers,))
        number = index_binary("add", index_binary("mul", tile, self.plan.tiles_k), step)
        buffer = self.block.registers(operand.region.buffer)
        return Region(buffer, (binary("mul", number, const(operand.registers)),), (operand.registers,))
