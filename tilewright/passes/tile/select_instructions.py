"""Chooses how each gemm of a kernel is executed on a machine with threads, and why nothing better.

The choice fixes how warps share the tile, and thereby the layouts of accumulators and operands; it is made
before layouts are inferred and is their anchor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.nodes import Function, Kernel, Region
from tilewright.ir.visitor import kernels, walk
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.layout.layout import Layout
from tilewright.layout.threads import copies, repeat
from tilewright.machine.arch import Arch
from tilewright.machine.instructions import MatrixInstruction
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context

FACT = "gemm_plans"
"""Name in ``context.facts`` of the plans, by operator."""


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """One gemm on warps that each hold whole instruction tiles.

    Attributes
    ----------
    warps_m, warps_n : how many warps along rows and columns; warp ``w`` has row ``w % warps_m``.
    k : of the gemm's operands.
    """

    instruction: MatrixInstruction
    warps_m: int
    warps_n: int
    m: int
    n: int
    k: int

    @property
    def tiles_m(self) -> int:
        """Instruction tiles of a warp along rows."""
        return self.m // (self.warps_m * self.instruction.m)

    @property
    def tiles_n(self) -> int:
        return self.n // (self.warps_n * self.instruction.n)

    @property
    def tiles_k(self) -> int:
        return self.k // self.instruction.k

    def accumulator(self) -> Layout:
        """Layout of c: registers of a warp's tiles row by row."""
        atom = Layout.from_digits((self.instruction.m, self.instruction.n), self.instruction.d_fragment.digits)
        tile = repeat(repeat(atom, 1, self.tiles_n, REGISTER), 0, self.tiles_m, REGISTER)
        tile = repeat(tile, 0, self.warps_m, THREAD, self.instruction.threads)
        return repeat(tile, 1, self.warps_n, THREAD, self.instruction.threads * self.warps_m)

    def left(self) -> Layout:
        """Layout of a (m, k) in registers: whole tiles of k one after the other, row by row."""
        fragment = self.instruction.a_fragment
        assert fragment is not None
        atom = Layout.from_digits((self.instruction.m, self.instruction.k), fragment.digits)
        tile = repeat(repeat(atom, 1, self.tiles_k, REGISTER), 0, self.tiles_m, REGISTER)
        tile = repeat(tile, 0, self.warps_m, THREAD, self.instruction.threads)
        return copies(tile, self.warps_n, self.instruction.threads * self.warps_m)

    def right(self) -> Layout:
        """Layout of b (k, n) in registers."""
        fragment = self.instruction.b_fragment
        assert fragment is not None
        atom = Layout.from_digits((self.instruction.k, self.instruction.n), fragment.digits)
        tile = repeat(repeat(atom, 0, self.tiles_k, REGISTER), 1, self.tiles_n, REGISTER)
        tile = repeat(tile, 1, self.warps_n, THREAD, self.instruction.threads * self.warps_m)
        return copies(tile, self.warps_m, self.instruction.threads)


def select_instructions(function: Function, context: Context) -> Function:
    """Leave a `GemmPlan` in ``context.facts`` for every gemm that matrix instructions can execute."""
    plans: dict[Gemm, GemmPlan] = {}
    choices: list[str] = context.facts.setdefault("choices", [])
    for kernel in kernels(function):
        gemms = [node for node in walk(kernel) if isinstance(node, Gemm)]
        by_rows = any(_in_registers(gemm.a) for gemm in gemms)
        for gemm in gemms:
            plan, refused = _plan(gemm, kernel, context.arch, by_rows)
            place = f"{gemm.span.file}:{gemm.span.line}: " if gemm.span else ""
            if plan is not None:
                plans[gemm] = plan
                choices.append(
                    f"{place}gemm: {plan.instruction.function} on {plan.warps_m} x {plan.warps_n} warps{refused}"
                )
            else:
                choices.append(f"{place}gemm: scalar products{refused}")
    context.facts[FACT] = plans
    return function


def _in_registers(region: Region) -> bool:
    return region.buffer.scope == "fragment"


def _plan(gemm: Gemm, kernel: Kernel, arch: Arch, by_rows: bool) -> tuple[GemmPlan | None, str]:
    """The best instruction that fits, and the reasons against those before it."""
    reasons: list[str] = []
    for instruction in arch.matrix_instructions:
        reason = _misfit(gemm, instruction)
        if reason is None:
            for rows, columns in _partitions(gemm, kernel.num_threads // instruction.threads, instruction, by_rows):
                return GemmPlan(instruction, rows, columns, gemm.m, gemm.n, gemm.k), _because(reasons)
            reason = f"{kernel.num_threads // instruction.threads} warps cannot share {gemm.m} x {gemm.n}"
        if reason:
            reasons.append(f"{instruction.function}: {reason}")
    return None, _because(reasons) or " (no matrix instruction for these types)"


def _because(reasons: list[str]) -> str:
    return f" (not {'; not '.join(dict.fromkeys(reasons))})" if reasons else ""


def _misfit(gemm: Gemm, instruction: MatrixInstruction) -> str | None:
    """Why an instruction cannot execute a gemm: empty where the types alone differ, None where it fits."""
    if (instruction.a, instruction.b, instruction.accumulator) != (gemm.a.dtype, gemm.b.dtype, gemm.c.dtype):
        return ""
    if instruction.asynchronous:
        return "not issued outside of pipelines"
    if instruction.a_memory != "registers" or instruction.b_memory != "registers":
        return "operands come from shared memory"
    if gemm.scale_a is not None or gemm.scale_b is not None or gemm.promote_every is not None:
        return "the product is scaled or promoted"
    if gemm.c.buffer.scope != "fragment" or not gemm.c.is_whole:
        return "the accumulator is not a whole fragment"
    for name, region in (("a", gemm.a), ("b", gemm.b)):
        if _in_registers(region) and not region.is_whole:
            return f"{name} is part of a fragment"
        if not _in_registers(region) and region.buffer.scope != "shared":
            return f"{name} lies in {region.buffer.scope} memory"
    if gemm.k % instruction.k:
        return f"k = {gemm.k} is no multiple of {instruction.k}"
    return None


def _partitions(gemm: Gemm, warps: int, instruction: MatrixInstruction, by_rows: bool) -> Iterator[tuple[int, int]]:
    """Ways to share the tile among all warps, those that read operands least often first."""
    found = []
    for rows in range(1, warps + 1):
        columns = warps // rows
        if rows * columns != warps or gemm.m % (rows * instruction.m) or gemm.n % (columns * instruction.n):
            continue
        # Each warp row reads all of b, each warp column all of a.
        cost = gemm.n * rows + gemm.m * columns
        found.append((cost, rows, columns))
    wanted = {"full_row": (warps, 1), "full_col": (1, warps)}.get(gemm.policy)
    if by_rows and wanted is None:
        wanted = (warps, 1)
    ordered = [(rows, columns) for _, rows, columns in sorted(found)]
    if wanted is not None and wanted in ordered:
        return iter([wanted])
    return iter(ordered)
