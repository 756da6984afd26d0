"""How a layout goes on: from a fragment to the loop over it, from a source to its reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Const,
    Expr,
    Load,
    Parallel,
    Region,
    Seq,
    Statement,
    Store,
    TileOperator,
    Var,
)  # fmt: skip
from tilewright.ir.visitor import find
from tilewright.layout.layout import Layout
from tilewright.layout.threads import permuted, without
from tilewright.ops.reduce import Reduce


@dataclass(frozen=True, slots=True)
class Access:
    """A fragment in a parallel loop: for each of its dimensions the loop's dimension that indexes it.

    ``axes`` is None where the index is no plain loop variable.
    """

    buffer: Buffer
    axes: tuple[int | None, ...] | None
    statement: Statement


def has_copies(layout: Layout) -> bool:
    """Whether several threads have the same elements."""
    return any(one.place == "thread" and one.extent > 1 for one in layout.replicas)


def is_in_all(layout: Layout) -> bool:
    """Whether every thread has the whole of a tile in one register."""
    return all(one.extent == 1 for dimension in layout.digits for one in dimension)


def accesses_of(loop: Parallel) -> Iterator[Access]:
    """Fragments that a loop's body touches."""
    for node in find(loop.body, Load, Store, Region):
        if isinstance(node, (Load, Store)) and node.buffer.scope == "fragment":
            where = node if isinstance(node, Store) else loop
            yield Access(node.buffer, _axes(node.indices, loop.vars), where)
        elif isinstance(node, Region) and node.buffer.scope == "fragment":
            yield Access(node.buffer, _axes(node.starts, loop.vars), loop)


def _axes(indices: Sequence[Expr], vars: Sequence[Var]) -> tuple[int | None, ...] | None:
    axes: list[int | None] = []
    for index in indices:
        if isinstance(index, Const) and index.value == 0:
            axes.append(None)
        elif any(index is var for var in vars):
            axes.append(next(axis for axis, var in enumerate(vars) if var is index))
        else:
            return None
    used = [axis for axis in axes if axis is not None]
    return tuple(axes) if len(set(used)) == len(used) else None


def reduced_layout(reduction: Reduce, source: Layout) -> Layout:
    """The layout of a reduction's result, from that of its source."""
    left = without(source, reduction.axis)
    if reduction.destination.buffer.rank == source.rank:
        axis = reduction.axis
        return permuted(left, (*range(axis), None, *range(axis, left.rank)))
    return left if left.rank else permuted(left, (None,) * reduction.destination.buffer.rank)


def spread_over_copies(layout: Layout, axes: Sequence[int | None], free: int, shape: Sequence[int]) -> Layout | None:
    """`layout` with its copies counting the loop's dimension `free`, the rest of which goes to registers."""
    copies = [one for one in layout.replicas if one.place == "thread"]
    count = math.prod(one.extent for one in copies)
    if shape[free] % count:
        return None
    reached = max((one.stride * one.extent for d in layout.digits for one in d if one.place == "register"), default=1)
    rest = shape[free] // count
    registers = [replace(copies[0], extent=rest, place="register", stride=reached)] if rest > 1 else []
    dimensions: list[Any] = []
    for axis in range(len(shape)):
        if axis == free:
            dimensions.append((*copies, *registers))
        else:
            dimensions.append(layout.digits[axes.index(axis)] if axis in axes else ())
    candidate = Layout(tuple(dimensions))
    return candidate if all(h >= w for h, w in zip(candidate.shape, shape, strict=True)) else None


def overwrites(loop: Parallel, buffer: Buffer) -> bool:
    """Whether the loop stores to every element of a fragment."""
    for statement in loop.body.statements:
        if isinstance(statement, Store) and statement.buffer is buffer:
            axes = _axes(statement.indices, loop.vars)
            extents = [1 if axis is None else loop.extents[axis] for axis in axes or ()]
            if axes is not None and tuple(extents) == buffer.shape:
                return True
    return False


def filled_first(body: Seq, buffer: Buffer) -> bool:
    """Whether the first statement that touches a fragment, of the sequence that declares it, overwrites the whole of
    it."""
    within = next((one for one in find(body, Seq) if any(_declares(part, buffer) for part in one.statements)), None)
    if within is None:
        return False
    for statement in _in_order(within):
        if isinstance(statement, Parallel) and overwrites(statement, buffer):
            return True
        if isinstance(statement, TileOperator):
            effects = statement.effects()
            read = any(region.buffer is buffer for region in effects.reads)
            if not read and any(region.buffer is buffer and region.is_whole for region in effects.writes):
                return True
        if not _declares(statement, buffer) and any(one is buffer for one in find(statement, Buffer)):
            return False
    return False


def _declares(statement: Statement, buffer: Buffer) -> bool:
    return isinstance(statement, Allocate) and statement.buffer is buffer


def _in_order(body: Seq) -> Iterator[Statement]:
    for statement in body.statements:
        yield from _in_order(statement) if isinstance(statement, Seq) else (statement,)
