"""Products on warps that each hold whole instruction tiles: operands from shared memory to registers, and the
instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tilewright.errors import InternalError
from tilewright.ir import INT32, perform
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, Layout
from tilewright.machine.arch import Arch
from tilewright.ops import GemmPlan, Product, zero
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

    region: ir.Region
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
    part: ir.Buffer
    step: ir.Expr

    @property
    def fragment(self) -> Layout:
        """Which lane holds which element of an instruction's tile."""
        instruction = self.product.plan.instruction
        found = instruction.a_fragment if self.operand.is_left else instruction.b_fragment
        assert found is not None
        return found

    @property
    def lane(self) -> ir.Expr:
        """The executing thread's place among those that multiply together."""
        return self.product.block.thread % self.product.plan.instruction.threads

    def register(self, number: ir.Expr) -> ir.Expr:
        """Place in the registers of one of this step's."""
        return self.product.register_set(self.operand, self.step) + number


OPERAND_LOADS: dict[str, Callable[[OperandLoad], list[ir.Statement] | None]] = {}
"""Ways to load operands, by the copy instruction that they take; None where a way does not fit.

A machine's table of copy instructions says which it has, and in which order they are tried.
"""


@dataclass(slots=True)
class WarpProduct(ABC, Generic[G]):
    """A product on warps; `statements` is its thread code."""

    gemm: G
    plan: GemmPlan
    block: BlockView
    arch: Arch

    @classmethod
    def lower(cls, gemm: G, context: Context) -> ir.Statement | None:
        """The thread code of a product that has a plan whose instructions are waited for at once."""
        if not isinstance(gemm.plan, GemmPlan) or gemm.plan.instruction.asynchronous:
            return None
        return cls(gemm, gemm.plan, context.facts[BLOCK], context.arch).statements()

    @abstractmethod
    def statements(self) -> ir.Seq:
        """The loads of both operands and the products, over all steps of k."""

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 1

    def register_set(self, operand: Operand, step: ir.Expr) -> ir.Expr:
        """The first register of the set for a step of k."""
        number = step % self._sets
        return self.block.simplify(number * (operand.tiles * operand.registers))

    def _part(self, operand: Operand, name: str) -> ir.Buffer:
        size = self._sets * operand.tiles * operand.registers
        return ir.Buffer(f"{operand.region.buffer.name}_{name}", (size,), operand.region.dtype, "register")

    def _clear(self) -> list[ir.Statement]:
        """Zeros in the accumulator, where the gemm drops what is there."""
        if self.gemm.clear is False:
            return []
        accumulator = self.block.registers(self.gemm.c.buffer)
        index = ir.Var(INT32, "i")
        fill = ir.Store(accumulator, (index,), zero(accumulator.dtype), span=self.gemm.span)
        loop = ir.counted(index, accumulator.size, ir.seq(fill), "unroll", span=self.gemm.span)
        return [loop if self.gemm.clear is True else ir.If(self.gemm.clear, ir.seq(loop), span=self.gemm.span)]

    def _step_by_step(
        self, left: Operand, right: Operand, a: ir.Buffer, b: ir.Buffer, kind: str = "unroll", *behind: ir.Statement
    ) -> ir.Seq:
        """The operands of one step of k at a time, from shared memory to registers, and their products."""
        step = ir.Var(INT32, "k_step")
        self.block.analyzer.bind_extent(step, self.plan.tiles_k)
        parts = [(operand, part) for operand, part in ((left, a), (right, b)) if not operand.in_registers]
        loads = [statement for operand, part in parts for statement in self._loads(operand, part, step)]
        body = ir.seq(loads, self._multiply(left, right, a, b, step), behind)
        loop = ir.counted(step, self.plan.tiles_k, body, kind, span=self.gemm.span)
        return ir.seq(self._clear(), [ir.Allocate(part, span=self.gemm.span) for _, part in parts], loop)

    # Operands ------------------------------------------------------------------------------------

    def _operands(self, transpose_a: bool) -> tuple[Operand, Operand]:
        """The left and the right one; of a sparse product the left one is half as deep."""
        gemm, plan, instruction = self.gemm, self.plan, self.plan.instruction
        assert instruction.a_fragment is not None and instruction.b_fragment is not None
        sizes = [one.extent(REGISTER) for one in (instruction.a_fragment, instruction.b_fragment)]
        left = Operand(gemm.a, True, transpose_a, plan.tiles_m, sizes[0], instruction.kept)
        return left, Operand(gemm.b, False, not gemm.transpose_b, plan.tiles_n, sizes[1], instruction.k)

    def _loads(self, operand: Operand, part: ir.Buffer, step: ir.Expr) -> list[ir.Statement]:
        """What brings an operand's registers for a step of k from shared memory: the machine's first way that fits."""
        for instruction in self.arch.copy_instructions:
            way = OPERAND_LOADS.get(instruction.function)
            if way is not None:
                made = way(OperandLoad(self, operand, part, step))
                if made is not None:
                    return made
        raise InternalError(f"{self.arch.name} cannot load {operand.region.buffer.name}", span=self.gemm.span)

    def element(self, operand: Operand, tile: ir.Expr, across: ir.Expr, step: ir.Expr, deep: ir.Expr) -> ir.Region:
        """The shared element `across` rows into a tile and `deep` into a step of k, for this warp."""
        plan, instruction = self.plan, self.plan.instruction
        warp = self.block.thread // instruction.threads
        if operand.is_left:
            group = warp % plan.warps_m
            size, tiles = instruction.m, plan.tiles_m
        else:
            group = warp // plan.warps_m
            if plan.copies > 1:
                group = group % plan.warps_n
            size, tiles = instruction.n, plan.tiles_n
        first = (group * tiles + tile) * size
        outer = first + across
        inner = step * operand.k + deep
        pair = (inner, outer) if operand.transposed else (outer, inner)
        extra = operand.region.buffer.rank - 2
        return self.block.shared(operand.region, [ir.const(0)] * extra + list(pair))

    # Products ------------------------------------------------------------------------------------

    def _multiply(self, left: Operand, right: Operand, a: ir.Buffer, b: ir.Buffer, step: ir.Expr) -> ir.Statement:
        plan, accumulator = self.plan, self.block.registers(self.gemm.c.buffer)
        row, column = ir.Var(INT32, "m_tile"), ir.Var(INT32, "n_tile")
        size = plan.instruction.d_fragment.extent(REGISTER)
        place = (row * plan.tiles_n + column) * size
        beside, more = self._beside(row, step)
        arguments: tuple[ir.Expr | ir.Region, ...] = (
            ir.Region(accumulator, (place,), (size,)),
            self._fragment(left, a, row, step),
            self._fragment(right, b, column, step),
            *more,
        )
        product = perform(plan.instruction.function, *arguments, span=self.gemm.span)
        inner = ir.counted(column, plan.tiles_n, ir.seq(product), "unroll", span=self.gemm.span)
        return ir.counted(row, plan.tiles_m, ir.seq(beside, inner), "unroll", span=self.gemm.span)

    def _beside(self, row: ir.Var, step: ir.Expr) -> tuple[list[ir.Statement], tuple[ir.Expr, ...]]:
        """What the instruction takes besides, for a tile of rows, and what is loaded for it."""
        return [], ()

    def _fragment(self, operand: Operand, part: ir.Buffer, tile: ir.Var, step: ir.Expr) -> ir.Region:
        """The registers of one tile at one step of k."""
        if not operand.in_registers:
            within = tile * operand.registers
            return ir.Region(part, (self.register_set(operand, step) + within,), (operand.registers,))
        number = tile * self.plan.tiles_k + step
        buffer = self.block.registers(operand.region.buffer)
        return ir.Region(buffer, (ir.binary("mul", number, ir.const(operand.registers)),), (operand.registers,))
