"""Sums of a parallel loop's iterations in elements that several of them share: what each one adds is reduced."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright import ops
from tilewright.interpreter.iterations import told_apart
from tilewright.ir import INT32, find, key, put, root, substitute
from tilewright.ir import nodes as ir
from tilewright.ir import variables as variables_in
from tilewright.language.collisions import OF_THE_BLOCK, coming, conditional, is_of_another, spelled_out
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
    atomic : whether memory has an operation for it.
    stored : the element's new value from the result of the operation.
    """

    store: ir.Store
    operation: str
    added: ir.Expr
    place: ir.Region
    along: tuple[int, ...]
    atomic: bool
    stored: Callable[[ir.Expr], ir.Expr]


def reduced(loop: ir.Parallel, threads: int) -> list[ir.Statement]:
    """A loop as statements in which no iteration adds to an element to which another one of the loop adds.

    What iterations add is reduced as a tile. Without known extents, for products, and where the tile would be large,
    the variables that do not move the element become serial loops inside.
    """
    sums = list(_sums(loop))
    meeting = {one.store: _atomically(one, one.place, one.added) for one in sums if not one.along}
    if meeting:
        return reduced(replace(loop, body=put(loop.body, meeting)), threads)
    if not sums:
        return [loop]
    extents = ir.known(loop.extents)
    size = math.inf if extents is None else math.prod(extents)
    if size > MOST_OF_A_THREAD * threads or any(one.operation not in KINDS for one in sums):
        return [loop] if len({one.along for one in sums}) > 1 else reduced(_in_order(loop, sums[0].along), threads)
    before, behind = list[ir.Statement](), list[ir.Statement]()
    places = dict[ir.Statement, ir.Statement]()
    for one in sums:
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
    kept = [var for axis, var in enumerate(vars) if axis not in one.along]
    if not one.atomic or told_apart(place.starts, kept, loop.body):
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
    place = spelled_out(ir.Region(store.buffer, store.indices, (1,) * len(store.indices)), loop.body)
    changing = {root(one.buffer) for one in find(loop.body, ir.Allocate, ir.Store)}
    moved, inner = variables_in(place), {one.var for one in find(loop.body, ir.For)}
    known = not moved & inner and all(root(one.buffer) not in changing for one in find(place, ir.Load))
    if store.buffer.scope not in OF_THE_BLOCK or not added or 0 in loop.extents:
        return None
    moving = [var for var, size in zip(loop.vars, loop.extents) if size != 1]
    along = tuple(axis for axis, var in enumerate(loop.vars) if known and var in moving and var not in moved)
    total = _total(operation, added)
    atomic = operation in KINDS and _is_atomic(operation, place, [total.dtype, *casts])
    if not along and (not atomic or told_apart(place.starts, moving, loop.body)):
        return None
    moved_by = replace(store, indices=tuple(var for var in loop.vars if var in moved)) if along else store
    if not is_of_another(moved_by, moved_by, coming(loop, conditions), loop.body, unknown=True):
        return None
    return Sum(store, operation, total, place, along, atomic, lambda value: functools.reduce(ir.cast, casts, value))


def _is_atomic(operation: str, place: ir.Region, dtypes: Sequence[ir.DType]) -> bool:
    """Whether memory combines elements with numbers of the first of `dtypes`, with the others' roundings."""
    if any(ops.Atomic(place, ir.const(0), operation).check()) or any(one.bits < place.dtype.bits for one in dtypes):
        return False
    floats = {one.is_float for one in (place.dtype, *dtypes)}
    return floats == {True} or (operation == "add" and floats == {False}) or {*dtypes} == {place.dtype}


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
