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

The registers are one stage of the pipeline: with ``num_stages=2`` each tile has one slot in shared memory, with three
or more two slots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.nodes import Allocate, Buffer, Kernel, Let, Parallel, Pipelined, Region, Statement, const, seq
from tilewright.layout.layout import Layout
from tilewright.ops.copy import CP_ASYNC, Copy
from tilewright.ops.transpose import OWN, Transpose
from tilewright.passes.tile.copies.pieces import MOST_REGISTERS
from tilewright.passes.tile.pipelines.pipeline_plan import breaks, is_load, touched
from tilewright.passes.tile.pipelines.reads_apart import Apart, allocated, reads_apart
from tilewright.passes.tile.pipelines.turned_tiles import Turn, TurnGemms, whole_of


@dataclass(frozen=True, slots=True)
class Divided:
    """A loop with a plan.

    Attributes
    ----------
    layouts : of tiles that are turned on their way.
    before : what is read once.
    """

    loop: Pipelined
    layouts: dict[Buffer, Layout]
    before: list[Statement]


def staged_in_registers(
    loop: Pipelined, unstageable: dict[Buffer, str], kernel: Kernel, turns: Mapping[Copy, Turn]
) -> Divided | None:
    """The loop with its copies in two parts and a plan; None where nothing can be made ahead.

    Parameters
    ----------
    unstageable : tiles that cannot have several copies.
    turns : copies whose tiles are turned on their way.
    """
    if loop.num_stages < 2 or loop.stage is not None or loop.order is not None:
        return None
    threads = kernel.num_threads
    copies = [one for one in loop.body.statements if isinstance(one, Copy) and _can_wait(one)]
    kept, taken = _affordable(copies, threads)
    written = touched(loop.body).writes
    reads: dict[Statement, Apart] = {}
    for one in loop.body.statements:
        found = reads_apart(loop, one, written, kernel.thread_vars, threads) if isinstance(one, Parallel) else None
        if found is not None and taken + found.registers <= MOST_REGISTERS:
            reads[one] = found
            taken += found.registers
    ahead: list[Statement] = [*kept, *reads]
    while ahead:
        made = _divided(loop, ahead, turns, reads)
        broken = breaks(made.loop, unstageable)
        if broken is None:
            return made
        culprits = [one for one in ahead if any(one.span == other.span for other in broken)] or [ahead[-1]]
        ahead = [one for one in ahead if one not in culprits]
    return None


def _can_wait(copy: Copy) -> bool:
    """Whether a copy is a plain load of a tile whose elements a register holds as they are."""
    source, tile = copy.source, copy.destination
    sizes = [extent for extent in tile.extents if isinstance(extent, int)]
    return (
        is_load(copy) and copy.prefer != CP_ASYNC and len(sizes) == len(tile.extents) and copy.barrier is None and copy.rank is None and not copy.adds  # noqa: E501
        and not source.dtype.is_packed and not tile.dtype.is_packed and tile.buffer.source is None
    )  # fmt: skip


def _affordable(copies: Sequence[Copy], threads: int) -> tuple[list[Copy], int]:
    """As many of them, the first ones, as registers hold, and how many registers those are."""
    kept: list[Copy] = []
    taken = 0
    for copy in copies:
        elements = math.prod(int(str(extent)) for extent in copy.destination.tile_shape)
        more = -(-elements * copy.source.dtype.bits // (32 * threads))
        if taken + more > MOST_REGISTERS:
            break
        kept.append(copy)
        taken += more
    return kept, taken


_STORE, _LOAD, _WORK = 0, 1, 2
"""In a step stores come first, then loads, then all else; loads of what work reads in its middle stand behind it."""


def _divided(
    loop: Pipelined, ahead: Collection[Statement], turns: Mapping[Copy, Turn], reads: Mapping[Statement, Apart]
) -> Divided:
    """The loop whose copies of `ahead` load one iteration early, and store before the loads of the next."""
    last = min(loop.num_stages - 1, 2)
    body: list[Statement] = []
    layouts: dict[Buffer, Layout] = {}
    before: list[Statement] = []
    plan: list[tuple[int, int, float]] = []  # of each statement its stage, its turn in a step, its place there
    for place, statement in enumerate(loop.body.statements):
        if isinstance(statement, Copy) and statement.prefer == CP_ASYNC and is_load(statement):
            body.append(statement)  # it is on its way by itself
            plan.append((0, _LOAD, place))
        elif statement not in ahead:
            body.append(statement)
            if not isinstance(statement, (Let, Allocate)):
                plan.append((last, _WORK, place))
        elif isinstance(statement, Copy) and statement in turns:
            body += _turned(statement, turns[statement], layouts)
            plan += [(0, _LOAD, place), (1, _STORE, place), (1, _STORE, place + 0.5)]
        elif isinstance(statement, Copy):
            load, store, held = _parts(statement)
            body += [Allocate(held, span=statement.span), load, store]
            plan += [(0, _LOAD, place), (1, _STORE, place)]
        else:
            found = reads[statement]
            before += allocated(found.once)
            body += [*allocated(found.each), found.work]
            plan += [*((last - 1, _WORK, place + 0.5) for _ in found.each), (last, _WORK, place)]
    places = sorted(range(len(plan)), key=lambda number: (*plan[number][1:], number))
    order = [places.index(number) for number in range(len(plan))]
    turner = TurnGemms({copy.destination.buffer: way.tile for copy, way in turns.items() if copy in ahead})
    statements = seq([turner(one) for one in body]).statements
    stages = tuple(stage for stage, *_ in plan)
    made = replace(loop, body=replace(loop.body, statements=statements), stage=stages, order=tuple(order))
    return Divided(made, layouts, before)


def turned_in_place(
    loop: Pipelined, turns: Mapping[Copy, Turn], threads: int
) -> tuple[Pipelined, dict[Buffer, Layout]]:
    """The loop without a plan, whose copies turn what they bring where they stand; and layouts of what is turned."""
    able, _ = _affordable([one for one in turns if one in loop.body.statements and _can_wait(one)], threads)
    layouts: dict[Buffer, Layout] = {}
    turner = TurnGemms({copy.destination.buffer: turns[copy].tile for copy in able})
    body: list[Statement] = []
    for statement in loop.body.statements:
        if isinstance(statement, Copy) and statement in able:
            body += _turned(statement, turns[statement], layouts)
        else:
            body.append(turner(statement))
    return replace(loop, body=replace(loop.body, statements=tuple(body))), layouts


def _turned(copy: Copy, way: Turn, layouts: dict[Buffer, Layout]) -> list[Statement]:
    """A copy as a load into registers, the turning of those, and the store of what they have become."""
    load, store, held = _parts(copy)
    turned = replace(held, name=f"{held.name}_turned", shape=way.tile.shape)
    layouts.update({held: way.loaded, turned: way.stored, way.tile: way.memory})
    return [
        Allocate(held, span=copy.span),
        Allocate(turned, span=copy.span),
        load,
        Transpose(store.source, whole_of(turned), OWN, span=copy.span),
        Copy(whole_of(turned), whole_of(way.tile), span=copy.span),
    ]


def _parts(copy: Copy) -> tuple[Copy, Copy, Buffer]:
    """A load into registers, the store from them, and the registers."""
    shape = tuple(int(str(extent)) for extent in copy.destination.tile_shape)
    held = Buffer(f"{copy.destination.buffer.name}_registers", shape, copy.source.dtype, "fragment")
    whole = Region(held, tuple(const(0) for _ in shape), shape)
    return replace(copy, destination=whole), Copy(whole, copy.destination, span=copy.span), held
