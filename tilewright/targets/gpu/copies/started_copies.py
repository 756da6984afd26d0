"""Copies from tensors into shared memory that threads start, piece by piece: what machines have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import Span
from tilewright.ir import Evaluate, Expr, Region, const, perform
from tilewright.layout.layout import Layout
from tilewright.machine.instructions import AsyncCopy
from tilewright.ops import Copy, kept_axes
from tilewright.passes.lower.block_view import BlockView
from tilewright.passes.tile.copies.pieces import piece_bytes


def piece_width(copy: Copy, instruction: AsyncCopy, block: BlockView, layout: Layout | None) -> int:
    """Elements of a piece of a copy that was chosen to be asynchronous."""
    size = piece_bytes(copy, instruction, block.analyzer, layout)
    assert isinstance(size, int), size
    return size * 8 // copy.source.dtype.stored_bits


def wait(left: int) -> Evaluate:
    """Waits until so many are under way."""
    return perform("async_copy_wait", const(left))


def start(
    place: Region, source: Region, valid: Expr | None, span: Span | None, hints: str = "", *hinted: Expr | str
) -> Evaluate:
    """Starts a piece, zeros but for its `valid` first bytes; all are valid where None.

    Parameters
    ----------
    hints : behind the function's name, where it takes something more.
    """
    function = f"async_copy{hints}" if valid is None else f"async_copy_zfill{hints}"
    arguments = (place, source) if valid is None else (place, source, valid)
    return perform(function, *arguments, *hinted, span=span)


def place_of(to: Region, block: BlockView, offsets: Sequence[Expr], width: int) -> Region:
    """Where in memory the piece of `width` elements lies that begins at `offsets` of a tile."""
    place = block.shared(to, spread_out(to, offsets))
    return Region(place.buffer, place.starts, (*place.extents[:-1], width))


def source_of(origin: Region, block: BlockView, offsets: Sequence[Expr], width: int) -> tuple[Region, Expr | None]:
    """The piece of a tensor that begins at `offsets` of a region, and the condition under which its first element is in
    bounds; None where it always is."""
    starts = zip(block.visited(origin.starts), spread_out(origin, offsets), strict=True)
    indices = tuple(block.simplify(start + offset) for start, offset in starts)
    source = Region(origin.buffer, indices, (*(1,) * (len(indices) - 1), width))
    return source, block.guard(origin.buffer, indices)


def spread_out(region: Region, offsets: Sequence[Expr]) -> list[Expr]:
    """Offsets of a tile as offsets in each dimension of a region."""
    axes = kept_axes(region, len(offsets))
    assert axes is not None
    full: list[Expr] = [const(0)] * len(region.extents)
    for axis, offset in zip(axes, offsets, strict=True):
        full[axis] = offset
    return full
