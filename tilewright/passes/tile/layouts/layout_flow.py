"""How layouts begin and go on: of a loop that is dealt to threads; from a fragment to the loop over it; from a source
to its reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tilewright.ir import find, flattened
from tilewright.ir import nodes as ir
from tilewright.layout import Digit, Layout, extent_of, holds, merged, permuted, reduced, split_at, spread
from tilewright.machine.arch import Arch
from tilewright.ops.reduce import Reduce

SHARED_VECTOR_BYTES = 16
"""The widest access to shared memory."""


@dataclass(frozen=True, slots=True)
class Access:
    """A fragment in a parallel loop: for each of its dimensions the loop's dimension that indexes it.

    A dimension that several variables count together, as in ``tile[i, j * 64 + k]``, is one of several parts: ``tile``
    is as if it had a dimension for each of them. Neighbouring iterations may share an element, as in
    ``codes[i, j // 2]``: then the loop is as if `j` were two dimensions.

    Attributes
    ----------
    axes : for each part, the most significant one of a dimension first, the loop's dimension; None for a constant. None
        where the index is not made of loop variables so.
    parts : for each dimension the extents of its parts.
    constants : for each part the constant, 0 where a variable counts it.
    sharing : for each part how many neighbouring iterations along its dimension of the loop share an element.
    """

    buffer: ir.Buffer
    axes: tuple[int | None, ...] | None
    parts: tuple[tuple[int, ...], ...]
    constants: tuple[int, ...]
    sharing: tuple[int, ...]
    statement: ir.Statement

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

    def counted(self, loop: Layout) -> Layout | None:
        """The loop's layout with a dimension of its own, behind the others, for iterations that share an element."""
        dimensions = list(loop.digits)
        for axis, shared in zip(self.axes or (), self.sharing, strict=True):
            if axis is None or shared == 1:
                continue
            cut = split_at(dimensions[axis], shared)
            if cut is None:
                return None
            dimensions[axis] = cut[1]
            dimensions.append(cut[0])
        return loop if len(dimensions) == loop.rank else replace(loop, digits=tuple(dimensions))

    def is_held(self, owner: Layout, reader: Layout) -> bool:
        """Whether the threads of a loop's layout hold what they access of a fragment with a layout."""
        if self.axes is None:
            return False
        seen, counted = self.apart(owner), self.counted(reader)
        return seen is not None and counted is not None and holds(seen, counted, self.axes)


def has_copies(layout: Layout) -> bool:
    """Whether several threads have the same elements."""
    return any(one.place == "thread" and one.extent > 1 for one in layout.replicas)


def is_in_all(layout: Layout) -> bool:
    """Whether every thread has the whole of a tile in one register."""
    return all(one.extent == 1 for dimension in layout.digits for one in dimension)


def accesses_of(loop: ir.Parallel) -> Iterator[Access]:
    """Fragments that a loop's body touches."""
    for node in find(loop.body, ir.Load, ir.Store, ir.Region):
        if node.buffer.scope == "fragment":
            indices = node.starts if isinstance(node, ir.Region) else node.indices
            access = access_of(node.buffer, indices, loop, node if isinstance(node, ir.Store) else loop)
            # Of iterations that share an element the one that writes it may be another thread's than some that hold it.
            written = not isinstance(node, ir.Load) and any(shared > 1 for shared in access.sharing)
            yield replace(access, axes=None) if written else access


def access_of(buffer: ir.Buffer, indices: Sequence[ir.Expr], loop: ir.Parallel, where: ir.Statement) -> Access:
    """The access of a loop to an element of a fragment."""
    shape = buffer.static_shape
    dimensions = [_parts(index, extent, loop) for index, extent in zip(indices, shape, strict=True)]
    flat = [part for parts in dimensions if parts is not None for part in parts]
    used = [part.axis for part in flat if part.axis is not None]
    if None in dimensions or len(set(used)) < len(used):
        return Access(buffer, None, tuple((extent,) for extent in shape), (), (), where)
    axes, parts = tuple(part.axis for part in flat), tuple(tuple(p.extent for p in parts or ()) for parts in dimensions)
    return Access(buffer, axes, parts, tuple(p.constant for p in flat), tuple(p.sharing for p in flat), where)


class _Part(NamedTuple):
    axis: int | None
    extent: int
    constant: int = 0
    sharing: int = 1


def _parts(index: ir.Expr, extent: int, loop: ir.Parallel) -> list[_Part] | None:
    """The loop's dimensions that count a dimension of a fragment, and how far; None where they do not."""
    if isinstance(index, ir.Const):
        return [_Part(None, extent, int(index.value))] if 0 <= index.value < extent else None
    steps = _steps(index)
    if steps is None:
        return None
    offset = steps.pop(None, 0)
    parts: list[_Part] = []
    covered = 1
    for counter, step in sorted(steps.items(), key=lambda one: one[1]):
        var, sharing = counter or (None, 1)
        axis = loop.vars.index(var) if var in loop.vars else None
        count = loop.extents[axis] if axis is not None else None
        if step != covered or not isinstance(count, int) or count % sharing:
            return None
        parts.insert(0, _Part(axis, count // sharing, 0, sharing))
        covered *= count // sharing
    if offset:
        inside = 0 < offset < extent and offset % covered == extent % covered == 0
        return [_Part(None, extent // covered, offset // covered), *parts] if inside else None
    first, *others = parts
    below = covered // max(first.extent, 1)
    fits = extent % below == 0 and (not others or covered <= extent)
    return [first._replace(extent=extent // below), *others] if fits else None


_Counter = tuple[ir.Var, int]
"""A variable, and how many of its values count one step."""


def _steps(index: ir.Expr) -> dict[_Counter | None, int] | None:
    """Counters with what an index grows by with each, and under None a constant; None where it is no such sum."""
    if isinstance(index, ir.Const):
        return {None: int(index.value)}
    if isinstance(index, ir.Var):
        return {(index, 1): 1}
    if not isinstance(index, ir.Binary) or index.op not in ("add", "mul", "floordiv"):
        return None
    if index.op == "floordiv":
        value, by = index.left, index.right
        return (
            {(value, int(by.value)): 1}
            if isinstance(value, ir.Var) and isinstance(by, ir.Const) and by.value > 0
            else None
        )
    if index.op == "mul":
        value, by = (index.right, index.left) if isinstance(index.left, ir.Const) else (index.left, index.right)
        steps = _steps(value) if isinstance(by, ir.Const) else None
        return (
            {one: step * int(by.value) for one, step in steps.items()} if steps and isinstance(by, ir.Const) else None
        )
    left, right = _steps(index.left), _steps(index.right)
    return {**left, **right} if left and right and not left.keys() & right.keys() else None


def reduced_layout(reduction: Reduce, source: Layout) -> Layout:
    """The layout of a reduction's result, from that of its source."""
    rank = reduction.destination.buffer.rank
    left = reduced(source, reduction.axis, keep=rank == source.rank)
    return left if left.rank else permuted(left, (None,) * rank)


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


def overwrites(loop: ir.Parallel, buffer: ir.Buffer) -> bool:
    """Whether the loop stores to every element of a tile."""
    if not all(isinstance(extent, int) for extent in buffer.shape):
        return False
    for statement in loop.body.statements:
        if isinstance(statement, ir.Store) and statement.buffer is buffer:
            access = access_of(buffer, statement.indices, loop, statement)
            counted = [1 if axis is None else loop.extents[axis] for axis in access.axes or ()]
            alone = all(shared == 1 for shared in access.sharing)
            if access.axes is not None and alone and tuple(counted) == access.extents:
                return True
    return False


def filled_first(body: ir.Seq, buffer: ir.Buffer) -> bool:
    """Whether the first statement that touches a fragment, of the sequence that declares it, overwrites the whole of
    it."""
    within = next((one for one in find(body, ir.Seq) if any(_declares(part, buffer) for part in one.statements)), None)
    if within is None:
        return False
    for statement in flattened(within):
        if isinstance(statement, ir.Parallel) and overwrites(statement, buffer):
            return True
        if isinstance(statement, ir.TileOperator) and statement.overwrites(buffer):
            return True
        if not _declares(statement, buffer) and any(one is buffer for one in find(statement, ir.Buffer)):
            return False
    return False


def _declares(statement: ir.Statement, buffer: ir.Buffer) -> bool:
    return isinstance(statement, ir.Allocate) and statement.buffer is buffer


def coalesced_layout(loop: ir.Parallel, shape: tuple[int, ...], threads: int, arch: Arch) -> Layout:
    """The layout of a loop that no fragment determines: a thread has as many neighbours as one access moves."""
    buffers = [node.buffer for node in find(loop.body, ir.Load, ir.Store)]
    width = loop.coalesced_width or access_width(buffers, arch)
    share = math.prod(shape) // threads
    least = _whole_bytes(loop)
    width = max(min(width, 1 << max(share, 1).bit_length() - 1), least)
    layout = spread(shape, threads, width, least)
    for axis, extent in enumerate(shape):
        if extent == 1 and layout.shape[axis] > 1:
            # Who is left over has a copy: fragments need not be indexed by it.
            layout = reduced(layout, axis, keep=True)
    return layout


def access_width(buffers: Sequence[ir.Buffer], arch: Arch) -> int:
    """Elements of the narrowest type that one access moves: the widest one where all are to global memory."""
    scopes = {buffer.scope for buffer in buffers}
    bits = [_access_bits(buffer) for buffer in buffers if buffer.scope in ("global", "shared")]
    widest = arch.vector_bytes if "global" in scopes and "shared" not in scopes else SHARED_VECTOR_BYTES
    return widest * 8 // min(bits, default=32)


def _access_bits(buffer: ir.Buffer) -> int:
    """Bits of an element, but of the narrowest ones as many as keep a thread's share from filling its registers."""
    return 8 if buffer.dtype.kind == "bool" else max(buffer.dtype.bits, 4)


def _whole_bytes(loop: ir.Parallel) -> int:
    """Neighbours that a thread takes together, so that no other writes to the bytes that it writes to."""
    stored = [node.buffer for node in find(loop.body, ir.Store)]
    return max((one.dtype.per_byte for one in stored if one.scope in ("global", "shared")), default=1)
