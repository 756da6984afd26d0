"""Copies of a pipelined loop that go through registers, on machines whose threads load and store by themselves.

Before::

    for k in pipelined(K, num_stages=2):
        copy(source=A[:, k * 32 : +32], destination=a)
        gemm(a=a, b=b, c=c)

After: a plan of stages and orders, so that what is loaded for the next iteration is on its way while this one's tiles
are multiplied, and is stored to shared memory behind that::

    for k in pipelined(K, num_stages=2, stage=(0, 1, 1), order=(1, 0, 2)):
        a_registers = fragment(float16[64, 32])
        copy(source=A[:, k * 32 : +32], destination=a_registers)
        copy(source=a_registers, destination=a)
        gemm(a=a, b=b, c=c)

Statements of branches that all threads take alike are taken out of them first (`opened`), so that loads under a
condition can be ahead, too.

The registers are one stage of the pipeline: with ``num_stages=2`` each tile has one slot in shared memory, with three
or more two slots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import BOOL, conjunction, declared, perform, touched, whole
from tilewright.ir import nodes as ir
from tilewright.layout import Layout
from tilewright.machine import Arch
from tilewright.ops import CP_ASYNC, OWN, Copy, CopySchedule, Transpose
from tilewright.passes.tile.copies.pieces import MOST_REGISTERS
from tilewright.passes.tile.pipelines.hoisted_reads import Apart, allocated, hoisted_reads
from tilewright.passes.tile.pipelines.open_branches import open_branches
from tilewright.passes.tile.pipelines.pipeline_plan import breaks, is_load
from tilewright.passes.tile.pipelines.transposed_tiles import Transposed, TransposedTile, transpose_gemms

Under = tuple[ir.Expr, ...]
"""Conditions that a statement stands under, outermost first."""


def opened(loop: ir.Pipelined, threads: Collection[ir.Var]) -> tuple[ir.Pipelined, list[Under]]:
    """A loop with the statements of branches that hold loads in its own body, and what each of those stands under.

    A condition has a name: whoever works under it knows it before the loads of the next iteration are on their way,
    behind which a load of its own would wait.

    Parameters
    ----------
    threads : variables in which threads differ.
    """
    if loop.num_stages < 2 or loop.stage is not None or loop.order is not None:
        return loop, [()] * len(loop.body.statements)
    statements: list[ir.Statement] = []
    conditions: list[Under] = []
    names: dict[Under, Under] = {(): ()}
    for one, under in open_branches(loop, touched(loop.body).writes, threads, is_load):
        for count in range(1, len(under) + 1):
            if under[:count] not in names:
                outer, name = names[under[: count - 1]], ir.Var(BOOL, "wanted")
                known = ir.Call(BOOL, "agreed", (conjunction((*outer[-1:], under[count - 1])),))
                statements.append(ir.Let(name, known, span=one.span))
                conditions.append(())
                names[under[:count]] = (*outer, name)
        statements.append(one)
        conditions.append(names[under])
    return replace(loop, body=replace(loop.body, statements=tuple(statements))), conditions


@dataclass(frozen=True, slots=True)
class Divided:
    """A loop with a plan.

    Attributes
    ----------
    conditions : of each statement of the body, what it stands under.
    beyond : statements, by their numbers in the plan, that do no harm in a step that has no iteration for them: stores
        of old registers into a slot that nobody reads. A branch around them would join steps that have loads on their
        way with steps that have none, and the compiler takes the worse of both.
    layouts : of tiles that are transposed on their way.
    before : what is read once.
    """

    loop: ir.Pipelined
    conditions: list[Under]
    beyond: frozenset[int]
    layouts: dict[ir.Buffer, Layout]
    before: list[ir.Statement]


def staged_in_registers(
    loop: ir.Pipelined,
    conditions: Sequence[Under],
    unstageable: dict[ir.Buffer, str],
    kernel: ir.Kernel,
    transposed: Transposed,
    most: int,
) -> Divided | None:
    """The loop with its copies in two parts and a plan; None where nothing can be made ahead.

    Parameters
    ----------
    conditions : of each statement of the body, what it stands under.
    unstageable : tiles that cannot have several copies.
    transposed : copies whose tiles are transposed on their way.
    most : registers of a thread that what is on its way may take.
    """
    if loop.num_stages < 2 or loop.stage is not None or loop.order is not None:
        return None
    threads = kernel.num_threads
    copies = [one for one in loop.body.statements if isinstance(one, Copy) and _can_wait(one)]
    kept, taken = _affordable(copies, threads, most)
    written = touched(loop.body).writes
    reads: dict[ir.Statement, Apart] = {}
    for one, under in zip(loop.body.statements, conditions, strict=True):
        if not isinstance(one, ir.Parallel) or under:
            continue
        found = hoisted_reads(loop, one, written, kernel.thread_vars, threads)
        if found is not None and taken + found.registers <= most:
            reads[one] = found
            taken += found.registers
    ahead: list[ir.Statement] = [*kept, *reads]
    while ahead:
        made = _divided(loop, conditions, ahead, transposed, reads)
        broken = breaks(made.loop, unstageable, made.conditions)
        if broken is None:
            return made
        culprits = [one for one in ahead if any(one.span == other.span for other in broken)] or [ahead[-1]]
        ahead = [one for one in ahead if one not in culprits]
    return None


def registers_to_spare(kernel: ir.Kernel, arch: Arch) -> int:
    """Registers of a thread for what is on its way: half of those that the kernel's own tiles leave, the other half are
    operands' and addresses'."""
    tiles = declared(kernel.body, "fragment")
    held = sum(-(-one.size * one.dtype.stored_bits // (32 * kernel.num_threads)) for one in tiles)
    return max(MOST_REGISTERS, (arch.launch_registers(kernel.num_threads) - held) // 2)


def _can_wait(copy: Copy) -> bool:
    """Whether a copy is a plain load of a tile whose elements a register holds as they are."""
    source, tile = copy.source, copy.destination
    sizes = [extent for extent in tile.extents if isinstance(extent, int)]
    return (
        is_load(copy)
        and copy.schedule.prefer != CP_ASYNC
        and len(sizes) == len(tile.extents)
        and copy.barrier is None
        and not source.dtype.is_packed
        and not tile.dtype.is_packed
        and tile.buffer.source is None
    )


def _affordable(copies: Sequence[Copy], threads: int, most: int) -> tuple[list[Copy], int]:
    """As many of them, the first ones, as registers hold, and how many registers those are."""
    kept: list[Copy] = []
    taken = 0
    for copy in copies:
        elements = math.prod(int(str(extent)) for extent in copy.destination.tile_shape)
        more = -(-elements * copy.source.dtype.bits // (32 * threads))
        if taken + more > most:
            break
        kept.append(copy)
        taken += more
    return kept, taken


_STORE, _READ, _LOAD, _WORK = 0, 1, 2, 3
"""In a step stores come first, then what work reads in its middle, then loads of tiles, then all else: loads come back
in the order in which they were started, and what a step begins with has waited for the last ones of the step before."""

_FENCE = perform("schedule_fence")
"""Loads stay behind the stores of the registers that they fill: else both steps' numbers need registers, and moves
from the one to the other wait for the loads."""


def _divided(
    loop: ir.Pipelined,
    conditions: Sequence[Under],
    ahead: Collection[ir.Statement],
    transposed: Transposed,
    reads: Mapping[ir.Statement, Apart],
) -> Divided:
    """The loop whose copies of `ahead` load one iteration early, and store before the loads of the next."""
    last = min(loop.num_stages - 1, 2)
    body: list[ir.Statement] = []
    under: list[Under] = []
    layouts: dict[ir.Buffer, Layout] = {}
    before: list[ir.Statement] = []
    busy = False  # whether what a step works on has begun
    plan: list[tuple[int, int, float]] = []  # of each statement its stage, its rank in a step, its place there
    for place, statement in enumerate(loop.body.statements):
        if isinstance(statement, Copy) and statement.schedule.prefer == CP_ASYNC and is_load(statement):
            body.append(statement)  # it is on its way by itself
            plan.append((0, _LOAD, place))
        elif statement not in ahead:
            body.append(statement)
            if not isinstance(statement, (ir.Let, ir.Allocate)):
                plan.append((last, _WORK, place))
        elif isinstance(statement, Copy) and statement in transposed:
            body += _transposed(statement, transposed[statement], layouts)
            plan += [(0, _LOAD, place), (1, _STORE, place), (1, _STORE, place + 0.5)]
        elif isinstance(statement, Copy):
            load, store, held = _parts(statement)
            body += [ir.Allocate(held, span=statement.span), load, store]
            plan += [(0, _LOAD, place), (1, _STORE, place)]
        else:
            found = reads[statement]
            before += allocated(found.once)
            moves, work = ([], found.work) if found.is_early and not busy else found.kept()
            body += [*allocated(found.each), *allocated(moves), work]
            plan += [*((last - 1, _READ, place) for _ in found.each), *((last, _STORE, place) for _ in moves)]
            plan.append((last, _WORK if moves else _STORE, place))
        busy = busy or (bool(plan) and plan[-1][1] == _WORK)
        under += [conditions[place]] * (len(body) - len(under))
    body.append(_FENCE)
    under.append(())
    plan.append((last, _STORE, math.inf))
    places = sorted(range(len(plan)), key=lambda number: (*plan[number][1:], number))
    order = [places.index(number) for number in range(len(plan))]
    tiles = {copy.destination.buffer: way.tile for copy, way in transposed.items() if copy in ahead}
    statements = ir.seq([transpose_gemms(one, tiles) for one in body]).statements
    stages = tuple(stage for stage, *_ in plan)
    beyond = frozenset(number for number, (stage, when, _) in enumerate(plan) if stage < last and when == _STORE)
    made = replace(loop, body=replace(loop.body, statements=statements), stage=stages, order=tuple(order))
    return Divided(made, under, beyond, layouts, before)


def transposed_in_place(
    loop: ir.Pipelined, chosen: Transposed, threads: int
) -> tuple[ir.Pipelined, dict[ir.Buffer, Layout]]:
    """The loop without a plan, whose copies transpose what they bring where they stand; and those tiles' layouts."""
    copies = [one for one in chosen if one in loop.body.statements and _can_wait(one)]
    able, _ = _affordable(copies, threads, MOST_REGISTERS)
    layouts: dict[ir.Buffer, Layout] = {}
    tiles = {copy.destination.buffer: chosen[copy].tile for copy in able}
    body: list[ir.Statement] = []
    for statement in loop.body.statements:
        if isinstance(statement, Copy) and statement in able:
            body += _transposed(statement, chosen[statement], layouts)
        else:
            body.append(transpose_gemms(statement, tiles))
    return replace(loop, body=replace(loop.body, statements=tuple(body))), layouts


def _transposed(copy: Copy, way: TransposedTile, layouts: dict[ir.Buffer, Layout]) -> list[ir.Statement]:
    """A copy as a load into registers, the transposition of those, and the store of what they have become."""
    load, store, held = _parts(copy)
    transposed = replace(held, name=f"{held.name}_transposed", shape=way.tile.shape)
    layouts.update({held: way.loaded, transposed: way.stored, way.tile: way.memory})
    return [
        ir.Allocate(held, span=copy.span),
        ir.Allocate(transposed, span=copy.span),
        load,
        Transpose(store.source, whole(transposed), CopySchedule(prefer=OWN), span=copy.span),
        Copy(whole(transposed), whole(way.tile), span=copy.span),
    ]


def _parts(copy: Copy) -> tuple[Copy, Copy, ir.Buffer]:
    """A load into registers, the store from them, and the registers."""
    shape = tuple(int(str(extent)) for extent in copy.destination.tile_shape)
    held = ir.Buffer(f"{copy.destination.buffer.name}_registers", shape, copy.source.dtype, "fragment")
    whole = ir.Region(held, tuple(ir.const(0) for _ in shape), shape)
    return replace(copy, destination=whole), Copy(whole, copy.destination, span=copy.span), held
