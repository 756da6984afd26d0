"""The two operands of a copy: each says how large the other is where that does not say it itself."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import nodes as ir
from tilewright.language.buffers import RegionProxy, borrow_extents, region_of
from tilewright.language.proxies import Element


def pair(source: object, destination: object, what: str) -> tuple[ir.Region, ir.Region]:
    """Two operands as regions; where one is an element, it is the head of a region as large as the other; of a slice
    that is larger than the tile, it is the slice's head."""
    if isinstance(source, Element) and not isinstance(destination, Element):
        to = region_of(destination, f"the destination of {what}")
        return borrow_extents(source, to), to
    if isinstance(destination, Element) and not isinstance(source, Element):
        from_ = region_of(source, f"the source of {what}")
        return from_, borrow_extents(destination, from_)
    from_, to = region_of(source, f"the source of {what}"), region_of(destination, f"the destination of {what}")
    return (
        _head(from_, to) if isinstance(source, RegionProxy) else from_,
        _head(to, from_) if isinstance(destination, RegionProxy) else to,
    )


def _head(part: ir.Region, whole: ir.Region) -> ir.Region:
    """As much of a slice, from its start on, as the whole tile beside it has, where the slice is larger or ends at the
    tensor's end; ends that are numbers of the program stay."""
    shape = ir.known(whole.tile_shape)
    is_tile = whole.buffer.scope != "global" and whole.extents == whole.buffer.shape
    if not is_tile or shape is None or len(part.tile_shape) != len(shape):
        return part
    left, extents = iter(shape), list[ir.Extent]()
    for start, extent, end in zip(part.starts, part.extents, part.buffer.shape):
        if ir.is_literal(extent, 1):
            extents.append(extent)
            continue
        wanted = next(left)
        if isinstance(extent, int) and extent < wanted:
            stop = start.value + extent if isinstance(start, ir.Const) else None
            if stop != end or part.buffer.scope != "global":
                return part
        extents.append(wanted if isinstance(extent, int) else extent)
    return replace(part, extents=tuple(extents))
