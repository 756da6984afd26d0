"""Why the copy engine cannot make a copy, in boxes of a tensor or in one piece: reasons in words, None where it can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir import Buffer, Expr, Kernel, Load, Region, bound_variables, const, index_binary, root, walk
from tilewright.layout import CHUNK_BYTES, shared_rows
from tilewright.machine.instructions import CopyEngine
from tilewright.ops import TMA, Copy
from tilewright.passes import rows
from tilewright.passes.lower.flatten_buffers import strides_of
from tilewright.passes.rows import (
    box_unsupported,
    conversion_unsupported,
    is_plain_tensor,
    placed_unsupported,
    unproven_beginning,
)
from tilewright.passes.tile.copies.filled_tiles import Site
from tilewright.passes.tile.pipelines.tile_views import tile_span
from tilewright.passes.tile.words.widen_indices import is_long


def load_unsupported(copy: Copy, site: Site) -> str | None:
    """Why the copy engine cannot make a copy from global to shared memory; None where it can."""
    source, destination = copy.source, copy.destination
    kernel, analyzer, engine = site.kernel, site.analyzer, site.arch.copy_engine
    if engine is None:
        return f"{site.arch.name} has no copy engine"
    if copy.schedule.prefer not in (None, TMA):
        return f"the author asks for {copy.schedule.prefer}"
    if not is_plain_tensor(source.buffer):
        return f"{source.buffer.name} is no plain tensor in global memory"
    if root(source.buffer).placed:
        return placed_unsupported(root(source.buffer))
    if source.buffer.source is not None and _depends_on_place(source.buffer, kernel):
        return f"the shape of {source.buffer.name} is known to single blocks alone"
    if any(buffer is root(source.buffer) for buffer, _ in kernel.safe_values):
        return f"{source.buffer.name} has a safe value, and the copy engine fills with zeros"
    converts = conversion_unsupported(source.dtype, destination.dtype)
    if converts is not None:
        return converts
    for end in (source.buffer.shape[-1], source.starts[-1]):
        if not analyzer.divides(end, source.dtype.per_byte):
            return f"rows of {source.buffer.name} or of boxes may end within a byte"
    if any(isinstance(extent, int) and extent == 0 for extent in source.buffer.shape):
        return f"{source.buffer.name} is empty"
    if any(map(is_long, source.buffer.shape)):
        return f"coordinates of 32 bits do not reach all of {source.buffer.name}"
    if source.buffer.rank > engine.rank:
        return f"{source.buffer.name} has {source.buffer.rank} dimensions, and {engine.rank} are possible"
    reason = _shape_unsupported(source, destination, site, engine) or box_unsupported(source, engine.unit, analyzer)
    if reason is None and not has_box_layout(destination.buffer, kernel, site.arch.spans):
        reason = f"the author's layout of {destination.buffer.name} is none of its own"
    return reason


def store_unsupported(copy: Copy, site: Site) -> str | None:
    """Why the copy engine cannot make a copy from shared to global memory; None where it can."""
    source, destination = copy.source, copy.destination
    mirrored = replace(copy, source=destination, destination=source)
    reason = load_unsupported(mirrored, replace(site, kernel=replace(site.kernel, safe_values=())))
    engine = site.arch.copy_engine
    return reason if engine is None else reason or leaving_unsupported(destination, engine, site.analyzer)


def leaving_unsupported(region: Region, engine: CopyEngine, analyzer: Analyzer) -> str | None:
    """Why boxes that are stored to a region of a tensor may write beside it; None where they do not."""
    if not analyzer.divides(region.buffer.shape[-1], engine.unit * 8 // region.dtype.stored_bits):
        return f"rows of {region.buffer.name} do not end at a multiple of {engine.unit} bytes"
    if not all(analyzer.prove(index_binary("ge", start, 0)) for start in region.starts):
        return "it may begin before the tensor does"
    return None


def bulk_unsupported(copy: Copy, site: Site) -> str | None:
    """Why the engine cannot move bytes in one piece between a tensor and a tile that no gemm reads, so that it may be
    row-major."""
    tensor = copy.source if copy.source.buffer.scope == "global" else copy.destination
    engine = site.arch.copy_engine
    if engine is None:
        return f"{site.arch.name} has no copy engine"
    if tensor.buffer.scope != "global" or copy.schedule.multicast or copy.adds:
        return "it is no plain copy between a tensor and a tile"
    reason = placed_unsupported(tensor.buffer) or _bytes_unsupported(copy, tensor, site, engine.unit)
    if reason is None and unproven_beginning(tensor, site.analyzer, ()):
        return f"it may leave {tensor.buffer.name}"
    return reason


def passing_unsupported(copy: Copy, site: Site) -> str | None:
    """Why the engine cannot move a shared tile to one of another block of the cluster; None where it can."""
    engine = site.arch.copy_engine
    if engine is None or not site.arch.clusters:
        return f"{site.arch.name} has no clusters"
    return _bytes_unsupported(copy, None, site, engine.unit)


def _bytes_unsupported(copy: Copy, tensor: Region | None, site: Site, unit: int) -> str | None:
    """Why a copy does not move whole units of bytes in the order of rows, on both sides."""
    if copy.source.dtype != copy.destination.dtype:
        return f"it converts {copy.source.dtype} to {copy.destination.dtype}"
    if site.operands & {copy.source.buffer, copy.destination.buffer}:
        return "matrix instructions read one of the tiles, which is not row-major"
    if not _is_row_major(copy, site.kernel):
        return "the author's layout of one of the tiles is not row-major"
    if _is_row(copy, tensor, site, unit) or _is_contiguous_copy(copy, site.analyzer, unit):
        return None
    return f"its rows do not lie in one piece of whole units of {unit} bytes"


def _is_row(copy: Copy, tensor: Region | None, site: Site, unit: int) -> bool:
    """Whether both sides are parts of one row; a tensor's rows must start at whole units too."""
    aligned = tensor is None or rows.row_unsupported(tensor.buffer, unit, site.analyzer) is None
    return aligned and all(_is_run(region, site.analyzer, unit) for region in (copy.source, copy.destination))


def _is_row_major(copy: Copy, kernel: Kernel) -> bool:
    """Whether the tiles of a copy lie row by row, as bytes are moved; an author's layout may say otherwise."""
    layouts = dict(kernel.layouts)
    tiles = (root(one.buffer) for one in (copy.source, copy.destination) if one.buffer.scope == "shared")
    return all(
        layouts.get(tile) in (None, shared_rows(tile.static_shape, tile.dtype.stored_bits, None)) for tile in tiles
    )


def _depends_on_place(view: Buffer, kernel: Kernel) -> bool:
    """Whether the shape of a view names what only the kernel knows, so that the host cannot describe it."""
    inside = bound_variables(kernel)
    return any(
        node in inside or isinstance(node, Load)
        for extent in view.shape
        if isinstance(extent, Expr)
        for node in walk(extent)
    )


def has_box_layout(tile: Buffer, kernel: Kernel, spans: Sequence[int]) -> bool:
    """Whether a tile lies as the copy engine writes and matrix instructions read: row by row, or swizzled in spans.

    A tile without a layout of the author's will.
    """
    layout = next((layout for buffer, layout in kernel.layouts if buffer is tile), None)
    if layout is None:
        return True
    shape, bits = tile.static_shape, tile.dtype.stored_bits
    whole = len(shape) > 1 and CHUNK_BYTES * 8 % bits == 0
    fits = [span for span in spans if whole and shape[-1] * bits // 8 % span == 0]
    return any(layout == shared_rows(shape, bits, span) for span in (*fits, None))


def _is_contiguous_copy(copy: Copy, analyzer: Analyzer, unit: int) -> bool:
    """Whether a copy moves consecutive bytes between a tensor and a row-major tile, whole units of them."""
    regions = (copy.source, copy.destination)
    pieces = [_piece(region) for region in regions]
    return pieces[0] is not None and pieces[0] == pieces[1] and all(_is_even(one, analyzer, unit) for one in regions)


def _piece(region: Region) -> int | None:
    """Elements of a region that follow each other in row-major order; None where it lies in several pieces."""
    outer = next((axis for axis, extent in enumerate(region.extents) if extent != 1), region.buffer.rank)
    extents = [extent for extent in region.extents[outer:] if isinstance(extent, int)]
    whole = region.extents[outer + 1 :] == region.buffer.shape[outer + 1 :]
    return math.prod(extents) if whole and len(extents) == region.buffer.rank - outer else None


def _is_even(region: Region, analyzer: Analyzer, bytes_: int) -> bool:
    """Whether a region in one piece begins and ends at multiples of so many bytes."""
    buffer, piece = region.buffer, _piece(region)
    if buffer.strides is not None or buffer.packed or bytes_ * 8 % buffer.dtype.stored_bits:
        return False
    if buffer.source is not None and not is_plain_tensor(buffer):
        return False
    if buffer.scope == "global" and max(root(buffer).alignment, root(buffer).dtype.nbytes(1)) % bytes_:
        return False
    unit = bytes_ * 8 // buffer.dtype.stored_bits
    offset: Expr = const(0)
    for start, stride in zip(region.starts, strides_of(buffer), strict=True):
        offset = offset + start * stride
    return piece is not None and piece % unit == 0 and analyzer.divides(offset, unit)


def _is_run(region: Region, analyzer: Analyzer, bytes_: int) -> bool:
    """Whether a region is a part of one row, which starts and ends at multiples of so many bytes of it."""
    unit = bytes_ * 8 // region.dtype.stored_bits if bytes_ * 8 % region.dtype.stored_bits == 0 else 0
    whole = region.buffer.source is None or is_plain_tensor(region.buffer)
    alone = whole and all(extent == 1 for extent in region.extents[:-1])
    row = region.buffer.shape[-1]
    if (
        region.buffer.scope == "shared"
        and region.buffer.rank > 1
        and (not isinstance(row, int) or unit == 0 or row % unit)
    ):
        return False
    return alone and unit > 0 and all(analyzer.divides(one, unit) for one in (region.starts[-1], region.extents[-1]))


def _shape_unsupported(source: Region, destination: Region, site: Site, engine: CopyEngine) -> str | None:
    tile = destination.buffer
    inner = destination.extents[-2:]
    if tile.rank < 2 or any(have != want for have, want in zip(inner, tile.shape[-2:], strict=True)):
        return f"it fills a part of the rows of {tile.name}"
    if any(extent != 1 for extent in destination.extents[:-2]):
        return f"it fills several tiles of {tile.name}"
    if source.extents[-1] != destination.extents[-1] or longer(source) != longer(destination):
        return f"rows of the tile are no rows of {source.buffer.name}"
    columns = tile.static_shape[-1]
    row_bytes = tile.dtype.nbytes(columns)
    if row_bytes % engine.unit:
        return f"rows of {row_bytes} bytes are no multiple of {engine.unit}"
    slot_bytes = row_bytes * tile.static_shape[-2]
    if math.prod(tile.static_shape[:-2]) > 1 and slot_bytes % engine.place:
        return (
            f"tiles of {slot_bytes} bytes follow each other, and the copy engine begins at multiples of {engine.place}"
        )
    span = tile_span(tile, site.kernel, site.arch.spans)
    width = (
        columns // tile.dtype.per_byte if span is None else span * 8 // (tile.dtype.stored_bits * tile.dtype.per_byte)
    )
    if width > engine.box:
        return f"rows of {columns} elements do not divide into boxes of {engine.box}"
    return None


def longer(region: Region) -> list[Any]:
    """Extents of a region but its last, without those of 1."""
    return [extent for extent in region.extents[:-1] if extent != 1]
