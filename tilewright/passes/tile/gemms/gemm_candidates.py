"""Ways to execute a gemm on any machine: plans that fit, best first, and why instructions do not fit.

Groups of threads share a tile by matrix instructions; a processor multiplies it by its matrix unit or by dot products
of vectors (`product_plans`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir.nodes import Buffer, Const, Region, is_literal
from tilewright.layout import PATTERN_ROWS, REGISTER, repeat
from tilewright.machine import GLOBAL, Arch, DotInstruction, MatrixInstruction
from tilewright.ops import Gemm, GemmPlan, Product, ProductPlan, SparseGemm
from tilewright.passes.tile.processors.product_plans import operand_plan

METADATA_BYTES = 4
"""Metadata of a step of k is read by the word."""

SPARSE_STEP_BYTES = 64
"""Bytes along k that one sparse instruction reads of b by descriptor: they lie within one span of a swizzle."""

MAXIMUM_COPY = 128
"""32-bit registers of a thread that an accumulator may take where fewer warps share the tile than the block has: it can
be had for less."""


Spans = Mapping[Buffer, int]
Candidate = tuple[ProductPlan | None, str]
"""A plan, and the reasons against instructions that would be better; None for products element by element."""


def may_start_alone(gemm: Product) -> bool:
    """Whether a gemm that nobody waits for yet may go on while its threads do something else."""
    instruction = gemm.plan.instruction if isinstance(gemm.plan, GemmPlan) and gemm.token is None else None
    return instruction is not None and instruction.asynchronous and not instruction.transposes


def candidates_of(gemm: Product, threads: int, arch: Arch, by_rows: bool, tiles: Spans) -> list[Candidate]:
    """The plans that fit, best first, each with the reasons against instructions before its own; a lone None where none
    does.

    Parameters
    ----------
    threads, by_rows, tiles : of machines with threads: those that execute it; whether warps share the rows of the tile;
        shared tiles that instructions may read by descriptor, with the bytes of their swizzle's span.
    """
    found: list[Candidate] = []
    types = gemm.a.dtype, gemm.b.dtype, gemm.c.dtype
    untried = [one for one in arch.untried_instructions if one.types == types]
    reasons = [f"{one.function}: nobody has run it on {arch.name} yet" for one in untried]
    for instruction in _instructions(gemm, arch):
        plans = _plans(gemm, instruction, threads, arch, by_rows, tiles)
        if isinstance(plans, str):
            reasons += [f"{instruction.function}: {plans}"] if plans else []
        else:
            found += [(plan, because(reasons)) for plan in plans]
    return found or [(None, because(reasons) or f" ({_no_instruction(gemm, arch)})")]


def replanned(gemm: Gemm, arch: Arch, a: Region | None = None, b: Region | None = None) -> Gemm:
    """A processor's gemm with other operands, and the plan for these."""
    gemm = replace(gemm, a=gemm.a if a is None else a, b=gemm.b if b is None else b)
    return replace(gemm, plan=candidates_of(gemm, 1, arch, by_rows=False, tiles={})[0][0])


def _plans(
    gemm: Product, one: MatrixInstruction | DotInstruction, threads: int, arch: Arch, by_rows: bool, tiles: Spans
) -> Sequence[ProductPlan] | str:
    """The plans with an instruction, or why there is none: empty where the types alone differ."""
    if isinstance(one, DotInstruction):
        assert isinstance(gemm, Gemm)
        plan = operand_plan(gemm, one, arch)
        return plan if isinstance(plan, str) else [plan]
    reason = _unsupported(gemm, one, tiles, arch)
    if reason is not None:
        return reason
    groups = 0 if threads % one.threads else threads // one.threads
    plans = list(
        _group_plans(gemm, groups, one, by_rows, tiles, arch.fragment_registers)
        if one.asynchronous
        else _warp_plans(gemm, groups, one, by_rows)
    )
    kind = "warpgroups" if one.asynchronous else "warps"
    none = f"{groups} {kind} cannot share {gemm.m} x {gemm.n}" if groups else f"{threads} threads are no {kind}"
    return plans or none


def _instructions(gemm: Product, arch: Arch) -> Sequence[MatrixInstruction | DotInstruction]:
    """The machine's instructions, best first: for a left operand in registers those first that take it as results of a
    product lie."""
    if isinstance(gemm, SparseGemm):
        known: Sequence[MatrixInstruction] = arch.sparse_instructions
    elif not arch.has_threads:
        return arch.products(DotInstruction)
    else:
        known = arch.products(MatrixInstruction)
        if in_registers(gemm.a):
            known = sorted(known, key=lambda one: not (one.asynchronous or _follows_results(one)))
    return [one.transposing() if _is_transposed(gemm, one) else one for one in known]


def _follows_results(instruction: MatrixInstruction) -> bool:
    """Whether the left operand lies as results side by side do."""
    if (
        instruction.a_fragment is None
        or instruction.k % instruction.n
        or instruction.d_fragment.shape[0] != instruction.m
    ):
        return False
    return instruction.a_fragment == repeat(instruction.d_fragment, 1, instruction.k // instruction.n, REGISTER)


def _no_instruction(gemm: Product, arch: Arch) -> str:
    """Why there is none for the types of a product, and what to write of float32, which matrix units would round."""
    if isinstance(gemm, SparseGemm):
        if not arch.sparse_instructions:
            return f"tilewright multiplies sparse operands by no matrix instruction of {arch.name}"
        return "no sparse matrix instruction for these types"
    rounded = any({kind.name for kind in one.types[:2]} == {"tfloat32"} for one in arch.matrix_instructions)
    if rounded and gemm.a.dtype.name == gemm.b.dtype.name == "float32":
        return "float32 is multiplied exactly; matrix instructions multiply tiles of tfloat32, rounded to 10 bits"
    return "no matrix instruction for these types"


def _is_transposed(gemm: Product, instruction: MatrixInstruction) -> bool:
    """Whether lanes transpose a left operand of bytes that lies the other way, while its products are waited for where
    they are started."""
    bytes_across = gemm.transpose_a and gemm.a.dtype.bits == 8 and gemm.a.buffer.scope == "shared"
    alone = gemm.token is None and not instruction.sparse
    return bytes_across and alone and instruction.asynchronous and instruction.a_memory == "registers"


def because(reasons: list[str]) -> str:
    """Reasons against what would be better, as the end of a sentence."""
    return f" (not {'; not '.join(dict.fromkeys(reasons))})" if reasons else ""


def _unsupported(gemm: Product, instruction: MatrixInstruction, tiles: Spans, arch: Arch) -> str | None:
    """Why an instruction cannot execute a gemm: empty where the types alone differ, None where it fits."""
    if instruction.types != (gemm.a.dtype, gemm.b.dtype, gemm.c.dtype):
        return ""
    if instruction.asynchronous:
        reason = _descriptor_unsupported(gemm, instruction, tiles)
        if reason is not None:
            return reason
    if isinstance(gemm, SparseGemm):
        reason = _sparse_unsupported(gemm, instruction)
        if reason is not None:
            return reason
    elif isinstance(gemm, Gemm) and not gemm.is_plain:
        return "the product is scaled, shifted or promoted"
    if gemm.c.buffer.scope != "fragment" or not (gemm.c.is_whole or (instruction.asynchronous and _begins(gemm.c))):
        return "the accumulator is not a whole fragment" + (" nor its first columns" * instruction.asynchronous)
    for name, region in (("a", gemm.a), ("b", gemm.b)):
        if in_registers(region) and not region.is_whole:
            return f"{name} is part of a fragment"
        far = region.buffer.scope == "global" and not instruction.asynchronous and _reads_tensors(arch)
        if not in_registers(region) and region.buffer.scope != "shared" and not far:
            return f"{name} lies in {region.buffer.scope} memory"
    if gemm.k % instruction.k:
        return f"k = {gemm.k} is no multiple of {instruction.k}"
    return None


def _reads_tensors(arch: Arch) -> bool:
    """Whether lanes bring the elements of operands that they hold from global memory as they do from shared memory."""
    return any((one.function, one.source) == ("load", GLOBAL) for one in arch.copy_instructions)


def _begins(region: Region) -> bool:
    """Whether a region is the first columns of its buffer."""
    first = all(is_literal(start, 0) for start in region.starts)
    return first and region.extents[:-1] == region.buffer.shape[:-1]


def _sparse_unsupported(gemm: SparseGemm, instruction: MatrixInstruction) -> str | None:
    """Why lanes cannot give the places of what is kept, or (of warps) load the operands."""
    if gemm.metadata.buffer.scope != "shared":
        return "metadata is not in shared memory"
    if not Analyzer().divides(gemm.metadata.starts[-1], METADATA_BYTES):
        return "the metadata begins within a word"
    if not instruction.asynchronous and (in_registers(gemm.a) or in_registers(gemm.b)):
        return f"{'a' if in_registers(gemm.a) else 'b'} is not in shared memory"
    return None


def _descriptor_unsupported(gemm: Product, instruction: MatrixInstruction, tiles: Spans) -> str | None:
    """Why an instruction that reads shared tiles by descriptor cannot read those of a gemm."""
    operands = (
        ("a", gemm.a, instruction.a_memory, gemm.transpose_a),
        ("b", gemm.b, instruction.b_memory, not gemm.transpose_b),
    )
    for name, region, memory, transposed in operands:
        by_lanes = name == "a" and instruction.transposes
        if in_registers(region) != (memory == "registers" and not by_lanes):
            return f"{name} lies in {region.buffer.scope} memory"
        if memory == "registers" and not by_lanes:
            continue
        if region.buffer not in tiles:
            return f"descriptors name no tile that lies as {region.buffer.name} does"
        if by_lanes:
            continue
        if transposed and "mn" not in instruction.majors:
            return f"{name} is not contiguous along k"
        if not _is_named(region, transposed):
            return f"{name} is a part of {region.buffer.name} at which no swizzled span begins"
        if instruction.sparse and name == "b" and not transposed and tiles[region.buffer] < SPARSE_STEP_BYTES:
            return f"rows of {region.buffer.name} are swizzled in spans of {tiles[region.buffer]} bytes"
    return None


def _is_named(region: Region, transposed: bool) -> bool:
    """Whether a descriptor can name a part of a tile: all of it, or rows of k from where the swizzle's pattern
    begins."""
    if region.extents[-1] != region.buffer.shape[-1]:
        return False
    if region.extents[-2] == region.buffer.shape[-2]:
        return True
    start = region.starts[-2]
    return not transposed and isinstance(start, Const) and start.value % PATTERN_ROWS == 0


def _group_plans(
    gemm: Product, groups: int, instruction: MatrixInstruction, by_rows: bool, tiles: Spans, registers: int
) -> Iterator[GemmPlan]:
    """Ways to share the tile among warpgroups, those that read shared memory least first; an accumulator takes so many
    registers of a thread at the most."""
    found = []
    for rows, columns in _factors(groups):
        if gemm.m % (rows * instruction.m) or gemm.n % columns:
            continue
        across = gemm.n if gemm.c.is_whole else gemm.c.buffer.static_shape[-1]
        if across != gemm.n and (columns > 1 or all(across % n for n in instruction.n_choices)):
            continue
        n = next((n for n in _widths(gemm, instruction, tiles) if gemm.n // columns % n == 0), None)
        if n is None:
            continue
        plan = GemmPlan(instruction.sized(n), rows, columns, gemm.m, gemm.n, gemm.k, across=across)
        if _accumulator(plan) <= registers:
            found.append((plan.tiles_m * plan.tiles_n * (instruction.m + n), rows, plan))
    wanted = _wanted(gemm, groups, by_rows)
    plans = [plan for _, _, plan in sorted(found, key=lambda one: (one[0], -one[1]))]
    return iter([plan for plan in plans if (plan.warps_m, plan.warps_n) == wanted] or plans)


def _widths(gemm: Product, instruction: MatrixInstruction, tiles: Spans) -> list[int]:
    """Columns that one instruction may take, widest first.

    Where b lies row by row along n, an instruction begins where a swizzle's span does, or ends in the one span that
    there is.
    """
    run = 1 if gemm.transpose_b else tiles[gemm.b.buffer] * 8 // gemm.b.dtype.bits
    within = gemm.n == run
    return [n for n in instruction.n_choices if n % run == 0 or n == gemm.n or (within and run % n == 0)]


def _warp_plans(gemm: Product, warps: int, instruction: MatrixInstruction, by_rows: bool) -> Iterator[GemmPlan]:
    """Ways to share the tile among warps: among all of them where that can be, else among as many as it divides by."""
    for used in range(warps, 0, -1):
        if warps % used == 0:
            for rows, columns in _partitions(gemm, used, instruction, by_rows):
                plan = GemmPlan(instruction, rows, columns, gemm.m, gemm.n, gemm.k, warps // used)
                if used == warps or _accumulator(plan) <= MAXIMUM_COPY:
                    yield plan


def _accumulator(plan: GemmPlan) -> int:
    """32-bit registers of a thread for the accumulator."""
    return plan.tiles_m * plan.tiles_n * plan.instruction.accumulator_registers


def _wanted(gemm: Product, groups: int, by_rows: bool) -> tuple[int, int] | None:
    """How many groups along rows and columns the author's policy asks for, if anything."""
    wanted = {"full_row": (groups, 1), "full_col": (1, groups)}.get(gemm.policy)
    return (groups, 1) if by_rows and wanted is None else wanted


def _partitions(gemm: Product, warps: int, instruction: MatrixInstruction, by_rows: bool) -> Iterator[tuple[int, int]]:
    """Ways to share the tile among all warps, those that read operands least often first."""
    found = []
    for rows, columns in _factors(warps):
        if not gemm.m % (rows * instruction.m) and not gemm.n % (columns * instruction.n):
            # Each warp row reads all of b, each warp column all of a.
            found.append((gemm.n * rows + gemm.m * columns, rows, columns))
    wanted = _wanted(gemm, warps, by_rows)
    ordered = [(rows, columns) for _, rows, columns in sorted(found)]
    return iter([wanted] if wanted in ordered else ordered)


def _factors(count: int) -> list[tuple[int, int]]:
    """Rows and columns of so many groups."""
    return [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]


def in_registers(region: Region) -> bool:
    return region.buffer.scope == "fragment"
