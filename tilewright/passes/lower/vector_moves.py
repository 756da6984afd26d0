"""Vectors of a thread's loop between memory and registers: whole where they are in bounds, element by element at an
edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.ir import BOOL, INT32, guard_of, key, perform, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.ops.base import zero
from tilewright.passes.lower.matrix_stores import store_together
from tilewright.passes.lower.thread_elements import rounds
from tilewright.passes.lower.vector_access import Vector
from tilewright.passes.scoped import reads_nothing

if TYPE_CHECKING:
    from tilewright.passes.lower.thread_loop import ThreadLoop


def load(work: ThreadLoop, vector: Vector) -> list[ir.Statement]:
    """What brings a group's elements into their registers."""
    allocated: list[ir.Statement] = [ir.Allocate(vector.part, span=work.loop.span)]
    condition = None if vector.condition is None else work.in_registers(vector.condition)
    if condition is not None and is_zero_elsewhere(work, vector):
        wanted = ir.Var(BOOL, "wanted")
        named, vector = _named(work, replace(vector, condition=wanted))
        allocated.append(ir.Let(wanted, condition, span=work.loop.span))
        condition = None
    else:
        named, vector = _named(work, replace(vector, condition=None))
    pieces = [*named, *(_load_piece(work, vector, first) for first in vector.starts())]
    return [*allocated, *([ir.If(condition, ir.seq(pieces), span=work.loop.span)] if condition is not None else pieces)]


def is_zero_elsewhere(work: ThreadLoop, vector: Vector) -> bool:
    """Whether a vector under the author's condition is zeros where that does not hold."""
    reads = any(isinstance(node, ir.Load) for node in walk(vector.indices[-1]))
    return vector.condition is not None and not reads and _may_choose(work, vector)


def _may_choose(work: ThreadLoop, vector: Vector) -> bool:
    """Whether a vector that is not wanted, or out of bounds, may be zeros without a branch: nothing then waits where
    branches meet."""
    safe = work.safe(vector.buffer)
    return (
        work.owner.context.arch.has("guarded_loads")
        and vector.buffer.scope == "global"
        and _ends_with_vectors(work, vector)
        and isinstance(safe, ir.Const)
        and key(safe) == key(zero(safe.dtype))
    )


def _named(work: ThreadLoop, vector: Vector) -> tuple[list[ir.Statement], Vector]:
    """Names for indices that are more than sums, so that a bound once checked is known to hold."""
    named: list[ir.Statement] = []
    indices = [_separated(work, index) for index in vector.indices]
    for place, index in enumerate(indices[:-1]):
        reads = any(isinstance(node, ir.Load) for node in walk(index))
        if reads or any(map(rounds, walk(index))):
            var, value = ir.Var(index.dtype, "place"), work.in_registers(index)
            if reads and vector.condition is not None:
                value = ir.Select(index.dtype, vector.condition, value, ir.const(0, index.dtype))
            named.append(ir.Let(var, value, span=work.loop.span))
            if reads_nothing(index):
                work.owner.analyzer.bind(var, index, index)
            indices[place] = var
    return named, replace(vector, indices=tuple(indices))


def _separated(work: ThreadLoop, index: ir.Expr) -> ir.Expr:
    """An index by the thread and its group of registers, where these then stand in no quotient or remainder together:
    what is the thread's part of an address is worked out once for all groups."""
    if not any(map(rounds, walk(index))):
        return index
    spread = substitute(index, work.coordinates)
    told = work.owner.analyzer.simplify(spread)
    return told if work.mixed(spread) > work.mixed(told) == 0 else index


def _load_piece(work: ThreadLoop, vector: Vector, first: int) -> ir.Statement:
    """Elements `first` and following of a group, where they are in bounds."""
    indices, lanes = vector.of_lane(first), vector.lanes
    buffer, places = work.owner.physical(vector.buffer, indices)
    dtype = vector.buffer.dtype.with_lanes(lanes)
    moved = ir.Store(vector.part, (ir.const(first),), ir.Load(dtype, buffer, places), span=work.loop.span)
    guard = _whole_guard(work, vector.buffer, indices, lanes)
    guard = guard_of([vector.condition, guard])
    if guard is None:
        return moved
    lane = ir.Var(INT32, "lane")
    outside = work.owner.is_outside(vector.buffer, indices)
    if not outside and _may_choose(work, vector):
        safe = ir.Broadcast(dtype, work.safe(vector.buffer))
        return replace(moved, value=ir.Select(dtype, guard, moved.value, safe))
    value = work.safe(vector.buffer) if outside else _at_the_edge(work, vector, first, lane)
    single = ir.Store(vector.part, (lane + first,), value, span=work.loop.span)
    rest = ir.counted(lane, lanes, ir.seq(single), "unroll", span=work.loop.span)
    if outside or _crosses_end(work, vector.buffer, indices, lanes):
        return rest
    return ir.If(guard, ir.seq(moved), ir.seq(rest), span=work.loop.span)


def _at_the_edge(work: ThreadLoop, vector: Vector, first: int, lane: ir.Var) -> ir.Expr:
    """Element `lane` of an access that is not in bounds as a whole."""
    buffer = vector.buffer
    if _ends_with_vectors(work, vector):
        return work.safe(buffer)
    indices = vector.of_lane(lane + first)
    made, places = work.owner.physical(buffer, indices)
    guard = _lane_guard(work, buffer, indices, lane, vector.lanes)
    return ir.Select(buffer.dtype, guard, ir.Load(buffer.dtype, made, places), work.safe(buffer))


def store(work: ThreadLoop, vector: Vector) -> list[ir.Statement]:
    """What takes a group's elements out of their registers."""
    named, own = _named(work, vector)
    alone = [*named, *(piece for first in own.starts() for piece in _store_piece(work, own, first))]
    return alone if vector.matrix is None else store_together(work, vector, alone)


def _store_piece(work: ThreadLoop, vector: Vector, first: int) -> list[ir.Statement]:
    indices, lanes = vector.of_lane(first), vector.lanes
    buffer, places = work.owner.physical(vector.buffer, indices)

    def moved(count: int, at: ir.Expr, to: ir.Buffer, places: tuple[ir.Expr, ...]) -> ir.Statement:
        if vector.adds:
            return _added(work, vector, count, at, to, places)
        value = ir.Load(vector.buffer.dtype.with_lanes(count), vector.part, (at,))
        return ir.Store(to, places, value, span=work.loop.span)

    whole = moved(lanes, ir.const(first), buffer, places)
    guard = _whole_guard(work, vector.buffer, indices, lanes)
    if guard is None and vector.aligned:
        return [whole]
    if work.owner.is_outside(vector.buffer, indices):
        return []
    if guard is not None and _ends_with_vectors(work, vector) and vector.aligned:
        return [ir.If(guard, ir.seq(whole), span=work.loop.span)]
    # A row ends with a byte: what follows the last of its elements in there is nobody's.
    step = vector.buffer.dtype.per_byte
    lane = ir.Var(INT32, "lane")
    at = lane * step + first
    made, places = work.owner.physical(vector.buffer, vector.of_lane(at))
    inside = _lane_guard(work, vector.buffer, vector.of_lane(at), lane, lanes // step)
    body = ir.seq(ir.If(inside, ir.seq(moved(step, at, made, places)), span=work.loop.span))
    rest = ir.counted(lane, lanes // step, body, "unroll", span=work.loop.span)
    if guard is None or not vector.aligned or _crosses_end(work, vector.buffer, indices, lanes):
        return [rest]
    return [ir.If(guard, ir.seq(whole), ir.seq(rest), span=work.loop.span)]


def _added(
    work: ThreadLoop, vector: Vector, count: int, at: ir.Expr, to: ir.Buffer, places: tuple[ir.Expr, ...]
) -> ir.Statement:
    """One atomic access, or one of a single element."""
    if count > 1:
        target = ir.Region(to, places, (*(1,) * (len(places) - 1), count))
        part = ir.Region(vector.part, (at,), (count,))
        return perform("atomic_add_fragment", target, part, span=work.loop.span)
    value = ir.Load(vector.buffer.dtype, vector.part, (at,))
    single = ir.Region(to, places, (1,) * len(places))
    return ir.Evaluate(ir.Call(value.dtype, "atomic_add", (single, value, "relaxed")), span=work.loop.span)


def _crosses_end(work: ThreadLoop, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], lanes: int) -> bool:
    """Whether an access that begins in bounds certainly ends out of them."""
    with work.owner.analyzer.scope():
        work.owner.analyzer.assume(work.owner.guard(buffer, indices) or ir.const(True))
        return work.owner.is_outside(buffer, (*indices[:-1], indices[-1] + (lanes - 1)))


def _whole_guard(work: ThreadLoop, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], lanes: int) -> ir.Expr | None:
    """The condition under which all elements of an access are in bounds; None where they always are."""
    guard = work.owner.guard(buffer, indices)
    if work.owner.analyzer.divides(buffer.shape[-1], lanes) and work.owner.analyzer.divides(indices[-1], lanes):
        return guard  # a row ends with a vector
    last = indices[-1] + (lanes - 1)
    with work.owner.analyzer.scope():
        if guard is not None:
            work.owner.analyzer.assume(guard)
        ends = work.owner.guard(buffer, (*indices[:-1], last))
    return guard_of([guard, ends])


def _lane_guard(work: ThreadLoop, buffer: ir.Buffer, indices: Sequence[ir.Expr], lane: ir.Var, count: int) -> ir.Expr:
    with work.owner.analyzer.scope():
        work.owner.analyzer.bind_extent(lane, count)
        return work.owner.guard(buffer, indices) or ir.const(True)


def _ends_with_vectors(work: ThreadLoop, vector: Vector) -> bool:
    """Whether an access whose first element is in bounds is so as a whole."""
    buffer = vector.buffer
    return buffer.scope != "global" or work.owner.analyzer.divides(buffer.shape[-1], vector.lanes)
