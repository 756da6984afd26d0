"""Why a copy cannot be made by the copy engine, by cp.async or by bulk copies: reasons in words, None where it can."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir.nodes import Buffer, Expr, Kernel, Load, Region, const, index_binary
from tilewright.ir.signature import root
from tilewright.ir.visitor import walk
from tilewright.layout.layout import Layout
from tilewright.layout.threads import shared_rows
from tilewright.ops.copy import Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.flatten_buffers import strides_of
from tilewright.passes.rows import conversion_misfit, is_plain_tensor, placed_misfit, row_misfit
from tilewright.passes.tile.copies.copy_ways import ENGINE, TMA, private_channels
from tilewright.passes.tile.copies.gathers import Gather, gather_bytes
from tilewright.passes.tile.copies.select_async_copies import CP_ASYNC, THREADS, asynchronous_copy, is_zero, piece_bytes
from tilewright.passes.tile.layouts.shared_places import bound_in
from tilewright.passes.tile.pipelines.tile_views import tile_span
from tilewright.passes.tile.words.widen_indices import is_long

MAXIMUM_RANK, MAXIMUM_ROW = 5, 256
"""Dimensions of a tensor that the copy engine reads, and elements of a box along each."""

ROW_BYTES = 16
"""Strides, rows and addresses are multiples of this."""

SLOT_BYTES = 128
"""Places in shared memory that the copy engine fills from a tensor's description are multiples of this."""


def thread_misfit(copy: Copy, kernel: Kernel, context: Context, analyzer: Analyzer) -> str | None:
    """Why threads cannot make a copy into a slot by cp.async; None where they can."""
    instruction = asynchronous_copy(context.arch)
    if instruction is None:
        return "the machine has none"
    if copy.prefer not in (None, *ENGINE, CP_ASYNC, THREADS):
        return f"the author asks for {copy.prefer}"
    if any(copy.destination.buffer in channel.buffers for channel in private_channels(kernel)):
        return "its slots are those of single warps"
    value = dict(kernel.safe_values).get(copy.source.buffer)
    if value is not None and not is_zero(value, copy.source.dtype):
        return "what is out of bounds is not zero"
    layout = dict(kernel.layouts).get(copy.destination.buffer)
    found = piece_bytes(copy, instruction, analyzer, layout if isinstance(layout, Layout) else None)
    return found if isinstance(found, str) else None


def gather_misfit(gather: Gather, kernel: Kernel, context: Context, analyzer: Analyzer) -> str | None:
    """Why threads cannot bring rows into a slot by cp.async; None where they can."""
    instruction = asynchronous_copy(context.arch)
    if instruction is None:
        return "the machine has none"
    if any(gather.tile in channel.buffers for channel in private_channels(kernel)):
        return "its slots are those of single warps"
    if any(node in kernel.thread_vars for node in walk(gather.loop)):
        return "it depends on the thread"
    value = dict(kernel.safe_values).get(root(gather.source.buffer))
    if value is not None and not is_zero(value, gather.source.dtype):
        return "what is out of bounds is not zero"
    layout = dict(kernel.layouts).get(gather.tile)
    found = gather_bytes(gather, instruction, analyzer, layout if isinstance(layout, Layout) else None)
    return found if isinstance(found, str) else None


def engine_misfit(copy: Copy, kernel: Kernel, context: Context, analyzer: Analyzer) -> str | None:
    """Why the copy engine cannot make a copy from global to shared memory; None where it can."""
    source, destination = copy.source, copy.destination
    if not context.arch.has("tma"):
        return f"{context.arch.name} has no copy engine"
    if copy.prefer not in (None, TMA):
        return f"the author asks for {copy.prefer}"
    if not is_plain_tensor(source.buffer):
        return f"{source.buffer.name} is no plain tensor in global memory"
    if root(source.buffer).placed:
        return placed_misfit(root(source.buffer))
    if source.buffer.source is not None and _depends_on_place(source.buffer, kernel):
        return f"the shape of {source.buffer.name} is known to single blocks alone"
    if any(buffer is root(source.buffer) for buffer, _ in kernel.safe_values):
        return f"{source.buffer.name} has a safe value, and the copy engine fills with zeros"
    converts = conversion_misfit(source.dtype, destination.dtype)
    if converts is not None:
        return converts
    for end in (source.buffer.shape[-1], source.starts[-1]):
        if not analyzer.divides(end, source.dtype.per_byte):
            return f"rows of {source.buffer.name} or of boxes may end within a byte"
    if any(isinstance(extent, int) and extent == 0 for extent in source.buffer.shape):
        return f"{source.buffer.name} is empty"
    if any(map(is_long, source.buffer.shape)):
        return f"coordinates of 32 bits do not reach all of {source.buffer.name}"
    if source.buffer.rank > MAXIMUM_RANK:
        return f"{source.buffer.name} has {source.buffer.rank} dimensions, and {MAXIMUM_RANK} are possible"
    reason = _shape_misfit(source, destination, kernel) or row_misfit(source.buffer, ROW_BYTES, analyzer)
    if reason is None and not lies_in_boxes(destination.buffer, kernel):
        reason = f"the author's layout of {destination.buffer.name} is none of its own"
    return reason


def store_misfit(copy: Copy, kernel: Kernel, context: Context, analyzer: Analyzer) -> str | None:
    """Why the copy engine cannot make a copy from shared to global memory; None where it can."""
    source, destination = copy.source, copy.destination
    tensor = destination.buffer
    mirrored = replace(copy, source=destination, destination=source)
    reason = engine_misfit(mirrored, replace(kernel, safe_values=()), context, analyzer)
    if reason is not None:
        return reason
    if not analyzer.divides(tensor.shape[-1], ROW_BYTES * 8 // tensor.dtype.stored_bits):
        return f"rows of {tensor.name} do not end at a multiple of {ROW_BYTES} bytes"
    if not all(analyzer.prove(index_binary("ge", start, 0)) for start in destination.starts):
        return "it may begin before the tensor does"
    return None


def _depends_on_place(view: Buffer, kernel: Kernel) -> bool:
    """Whether the shape of a view names what only the kernel knows, so that the host cannot describe it."""
    inside = bound_in(kernel.body) | {*kernel.block_vars, *kernel.thread_vars}
    return any(
        node in inside or isinstance(node, Load)
        for extent in view.shape
        if isinstance(extent, Expr)
        for node in walk(extent)
    )


def lies_in_boxes(tile: Buffer, kernel: Kernel) -> bool:
    """Whether a tile lies as the copy engine writes and matrix instructions read: row by row, or in swizzled spans.

    A tile without a layout of the author's will.
    """
    layout = next((layout for buffer, layout in kernel.layouts if buffer is tile), None)
    if layout is None:
        return True
    shape, bits = tile.static_shape, tile.dtype.stored_bits
    spans = [span for span in (128, 64, 32) if len(shape) > 1 and shape[-1] * bits // 8 % span == 0 and 128 % bits == 0]
    return any(layout == shared_rows(shape, bits, span) for span in (*spans, None))


def is_row_major(region: Region, kernel: Kernel) -> bool:
    """Whether the tile of a region lies row by row, as bytes are moved; an author's layout may say otherwise."""
    tile = root(region.buffer)
    layout = dict(kernel.layouts).get(tile)
    return layout is None or layout == shared_rows(tile.static_shape, tile.dtype.stored_bits, None)


def lies_in_one_piece(copy: Copy, analyzer: Analyzer) -> bool:
    """Whether a copy moves consecutive bytes between a tensor and a row-major tile, 16 at a time."""
    regions = (copy.source, copy.destination)
    pieces = [_piece(region) for region in regions]
    return pieces[0] is not None and pieces[0] == pieces[1] and all(_is_even(one, analyzer) for one in regions)


def _piece(region: Region) -> int | None:
    """Elements of a region that follow each other in row-major order; None where it lies in several pieces."""
    outer = next((axis for axis, extent in enumerate(region.extents) if extent != 1), region.buffer.rank)
    extents = [extent for extent in region.extents[outer:] if isinstance(extent, int)]
    whole = region.extents[outer + 1 :] == region.buffer.shape[outer + 1 :]
    return math.prod(extents) if whole and len(extents) == region.buffer.rank - outer else None


def _is_even(region: Region, analyzer: Analyzer) -> bool:
    """Whether a region in one piece begins and ends at multiples of 16 bytes."""
    buffer, piece = region.buffer, _piece(region)
    if buffer.strides is not None or buffer.packed or ROW_BYTES * 8 % buffer.dtype.stored_bits:
        return False
    if buffer.source is not None and not is_plain_tensor(buffer):
        return False
    if buffer.scope == "global" and max(root(buffer).alignment, root(buffer).dtype.nbytes(1)) % ROW_BYTES:
        return False
    unit = ROW_BYTES * 8 // buffer.dtype.stored_bits
    offset: Expr = const(0)
    for start, stride in zip(region.starts, strides_of(buffer), strict=True):
        offset = index_binary("add", offset, index_binary("mul", start, stride))
    return piece is not None and piece % unit == 0 and analyzer.divides(offset, unit)


def is_run(region: Region, analyzer: Analyzer) -> bool:
    """Whether a region is a part of one row, which starts and ends at multiples of 16 bytes of it."""
    unit = ROW_BYTES * 8 // region.dtype.stored_bits if ROW_BYTES * 8 % region.dtype.stored_bits == 0 else 0
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


def stays_inside(region: Region, analyzer: Analyzer) -> bool:
    """Whether no element of a region is out of bounds."""
    return all(
        analyzer.prove(index_binary("le", index_binary("add", start, extent), size))
        and analyzer.prove(index_binary("ge", start, 0))
        for start, extent, size in zip(region.starts, region.extents, region.buffer.shape, strict=True)
    )


def _shape_misfit(source: Region, destination: Region, kernel: Kernel) -> str | None:
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
    if row_bytes % ROW_BYTES:
        return f"rows of {row_bytes} bytes are no multiple of {ROW_BYTES}"
    slot_bytes = row_bytes * tile.static_shape[-2]
    if math.prod(tile.static_shape[:-2]) > 1 and slot_bytes % SLOT_BYTES:
        return f"tiles of {slot_bytes} bytes follow each other, and the copy engine begins at multiples of {SLOT_BYTES}"
    if columns // tile.dtype.per_byte > MAXIMUM_ROW and tile_span(tile, kernel) is None:
        return f"rows of {columns} elements do not divide into boxes"
    return None


def longer(region: Region) -> list[Any]:
    """Extents of a region but its last, without those of 1."""
    return [extent for extent in region.extents[:-1] if extent != 1]
