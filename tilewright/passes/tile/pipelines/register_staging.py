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
from dataclasses import replace

from tilewright.ir.nodes import Allocate, Buffer, Let, Pipelined, Region, Statement, const, seq
from tilewright.layout.layout import Layout
from tilewright.ops.copy import CP_ASYNC, Copy
from tilewright.ops.transpose import OWN, Transpose
from tilewright.passes.tile.copies.pieces import MOST_REGISTERS
from tilewright.passes.tile.pipelines.pipeline_plan import breaks, is_load
from tilewright.passes.tile.pipelines.turned_tiles import Turn, TurnGemms, whole_of


def staged_in_registers(
    loop: Pipelined, unstageable: dict[Buffer, str], threads: int, turns: Mapping[Copy, Turn]
) -> tuple[Pipelined, dict[Buffer, Layout]] | None:
    """The loop with its copies in two parts and a plan, and layouts of what is turned; None where no copy can be made
    ahead.

    Parameters
    ----------
    unstageable : tiles that cannot have several copies.
    threads : of the block.
    turns : copies whose tiles are turned on their way.
    """
    if loop.num_stages < 2 or loop.stage is not None or loop.order is not None:
        return None
    ahead = _affordable([one for one in loop.body.statements if isinstance(one, Copy) and _can_wait(one)], threads)
    while ahead:
        made, layouts = _divided(loop, ahead, turns)
        broken = breaks(made, unstageable)
        if broken is None:
            return made, layouts
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


def _affordable(copies: Sequence[Copy], threads: int) -> list[Copy]:
    """As many of them, the first ones, as registers hold."""
    kept: list[Copy] = []
    taken = 0
    for copy in copies:
        elements = math.prod(int(str(extent)) for extent in copy.destination.tile_shape)
        taken += -(-elements * copy.source.dtype.bits // (32 * threads))
        if taken > MOST_REGISTERS:
            break
        kept.append(copy)
    return kept


def _divided(
    loop: Pipelined, ahead: Collection[Copy], turns: Mapping[Copy, Turn]
) -> tuple[Pipelined, dict[Buffer, Layout]]:
    """The loop whose copies of `ahead` load one iteration early, and store before the loads of the next."""
    last = min(loop.num_stages - 1, 2)
    body: list[Statement] = []
    layouts: dict[Buffer, Layout] = {}
    stages: list[int] = []
    turn: list[int] = []  # in a step stores come first, then loads, then all else
    for statement in loop.body.statements:
        if isinstance(statement, Copy) and statement.prefer == CP_ASYNC and is_load(statement):
            body.append(statement)  # it is on its way by itself
            stages.append(0)
            turn.append(1)
            continue
        if statement not in ahead:
            body.append(statement)
            if not isinstance(statement, (Let, Allocate)):
                stages.append(last)
                turn.append(2)
            continue
        assert isinstance(statement, Copy)
        way = turns.get(statement)
        if way is None:
            load, store, held = _parts(statement)
            body += [Allocate(held, span=statement.span), load, store]
            stages += [0, 1]
            turn += [1, 0]
            continue
        body += _turned(statement, way, layouts)
        stages += [0, 1, 1]
        turn += [1, 0, 0]
    places = sorted(range(len(turn)), key=lambda number: (turn[number], number))
    order = [places.index(number) for number in range(len(turn))]
    turner = TurnGemms({copy.destination.buffer: way.tile for copy, way in turns.items() if copy in ahead})
    statements = seq([turner(one) for one in body]).statements
    made = replace(loop, body=replace(loop.body, statements=statements), stage=tuple(stages), order=tuple(order))
    return made, layouts


def turned_in_place(
    loop: Pipelined, turns: Mapping[Copy, Turn], threads: int
) -> tuple[Pipelined, dict[Buffer, Layout]]:
    """The loop without a plan, whose copies turn what they bring where they stand; and layouts of what is turned."""
    able = _affordable([one for one in turns if one in loop.body.statements and _can_wait(one)], threads)
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
