"""How one instruction of a processor does a gemm, by tiles or by vectors, or why it cannot."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tilewright.machine import Arch, DotInstruction, OperandPlan, match_left_offset, match_operands
from tilewright.machine.tile import TileInstruction, TilePlan, dot_instructions
from tilewright.ops.gemm import Gemm

LEAST_ROWS = 8
"""Blocks of fewer rows are multiplied by vectors: a product of tiles takes as long for one row as for sixteen."""
LEAST_WORDS = 8
"""Words of k that a product of tiles should have at least: it takes as long for fewer."""
MANY_ROWS = 32
"""From here on, shifting a once costs less than summing its rows for a shifted b."""


def operand_plan(gemm: Gemm, instruction: DotInstruction, arch: Arch) -> OperandPlan | str:
    """The plan, or the reason against it, which is empty where the types alone differ."""
    plan = match_operands(instruction, gemm.a.dtype, gemm.b.dtype)
    by_tiles = isinstance(instruction, TileInstruction)
    exact = (gemm.a.dtype, gemm.b.dtype) == (instruction.broadcast, instruction.vector) or not by_tiles
    if plan is None or not exact or (gemm.c.dtype.is_integer and not instruction.accumulator.is_integer):
        return ""
    if by_tiles and gemm.m < LEAST_ROWS:
        return f"vectors multiply {gemm.m} rows sooner"
    if by_tiles and gemm.c.buffer.scope == "global":
        return "c lies in global memory"
    if not _accumulates(instruction, gemm):
        shifted = " and a shift" * (gemm.shift is not None)
        return f"totals of {instruction.accumulator}{shifted} do not become elements of {gemm.c.dtype}"
    chunk = _chunk_of(gemm, instruction)
    if chunk is None:
        return f"totals of k = {gemm.k} are not scaled, promoted and shifted after runs of {instruction.depth}"
    if not isinstance(instruction, TileInstruction):
        return replace(_shifting_rows(gemm, plan, arch) or plan, chunk=chunk)
    words = _words(chunk // instruction.depth, instruction.words)
    return TilePlan(instruction, chunk=chunk, words=words) if words else f"steps of {chunk} along k fill too few tiles"


def _words(whole: int, most: int) -> int:
    """The most words that divide a chunk's; 0 where they are too few to be worth it."""
    found = next(words for words in range(min(most, whole), 0, -1) if whole % words == 0)
    return found if found >= LEAST_WORDS else 0


def _accumulates(instruction: DotInstruction, op: Gemm) -> bool:
    """Whether totals of the instruction become the elements of c."""
    c, total = op.c.dtype, instruction.accumulator
    if op.shift_b is not None and c.is_integer:  # multiplied and added beside the scales, in float32
        return False
    if op.shift is not None and op.shift_b is None and total.is_integer and not op.shift.dtype.is_integer:
        return False
    if total.is_integer and not c.is_integer:
        return op.a.dtype.bits <= 8 and op.b.dtype.bits <= 8 and c.bits <= 32
    return c.bits <= total.bits


def _chunk_of(op: Gemm, instruction: DotInstruction) -> int | None:
    """Elements of k after which a total is scaled and added to c; None where the instruction cannot stop there."""
    grouped = op.k // op.groups if op.groups is not None and op.shift is not None else 0
    blocks = (op.k // op.scale_blocks(is_a)[1] for is_a in (True, False))
    chunk = gcd(op.k, op.promote_every or 0, grouped, *blocks)
    if op.c.dtype.is_float and instruction.accumulator.is_integer:
        largest = 255 * 255 * chunk  # of bytes, whatever their signs
        while largest >= 1 << 31 and chunk % 2 == 0:
            chunk, largest = chunk // 2, largest // 2
        if largest >= 1 << 31:
            return None
    return chunk if chunk % instruction.depth == 0 else None


def _shifting_rows(gemm: Gemm, plan: OperandPlan, arch: Arch) -> OperandPlan | None:
    """A plan of equal cost that shifts the rows of a instead of b, where that pays."""
    if not plan.offset or gemm.m < MANY_ROWS or gemm.b.buffer.packed:
        return None
    kind = (plan.instruction.depth, plan.instruction.lanes, plan.instruction.uops)
    for instruction in dot_instructions(arch):
        other = match_left_offset(instruction, gemm.a.dtype, gemm.b.dtype)
        if other is not None and (instruction.depth, instruction.lanes, instruction.uops) == kind:
            return other
    return None
