"""How the gemms of a machine without threads are multiplied: by its matrix unit, or by dot products of vectors.

Every pass that prepares operands asks here, and so does the target's lowering, so that all of them mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.ir.dtypes import DType
from tilewright.machine import (
    REGISTERS,
    Arch,
    DotInstruction,
    OperandPlan,
    TileInstruction,
    match_left_offset,
    match_operands,
)
from tilewright.ops.gemm import Gemm

LEAST_ROWS = 8
"""Blocks of fewer rows are multiplied by vectors: a product of tiles takes as long for one row as for sixteen."""
LEAST_WORDS = 8
"""Words of k that a product of tiles should have at least: it takes as long for fewer."""
MANY_ROWS = 32
"""From here on, shifting a once costs less than summing its rows for a shifted b."""


@dataclass(frozen=True, slots=True)
class TilePlan(OperandPlan):
    """A product by the matrix unit.

    Attributes
    ----------
    chunk : elements of k after which a total is scaled and added to c.
    words : of k, `instruction.depth` elements each, that one instruction takes; they divide a chunk.
    """

    chunk: int = 0
    words: int = 0

    @property
    def tile(self) -> TileInstruction:
        assert isinstance(self.instruction, TileInstruction)
        return self.instruction


def dot_instructions(arch: Arch) -> tuple[DotInstruction, ...]:
    """The dot products of vectors that a machine has, best first."""
    return tuple(one for one in arch.products(DotInstruction) if one.place == REGISTERS)


def first_match(a: DType, b: DType, arch: Arch) -> OperandPlan | None:
    """The machine's best way to multiply an `a` by a `b` in vectors."""
    return next((plan for i in dot_instructions(arch) if (plan := match_operands(i, a, b)) is not None), None)


def product_plan(gemm: Gemm, arch: Arch) -> OperandPlan | None:
    """The machine's best way to do a gemm; None where no instruction's totals become the elements of c."""
    able = (i for i in dot_instructions(arch) if accumulates(i, gemm))
    by_vectors = next((plan for i in able if (plan := match_operands(i, gemm.a.dtype, gemm.b.dtype))), None)
    return tile_plan(gemm, arch) or by_vectors


def tile_plan(gemm: Gemm, arch: Arch) -> TilePlan | None:
    """How the matrix unit does a gemm, or None where vectors do it, as well or alone."""
    if gemm.m < LEAST_ROWS or gemm.c.buffer.scope == "global":
        return None
    for instruction in arch.products(TileInstruction):
        if (gemm.a.dtype, gemm.b.dtype) != (instruction.broadcast, instruction.vector):
            continue
        if not accumulates(instruction, gemm):
            continue
        plan = OperandPlan(instruction)
        chunk = chunk_of(gemm, plan)
        words = 0 if chunk is None else _words(chunk // instruction.depth, instruction.words)
        if chunk is not None and words:
            return TilePlan(instruction, chunk=chunk, words=words)
    return None


def _words(whole: int, most: int) -> int:
    """The most words that divide a chunk's; 0 where they are too few to be worth it."""
    found = next(words for words in range(min(most, whole), 0, -1) if whole % words == 0)
    return found if found >= LEAST_WORDS else 0


def accumulates(instruction: DotInstruction, op: Gemm) -> bool:
    """Whether totals of the instruction become the elements of c."""
    c, total = op.c.dtype, instruction.accumulator
    if op.shift_b is not None:  # multiplied and added beside the scales, in float32
        if c.is_integer:
            return False
    elif op.shift is not None and total.is_integer and not op.shift.dtype.is_integer:
        return False
    if c.is_integer:
        return total.is_integer and c.bits <= total.bits
    if total.is_integer:
        return op.a.dtype.bits <= 8 and op.b.dtype.bits <= 8 and c.bits <= 32
    return c.bits <= total.bits


def chunk_of(op: Gemm, plan: OperandPlan) -> int | None:
    """Elements of k after which a total is scaled and added to c; None where the instruction cannot stop there."""
    chunk = op.k
    if op.promote_every is not None:
        chunk = gcd(chunk, op.promote_every)
    if op.groups is not None and op.shift is not None:
        chunk = gcd(chunk, op.k // op.groups)
    for is_a in (True, False):
        chunk = gcd(chunk, op.k // op.scale_blocks(is_a)[1])
    instruction = plan.instruction
    if op.c.dtype.is_float and instruction.accumulator.is_integer:
        largest = 255 * 255 * chunk  # of bytes, whatever their signs
        while largest >= 1 << 31 and chunk % 2 == 0:
            chunk, largest = chunk // 2, largest // 2
        if largest >= 1 << 31:
            return None
    return chunk if chunk % instruction.depth == 0 else None


def shifts_left(gemm: Gemm, plan: OperandPlan, arch: Arch) -> OperandPlan | None:
    """A plan of equal cost that shifts the rows of a instead of b, where that pays."""
    if not plan.offset or gemm.m < MANY_ROWS or gemm.b.buffer.packed:
        return None
    kind = (plan.instruction.depth, plan.instruction.lanes, plan.instruction.uops)
    for instruction in dot_instructions(arch):
        other = match_left_offset(instruction, gemm.a.dtype, gemm.b.dtype)
        if other is not None and (instruction.depth, instruction.lanes, instruction.uops) == kind:
            return other
    return None
