"""How a layout goes on: from a fragment to the loop over it, from a source to its reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.nodes import (
    Allocate,
    Binary,
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
from tilewright.layout.digits import Digit, extent_of, merged, split_at
from tilewright.layout.layout import Layout
from tilewright.layout.threads import holds, permuted, without
from tilewright.ops.reduce import Reduce


@dataclass(frozen=True, slots=True)
class Access:
    """A fragment in a parallel loop: for each of its dimensions the loop's dimension that indexes it.

    A dimension that several variables count together, as in ``tile[i, j * 64 + k]``, is one of several parts: ``tile`` is as if
    it had a dimension for each of them.

    Attributes
    ----------
    axes : for each part, the most significant one of a dimension first, the loop's dimension; None for a constant.  None where
        the index is not made of loop variables so.
    parts : for each dimension the extents of its parts.
    constants : for each part the constant, 0 where a variable counts it.
    """

    buffer: Buffer
    axes: tuple[int | None, ...] | None
    parts: tuple[tuple[int, ...], ...]
    constants: tuple[int, ...]
    statement: Statement

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the parts."""
        return tuple(extent for dimension in self.parts for extent in dimension)

    def apart(self, layout: Layout) -> Layout | None:
        """The fragment's layout with a dimension for each part; None where no digits say so."""
        if self.axes is None or all(len(dimension) == 1 for dimension in self.parts):
            return layout
        dimensions: list[tuple[Digit, ...]] = []
        for digits, extents in zip(layout.digits, self.parts, strict=True):
            found: list[tuple[Digit, ...]] = []
            for extent in reversed(extents[1:]):
                cut = split_at(digits, extent)
                if cut is None:
                    return None
                found.insert(0, cut[0])
                digits = cut[1]
            dimensions += [digits, *found]
        return replace(layout, digits=tuple(dimensions))

    def together(self, layout: Layout) -> Layout | None:
        """Inverse of `apart`; None where a part but the first of a dimension is padded, or the layout is too small."""
        if any(have < want for have, want in zip(layout.shape, self.extents, strict=True)):
            return None
        dimensions: list[tuple[Digit, ...]] = []
        at = 0
        for extents in self.parts:
            own = layout.digits[at : at + len(extents)]
            if any(extent_of(digits) != extent for digits, extent in zip(own[1:], extents[1:], strict=True)):
                return None
            dimensions.append(merged(one for digits in reversed(own) for one in digits))
            at += len(extents)
        return replace(layout, digits=tuple(dimensions))

    def is_held(self, owner: Layout, reader: Layout) -> bool:
        """Whether the threads of a loop's layout hold what they access of a fragment with a layout."""
        seen = self.apart(owner)
        return self.axes is not None and seen is not None and holds(seen, reader, self.axes)


def has_copies(layout: Layout) -> bool:
    """Whether several threads have the same elements."""
    return any(one.place == "thread" and one.extent > 1 for one in layout.replicas)


def is_in_all(layout: Layout) -> bool:
    """Whether every thread has the whole of a tile in one register."""
    return all(one.extent == 1 for dimension in layout.digits for one in dimension)


def accesses_of(loop: Parallel) -> Iterator[Access]:
    """Fragments that a loop's body touches."""
    for node in find(loop.body, Load, Store, Region):
        if node.buffer.scope == "fragment":
            indices = node.starts if isinstance(node, Region) else node.indices
            yield access_of(node.buffer, indices, loop, node if isinstance(node, Store) else loop)


def access_of(buffer: Buffer, indices: Sequence[Expr], loop: Parallel, where: Statement) -> Access:
    """The access of a loop to an element of a fragment."""
    shape = buffer.static_shape
    dimensions = [_parts(index, extent, loop) for index, extent in zip(indices, shape, strict=True)]
    flat = [part for parts in dimensions if parts is not None for part in parts]
    used = [axis for axis, _, _ in flat if axis is not None]
    if None in dimensions or len(set(used)) < len(used):
        return Access(buffer, None, tuple((extent,) for extent in shape), (), where)
    parts = tuple(tuple(extent for _, extent, _ in dimension or ()) for dimension in dimensions)
    return Access(buffer, tuple(axis for axis, _, _ in flat), parts, tuple(at for _, _, at in flat), where)


_Part = tuple[int | None, int, int]
"""The loop's dimension, the extent, the constant."""


def _parts(index: Expr, extent: int, loop: Parallel) -> list[_Part] | None:
    """The loop's dimensions that count a dimension of a fragment, and how far; None where they do not."""
    if isinstance(index, Const):
        return [(None, extent, int(index.value))] if 0 <= index.value < extent else None
    steps = _steps(index)
    if steps is None or any(var not in loop.vars for var in steps if var is not None):
        return None
    parts: list[_Part] = []
    offset = steps.pop(None, 0)
    covered = 1
    for var, step in sorted(steps.items(), key=lambda one: one[1]):
        axis = loop.vars.index(var)
        count = loop.extents[axis]
        if step != covered or not isinstance(count, int):
            return None
        parts.insert(0, (axis, count, 0))
        covered *= count
    if offset:
        inside = 0 < offset < extent and offset % covered == extent % covered == 0
        return [(None, extent // covered, offset // covered), *parts] if inside else None
    (first, count, _), *others = parts
    below = covered // max(count, 1)
    return [(first, extent // below, 0), *others] if extent % below == 0 and (not others or covered <= extent) else None


def _steps(index: Expr) -> dict[Var | None, int] | None:
    """Variables with what an index grows by with each of them, and under None a constant; None where it is no such sum."""
    if isinstance(index, Const):
        return {None: int(index.value)}
    if isinstance(index, Var):
        return {index: 1}
    if not isinstance(index, Binary) or index.op not in ("add", "mul"):
        return None
    if index.op == "mul":
        value, by = (index.right, index.left) if isinstance(index.left, Const) else (index.left, index.right)
        steps = _steps(value) if isinstance(by, Const) else None
        return {var: step * int(by.value) for var, step in steps.items()} if steps and isinstance(by, Const) else None
    left, right = _steps(index.left), _steps(index.right)
    return {**left, **right} if left and right and not left.keys() & right.keys() else None


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
    """Whether the loop stores to every element of a tile."""
    if not all(isinstance(extent, int) for extent in buffer.shape):
        return False
    for statement in loop.body.statements:
        if isinstance(statement, Store) and statement.buffer is buffer:
            access = access_of(buffer, statement.indices, loop, statement)
            counted = [1 if axis is None else loop.extents[axis] for axis in access.axes or ()]
            if access.axes is not None and tuple(counted) == access.extents:
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
