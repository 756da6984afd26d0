"""Sums of a parallel loop's iterations in elements that several of them share: what each one adds is reduced."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright import ops
from tilewright.interpreter.iterations import told_apart
from tilewright.interpreter.over_threads import may_hold
from tilewright.ir import INT32, find, key, put, root, substitute
from tilewright.ir import nodes as ir
from tilewright.ir import variables as variables_in
from tilewright.language.collisions import OF_THE_BLOCK, conditional, is_of_another, iterations_of
from tilewright.language.reducers import OPERATIONS, neutral
from tilewright.ops.atomic import atomic_call
from tilewright.ops.base import zero

KINDS = {operation: kind for kind, operation in OPERATIONS.items()}
"""The reduction of each operation between what was there and what is added."""

MOST_OF_A_THREAD = 128
"""What iterations add is kept for a reduction while a thread has no more than that many of them."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A store by which several iterations change one element by what it was.

    Attributes
    ----------
    operation : between what was there and `added`, in their dtype.
    place : of the element, by the loop's variables and what is there before the loop.
    along : the axes of the loop that do not move it.
    stored : the element's new value from the result of the operation.
    """

    store: ir.Store
    operation: str
    added: ir.Expr
    place: ir.Region
    along: tuple[int, ...]
    stored: Callable[[ir.Expr], ir.Expr]


def reduced(loop: ir.Parallel, threads: int) -> list[ir.Statement]:
    """A loop as statements in which no iteration adds to an element to which another one of the loop adds.

    What iterations add is reduced as a tile. Without known extents, for products, and where the tile would be large,
    the variables that do not move the element become serial loops inside.
    """
    sums = list(_sums(loop))
    if not sums:
        return [loop]
    extents = ir.known(loop.extents)
    size = math.inf if extents is None else math.prod(extents)
    if any(one.along for one in sums) and (
        size > MOST_OF_A_THREAD * threads or any(one.operation not in KINDS for one in sums)
    ):
        return [loop] if len({one.along for one in sums}) > 1 else [_in_order(loop, sums[0].along)]
    before, behind = list[ir.Statement](), list[ir.Statement]()
    places = dict[ir.Statement, ir.Statement]()
    for one in sums:
        if not one.along:
            places[one.store] = _atomically(one, one.place, one.added)
            continue
        each = ir.Buffer(f"{one.store.buffer.name}_each", loop.extents, one.added.dtype, "fragment")
        old = ir.load(each, *loop.vars)
        everywhere = one.store in loop.body.statements
        before.append(ir.Allocate(each, span=loop.span))
        if not everywhere:
            before.append(ops.Fill(ir.whole(each), _unchanged(one.operation, each.dtype), span=loop.span))
        value = one.added if everywhere else ir.binary(one.operation, old, one.added)
        places[one.store] = ir.Store(each, loop.vars, value, span=one.store.span)
        behind += _folded(one, each, loop)
    return [*before, replace(loop, body=put(loop.body, places)), *behind]


def _folded(one: Sum, each: ir.Buffer, loop: ir.Parallel) -> list[ir.Statement]:
    """The reduction of what iterations add, and the elements with it."""
    made, span = list[ir.Statement](), one.store.span
    for axis in one.along:
        shape = (*each.shape[:axis], 1, *each.shape[axis + 1 :])
        all_ = ir.Buffer(f"{one.store.buffer.name}_all", shape, each.dtype, "fragment")
        made.append(ir.Allocate(all_, span=span))
        made.append(ops.Reduce(ir.whole(each), ir.whole(all_), KINDS[one.operation], axis, span=span))
        each = all_
    vars = tuple(ir.Var(var.dtype, var.name) for var in loop.vars)
    total = ir.load(each, *(ir.const(0) if axis in one.along else var for axis, var in enumerate(vars)))
    place = substitute(one.place, dict(zip(loop.vars, vars)))
    if told_apart(place.starts, [var for axis, var in enumerate(vars) if axis not in one.along]):
        was = ir.cast(ir.load(place.buffer, *place.starts), total.dtype)
        value = one.stored(ir.binary(one.operation, was, total))
        body: ir.Statement = ir.Store(place.buffer, place.starts, value, span=span)
    else:  # places that numbers decide may be those of several
        body = _atomically(one, place, total)
    made.append(ir.Parallel(vars, each.shape, ir.seq(body), span=span))
    return made


def _atomically(one: Sum, place: ir.Region, value: ir.Expr) -> ir.Statement:
    call = atomic_call(one.operation, place, place.starts, ir.cast(value, place.dtype), "relaxed")
    return ir.Evaluate(call, span=one.store.span)


def _in_order(loop: ir.Parallel, along: Sequence[int]) -> ir.Parallel:
    """The loop with some of its variables as serial loops inside."""
    body, kept = loop.body, [axis for axis in range(len(loop.vars)) if axis not in along]
    for axis in reversed(along):
        stop = ir.cast(ir.expr(loop.extents[axis]), loop.vars[axis].dtype)
        zero, one = ir.const(0, stop.dtype), ir.const(1, stop.dtype)
        body = ir.seq(ir.For(loop.vars[axis], zero, stop, one, body, span=loop.span))
    pairs = [(loop.vars[axis], loop.extents[axis]) for axis in kept] or [(ir.Var(INT32, "one"), 1)]
    return replace(loop, vars=tuple(var for var, _ in pairs), extents=tuple(size for _, size in pairs), body=body)


def _sums(loop: ir.Parallel) -> Iterator[Sum]:
    """The loop's sums, but for elements of buffers that it reads or changes in another way besides."""
    found = [one for pair in conditional(loop.body, ()) if (one := _sum(loop, *pair)) is not None]
    for one in found:
        buffer = one.store.buffer
        alike = [
            other.store
            for other in found
            if root(other.store.buffer) is root(buffer) and other.operation == one.operation
        ]
        if _uses(loop.body, buffer) == sum(_uses(store, buffer) for store in alike) and not any(
            _uses(other.added, buffer) for other in found
        ):
            yield one


def _uses(node: object, buffer: ir.Buffer) -> int:
    return sum(root(one.buffer) is root(buffer) for one in find(node, ir.Load, ir.Store, ir.Region))


def _sum(loop: ir.Parallel, store: ir.Store, conditions: Sequence[ir.Expr]) -> Sum | None:
    if all(one.buffer is not store.buffer for one in find(store.value, ir.Load)):
        return None
    node, casts = store.value, list[ir.DType]()
    while isinstance(node, ir.Cast):
        casts, node = [node.dtype, *casts], node.value
    ways = ((way, found) for way in (*KINDS, "mul") if (found := _beside(node, way, store)))
    operation, added = next(ways, ("", None))
    place = ir.Region(store.buffer, store.indices, (1,) * len(store.indices))
    names = {one.var: one.value for one in find(loop.body, ir.Let)}
    while variables_in(place) & names.keys():
        place = substitute(place, names)
    changing = {root(one.buffer) for one in find(loop.body, ir.Allocate, ir.Store)}
    moved, inner = variables_in(place), {one.var for one in find(loop.body, ir.For)}
    known = not moved & inner and all(root(one.buffer) not in changing for one in find(place, ir.Load))
    if store.buffer.scope not in OF_THE_BLOCK or not added or not known or 0 in loop.extents:
        return None
    moving = [var for var, size in zip(loop.vars, loop.extents) if size != 1]
    along = tuple(axis for axis, var in enumerate(loop.vars) if var in moving and var not in moved)
    alike = operation in KINDS and store.buffer.scope != "fragment" and not casts
    if not along and (not alike or told_apart(store.indices, moving)):
        return None
    moved_by = replace(store, indices=tuple(var for var in loop.vars if var in moved)) if along else store
    come = _coming(loop, conditions)
    number = np.arange(come[loop.vars[0]].size)
    if number.size < 2 or not is_of_another(moved_by, moved_by, come, number):
        return None
    return Sum(
        store, operation, _total(operation, added), place, along, lambda value: functools.reduce(ir.cast, casts, value)
    )


def _total(operation: str, added: Sequence[ir.Expr]) -> ir.Expr:
    return functools.reduce(functools.partial(ir.binary, operation), added)


def _unchanged(operation: str, dtype: ir.DType) -> ir.Expr:
    return ir.const(1 if operation == "mul" else neutral(KINDS[operation], dtype), dtype)


def _beside(node: ir.Expr, operation: str, store: ir.Store) -> list[ir.Expr] | None:
    """What an element is combined with by one operation alone; None where it is no part of that."""
    bare = node
    while isinstance(bare, ir.Cast):
        bare = bare.value
    if isinstance(bare, ir.Load) and bare.buffer is store.buffer and key(bare.indices) == key(store.indices):
        return []
    if isinstance(node, ir.Select):
        found = [_beside(side, operation, store) for side in (node.then, node.otherwise)]
        if None in found:
            return None
        sides = [_total(operation, one or [_unchanged(operation, node.dtype)]) for one in found]
        return [ir.Select(node.dtype, node.condition, *sides)]
    if isinstance(node, ir.Binary) and node.op in (operation, "sub" if operation == "add" else operation):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            others = _beside(side, operation, store)
            if others is not None and (node.op == operation or side is node.left):
                return [*others, other if node.op == operation else ir.binary("sub", zero(other.dtype), other)]
    return None


def _coming(loop: ir.Parallel, conditions: Sequence[ir.Expr]) -> dict[ir.Var, np.ndarray]:
    """The iterations for which conditions may hold; a loop of unknown length has two."""
    extents = [2 if isinstance(size, ir.Expr) else size for size in loop.extents]
    iterations = iterations_of(loop.vars, extents, loop.body)
    held = [np.broadcast_to(may_hold(one, iterations), iterations[loop.vars[0]].shape) for one in conditions]
    return {var: line[np.all(held, axis=0)] if held else line for var, line in iterations.items()}
