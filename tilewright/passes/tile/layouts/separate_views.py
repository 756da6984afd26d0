"""On a machine with threads: a fragment seen in another shape becomes a fragment of its own while it is used so.

Before (``flat`` is a view of the fragment ``tile``)::

    reduce(source=flat, destination=total)

After::

    flat = fragment(float32[64])
    for i, j in parallel(8, 8):
        flat[i * 8 + j] = tile[i, j]
    reduce(source=flat, destination=total)

A fragment lies in the registers of many threads, so a view of it has no addresses to share: who holds element ``i``
of the one need not hold it of the other. The copies say so, and what has to change hands does through shared memory.
They run over the dimensions that both shapes are made of, so that the view may get the layout under which nothing does.
A view of the same shape and type is the fragment itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import TilewrightError
from tilewright.ir import Rewriter, find, root, substitute
from tilewright.ir import nodes as ir
from tilewright.ops.base import parallel
from tilewright.passes.context import Context
from tilewright.passes.tile.layouts.layout_flow import overwrites


class FragmentReinterpreted(TilewrightError):
    """A view of a fragment whose elements have another size, which lie in registers of several threads."""


def separate_views(function: ir.Function, context: Context) -> ir.Function:
    """Give every fragment that is a view of another registers of its own, filled where it is used.

    Raises
    ------
    FragmentReinterpreted : the view's elements have another size.
    """
    if not any(_is_view(node) for node in find(function.body, ir.Buffer)):
        return function
    return function.with_body(_Separate()(function.body))


def _is_view(buffer: ir.Buffer) -> bool:
    return buffer.source is not None and root(buffer).scope == "fragment"


class _Separate(Rewriter):
    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        return root(buffer) if _is_view(buffer) and _is_same(buffer) else buffer

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        accesses = list(find(loop.body, ir.Load, ir.Store))
        read = {node.buffer for node in accesses if isinstance(node, ir.Load)}
        written = {node.buffer for node in accesses if isinstance(node, ir.Store)}
        fresh = {buffer for buffer in written - read if overwrites(loop, buffer)}
        return self._separated(loop, read | written - fresh, written)

    def visit_TileOperator(self, operator: ir.TileOperator) -> ir.Statement:
        effects = operator.effects()
        read = {region.buffer for region in effects.reads}
        written = {region.buffer for region in effects.writes}
        partly = {region.buffer for region in effects.writes if not region.is_whole}
        return self._separated(operator, read | partly, written)

    def _separated(self, statement: ir.Statement, needed: set[ir.Buffer], written: set[ir.Buffer]) -> ir.Statement:
        """`statement` on fragments of its own for the views in it: filled where `needed`, copied back where
        `written`."""
        views = sorted((b for b in needed | written if _is_view(b) and not _is_same(b)), key=lambda view: view.name)
        if not views:
            return self.generic(statement)
        for view in views:
            _check(view, statement)
        own = {view: replace(view, source=None) for view in views}
        before: list[ir.Statement] = []
        for view in views:
            before.append(ir.Allocate(own[view], span=statement.span))
            if view in needed:
                before.append(_copied(view, own[view], statement, fill=True))
        after = [_copied(view, own[view], statement, fill=False) for view in views if view in written]
        return ir.seq(before, self.generic(substitute(statement, buffers=own)), after)


def _check(view: ir.Buffer, statement: ir.Statement) -> None:
    if view.dtype.bits != root(view).dtype.bits:
        raise FragmentReinterpreted(
            f"{view.name!r} sees the fragment {root(view).name!r} as elements of another size, "
            "which lie in registers of several threads",
            span=statement.span,
            hint="copy the fragment into a shared tile and take the view of that",
        )


def _is_same(view: ir.Buffer) -> bool:
    return view.shape == root(view).shape and view.dtype == root(view).dtype


def _copied(view: ir.Buffer, own: ir.Buffer, statement: ir.Statement, fill: bool) -> ir.Statement:
    """A loop that fills a view's own fragment from the one that it sees, or gives its elements back.

    Its dimensions are those that both are made of, where there are such: who holds an element of the one then may hold
    it of the other.
    """
    seen = root(view)
    common = _common(view.static_shape, seen.static_shape)

    def element(*index: ir.Expr) -> ir.Statement:
        flat = _flattened(index, common or view.static_shape)
        there = _unflattened(flat, seen.static_shape) if common is None else _counted(index, common, seen.static_shape)
        here = index if common is None else _counted(index, common, view.static_shape)
        if fill:
            return ir.Store(own, here, _as(ir.Load(seen.dtype, seen, there), own), span=statement.span)
        return ir.Store(seen, there, _as(ir.Load(own.dtype, own, here), seen), span=statement.span)

    return parallel(common or view.static_shape, element, span=statement.span)


def _common(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """The extents of which both shapes' extents are products, in order; None where there are none."""
    left, right = [extent for extent in one if extent != 1], [extent for extent in other if extent != 1]
    found: list[int] = []
    while left and right:
        a, b = left.pop(), right.pop()
        small, large = min(a, b), max(a, b)
        if small == 0 or large % small:
            return None
        found.insert(0, small)
        if large > small:
            (left if a > b else right).append(large // small)
    return None if left or right or not found else found


def _counted(index: Sequence[ir.Expr], extents: Sequence[int], shape: Sequence[int]) -> tuple[ir.Expr, ...]:
    """Places in a tile of `shape`, each dimension counted by the variables over those of `extents` that make it."""
    waiting = list(zip(index, extents, strict=True))
    places: list[ir.Expr] = []
    for extent in reversed(shape):
        place: ir.Expr | None = None
        covered = 1
        while covered < extent:
            var, count = waiting.pop()
            step = var * covered if covered > 1 else var
            place = step if place is None else step + place
            covered *= count
        places.insert(0, ir.const(0) if place is None else place)
    return tuple(places)


def _as(value: ir.Expr, buffer: ir.Buffer) -> ir.Expr:
    return value if value.dtype == buffer.dtype else ir.Reinterpret(buffer.dtype, value)


def _flattened(index: Sequence[ir.Expr], shape: Sequence[int]) -> ir.Expr:
    total: ir.Expr = ir.const(0)
    for one, extent in zip(index, shape, strict=True):
        total = total * extent + one
    return total


def _unflattened(flat: ir.Expr, shape: Sequence[int]) -> tuple[ir.Expr, ...]:
    found: list[ir.Expr] = []
    for extent in reversed(shape):
        found.append(flat % extent)
        flat = flat // extent
    return tuple(reversed(found))
