"""Products on warps that each hold whole instruction tiles: operands from shared memory to registers, and the instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import (
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Load,
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
from tilewright.layout.layout import Layout
from tilewright.ops.base import zero
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.gemms.gemm_ways import FACT, GemmPlan
from tilewright.targets.cuda.warpgroup_gemm import lower_warpgroup_gemm

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


@dataclass(slots=True)
class WarpProduct(Generic[G]):
    """A product on warps; `statements` is its thread code."""

    gemm: G
    plan: GemmPlan
    block: BlockView

    @classmethod
    def lower(cls, gemm: G, context: Context) -> Statement | None:
        """The thread code of a product that has a plan; warpgroups have theirs elsewhere."""
        plan: GemmPlan | None = context.facts.get(FACT, {}).get(gemm)
        if plan is None:
            return None
        if plan.instruction.asynchronous:
            return lower_warpgroup_gemm(gemm, plan, context)
        return cls(gemm, plan, context.facts[BLOCK]).statements()

    def statements(self) -> Seq:
        raise NotImplementedError

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 1

    def _set(self, operand: Operand, step: Expr) -> Expr:
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
        if part.dtype.bits == 16 or (_k_is_last(operand) and part.dtype.bits < 64):
            return self._matrix_loads(operand, part, step)
        return [self._element_loads(operand, part, step)]

    def _matrix_loads(self, operand: Operand, part: Buffer, step: Expr) -> list[Statement]:
        """ldmatrix: each register of the fragment is an 8 x 8 matrix of 16-bit units, up to four at once."""
        words = operand.registers * part.dtype.bits // 32
        at_once = 4 // words if operand.tiles % (4 // words) == 0 else 1
        tile = Var(INT32, "tile")
        count = operand.tiles // at_once
        self.block.bind(tile, count)
        matrices = words * at_once
        address = self._row_address(operand, part, step, tile, at_once, words)
        within = index_binary("mul", tile, at_once * operand.registers)
        first = index_binary("add", self._set(operand, step), within)
        trans = "_trans" if not _k_is_last(operand) else ""
        call = Call(
            BOOL, f"ldmatrix{trans}", (Region(part, (first,), (operand.registers * at_once,)), address, const(matrices))
        )
        body = seq(Evaluate(call, span=self.gemm.span))
        return [For(tile, const(0), const(count), const(1), body, "unroll", span=self.gemm.span)]

    def _row_address(self, operand: Operand, part: Buffer, step: Expr, tile: Var, at_once: int, words: int) -> Region:
        """Where the row lies that this lane names: of matrix ``lane // 8``, row ``lane % 8``."""
        lane = index_binary("floormod", self.block.thread, 32)
        matrix, row = index_binary("floordiv", lane, 8), index_binary("floormod", lane, 8)
        if words * at_once < 4:
            matrix = index_binary("floormod", matrix, words * at_once)
        which = index_binary("floordiv", matrix, words)  # tile within this load
        word = index_binary("floormod", matrix, words)
        unit = 16 // part.dtype.bits * 8 if part.dtype.bits <= 16 else 4  # elements of k in a row of 16 bytes
        number = index_binary("add", index_binary("mul", tile, at_once), which)
        if operand.is_left:
            # Words 0 and 1 are the upper and lower eight rows, 2 and 3 the same of the second half of k.
            across = index_binary("mul", index_binary("floormod", word, 2), 8)
            depth = index_binary("floordiv", word, 2)
        else:
            across, depth = const(0), word
        if _k_is_last(operand):
            across = index_binary("add", across, row)
            deep = index_binary("mul", depth, unit)
        else:
            # A transposed matrix is read along its rows, which here run along m or n.
            deep = index_binary("add", index_binary("mul", depth, 8), row)
        return self._element(operand, number, across, step, deep)

    def _element(self, operand: Operand, tile: Expr, across: Expr, step: Expr, deep: Expr) -> Region:
        """The shared element `across` rows into a tile and `deep` into a step of k, for this warp."""
        warp = index_binary("floordiv", self.block.thread, 32)
        plan, instruction = self.plan, self.plan.instruction
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
        pair = (inner, outer) if _k_is_first(operand) else (outer, inner)
        extra = operand.region.buffer.rank - 2
        offsets = [const(0)] * extra + list(pair)
        return self.block.shared(operand.region, offsets)

    def _element_loads(self, operand: Operand, part: Buffer, step: Expr) -> Statement:
        """Element by element, where no matrix load fits the type and order."""
        instruction = self.plan.instruction
        fragment = instruction.a_fragment if operand.is_left else instruction.b_fragment
        assert fragment is not None
        layout = Layout.from_digits(fragment.shape, fragment.digits)
        tile, register = Var(INT32, "tile"), Var(INT32, "r")
        self.block.bind(tile, operand.tiles)
        self.block.bind(register, operand.registers)
        lane = index_binary("floormod", self.block.thread, 32)
        places = {"thread": lane, "register": register}
        row, column = layout.coordinate_expressions(**{place: places[place] for place in layout.places})
        across, deep = (row, column) if operand.is_left else (column, row)
        source = self._element(operand, tile, across, step, deep)
        within = index_binary("add", index_binary("mul", tile, operand.registers), register)
        where = index_binary("add", self._set(operand, step), within)
        store = Store(part, (where,), Load(part.dtype, source.buffer, source.starts), span=self.gemm.span)
        inner = For(register, const(0), const(operand.registers), const(1), seq(store), "unroll", span=self.gemm.span)
        return For(tile, const(0), const(operand.tiles), const(1), seq(inner), "unroll", span=self.gemm.span)

    # Products ------------------------------------------------------------------------------------

    def _multiply(self, left: Operand, right: Operand, a: Buffer, b: Buffer, step: Expr) -> Statement:
        plan, accumulator = self.plan, self.block.registers(self.gemm.c.buffer)
        row, column = Var(INT32, "m_tile"), Var(INT32, "n_tile")
        size = plan.instruction.d_fragment.registers
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
            return Region(part, (index_binary("add", self._set(operand, step), within),), (operand.registers,))
        number = index_binary("add", index_binary("mul", tile, self.plan.tiles_k), step)
        buffer = self.block.registers(operand.region.buffer)
        return Region(buffer, (binary("mul", number, const(operand.registers)),), (operand.registers,))


def _k_is_first(operand: Operand) -> bool:
    return operand.transposed


def _k_is_last(operand: Operand) -> bool:
    return not operand.transposed
