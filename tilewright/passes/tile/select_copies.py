"""Chooses how copies into the slots of a channel are made: by the copy engine, by cp.async, or by loads and stores.

Before::

    copy(source=A[k * 64 : +64, 0 : +32], destination=tiles[k % 4, :, :])

After, where rows lie in one piece and the tensor's strides are multiples of 16 bytes::

    copy(source=A[k * 64 : +64, 0 : +32], destination=tiles[k % 4, :, :], prefer="tma")

and where they are multiples of 4 bytes at least (the channel counts the copies' arrivals, so nothing waits for them)::

    copy(token="cp_async_slots", source=..., destination=..., prefer="cp_async")

The choice is made before layouts are inferred: any row-major or swizzled tile will do as destination.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.errors import NotAsynchronous
from tilewright.ir.nodes import (
    Buffer,
    Channel,
    Expr,
    Function,
    If,
    Kernel,
    Load,
    Parallel,
    Region,
    Role,
    const,
    index_binary,
)
from tilewright.ir.signature import root
from tilewright.ir.visitor import find, walk
from tilewright.layout.layout import Layout
from tilewright.layout.threads import shared_rows
from tilewright.machine.instructions import GLOBAL
from tilewright.ops.copy import Copy
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.context import Context
from tilewright.passes.lower.flatten_buffers import strides_of
from tilewright.passes.rows import conversion_misfit, is_plain_tensor, placed_misfit, row_misfit
from tilewright.passes.scoped import ScopedRewriter, negated
from tilewright.passes.tile.gathers import Gather, gather_bytes, gather_of
from tilewright.passes.tile.select_async_copies import CP_ASYNC, SYNC, THREADS, asynchronous_copy, is_zero, piece_bytes
from tilewright.passes.tile.shared_places import bound_in
from tilewright.passes.tile.tile_views import tile_span
from tilewright.passes.tile.widen_indices import is_long

TMA, BULK = "tma", "bulk"
"""What `Copy.prefer` says of a copy that the engine makes: boxes of a tensor, or bytes in one piece."""

ENGINE = (TMA, BULK)

QUADS = "quads"
"""What it says of a copy from global memory into the right operand of a matrix instruction that moves 16 bytes at once: four
lanes exchange words afterwards."""

QUAD_COLUMNS = 32
"""What the lanes of a quad read of a row at a time."""

SLOTS = f"{CP_ASYNC}_slots"
"""Token of copies whose arrivals a channel counts."""

MAXIMUM_RANK = 5
MAXIMUM_ROW = 256
ROW_BYTES = 16
"""Strides, rows and addresses are multiples of this."""


def select_copies(function: Function, context: Context) -> Function:
    """Write into every copy whether the copy engine makes it."""
    body = _Select(function, context)(function.body)
    return function if body is function.body else function.with_body(body)


def slot_buffers(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers of all channels of a kernel."""
    return frozenset(buffer for node in find(kernel, Channel) for buffer in node.buffers)


def private_channels(kernel: Kernel) -> list[Channel]:
    """Channels whose slots are those of single warps."""
    return [node for node in find(kernel, Channel) if node.is_private]


def is_by_hand(copy: Copy) -> bool:
    """Whether the author gives a copy to the engine (`T.tma_copy`): a load with a barrier, or a store with a token."""
    return copy.barrier is not None or (copy.prefer in ENGINE and copy.token is not None)


def tiles_by_hand(kernel: Kernel) -> frozenset[Buffer]:
    """Shared tiles that the author has the copy engine fill or empty."""
    copies = [node for node in find(kernel.body, Copy) if is_by_hand(node)]
    return frozenset(
        region.buffer for copy in copies for region in (copy.source, copy.destination) if region.buffer.scope == "shared"
    )  # fmt: skip


def by_bytes(kernel: Kernel) -> frozenset[Buffer]:
    """Tiles that the copy engine fills or empties with bytes in one piece: they are row-major."""
    copies = [
        *channel_copies(kernel),
        *(node for node in find(kernel.body, Copy) if is_by_hand(node)),
    ]
    found = {region.buffer for copy in copies if copy.prefer == BULK for region in (copy.source, copy.destination)}
    return frozenset(buffer for buffer in found if buffer.scope == "shared")


def channel_copies(kernel: Kernel) -> list[Copy]:
    """Copies that a role makes into the buffers of a channel."""
    slots = slot_buffers(kernel)
    roles = list(find(kernel, Role)) if slots else []
    copies = [node for role in roles for node in find(role, Copy)]
    return [copy for copy in copies if copy.destination.buffer in slots]


class _Select(ScopedRewriter):
    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = context

    def visit_Kernel(self, kernel: Kernel) -> Any:
        self.kernel, self.into_slots = kernel, set(channel_copies(kernel))
        self.slots = slot_buffers(kernel)
        gemms = list(find(kernel, Product))
        self.operands = {region.buffer for gemm in gemms for region in (gemm.a, gemm.b)}
        self.transposed = {
            gemm.b.buffer for gemm in gemms
            if gemm.transpose_b and gemm.b.buffer.scope == "fragment" and gemm.b.buffer.rank == 2
        }  # fmt: skip
        return super().visit_Kernel(kernel)

    def visit_If(self, branch: If) -> Any:
        """What never runs is dropped: under a condition that cannot hold nothing can be proved of a copy."""
        if self.analyzer.prove(negated(branch.condition)):
            return None if branch.otherwise is None else self(branch.otherwise)
        return super().visit_If(branch)

    def visit_Copy(self, copy: Copy) -> Copy:
        if is_by_hand(copy):
            return self._by_hand(copy)
        if copy.prefer in (None, QUADS) and self._is_by_quads(copy):
            return replace(copy, prefer=QUADS)
        if copy in self.into_slots and copy.source.buffer.scope == GLOBAL:
            return self._into_slot(copy)
        if copy.prefer in ENGINE:
            self._refused(copy, "it fills no slot of a channel")
            return replace(copy, prefer=None)
        return copy

    def visit_Parallel(self, loop: Parallel) -> Any:
        """A loop that brings rows into a slot: what no region says, threads move by cp.async."""
        gather = gather_of(loop)
        if gather is None or loop.token is not None or gather.tile not in self.slots:
            return loop
        place = f"{loop.span.file}:{loop.span.line}: " if loop.span else ""
        reason = gather_misfit(gather, self.kernel, self.context, self.analyzer)
        choices = self.context.facts.setdefault("choices", [])
        if reason is not None:
            choices.append(f"{place}loop: by threads into {gather.tile.name} (not cp_async: {reason})")
            return loop
        choices.append(f"{place}loop: cp_async into {gather.tile.name}")
        return replace(loop, prefer=CP_ASYNC, token=SLOTS)

    def _by_hand(self, copy: Copy) -> Copy:
        """A copy that the author gives to the engine, by bytes or in boxes."""
        if copy.rank is not None:
            return self._between_blocks(copy)
        loads = copy.source.buffer.scope == GLOBAL
        tile, other = (copy.destination, copy.source) if loads else (copy.source, copy.destination)
        kind = "load" if loads else "store"
        if copy.mask is None and self._is_bulk(replace(copy, prefer=None)):
            self._say(copy, f"bulk_{kind} {'into' if loads else 'from'} {tile.buffer.name}")
            return replace(copy, prefer=BULK)
        misfit = engine_misfit if loads else store_misfit
        reason = misfit(copy, self.kernel, self.context, self.analyzer)
        if reason is not None:
            raise NotAsynchronous(
                f"the copy engine cannot move this tile {'from' if loads else 'to'} {other.buffer.name}: {reason}",
                span=copy.span,
                hint=f"write {'T.atomic_add without use_tma' if copy.adds else 'T.copy'}, which also takes instructions of threads",
            )  # fmt: skip
        kind = "reduce_add" if copy.adds else kind
        self._say(copy, f"tma_{kind} {'into' if loads else 'from'} {tile.buffer.name}")
        return copy

    def _between_blocks(self, copy: Copy) -> Copy:
        """A copy from a shared tile to one of another block of the cluster."""
        tiles = copy.source, copy.destination
        reason = None
        if not self.context.arch.has("cluster"):
            reason = f"{self.context.arch.name} has no clusters"
        elif copy.source.dtype != copy.destination.dtype:
            reason = f"it converts {copy.source.dtype} to {copy.destination.dtype}"
        elif self.operands & {tile.buffer for tile in tiles}:
            reason = "matrix instructions read one of the tiles, which is not row-major"
        elif not lies_in_one_piece(copy, self.analyzer) and not all(_is_run(tile, self.analyzer) for tile in tiles):
            reason = "its rows do not lie in one piece of whole units of 16 bytes"
        if reason is not None:
            raise NotAsynchronous(
                f"the copy engine cannot move this tile to another block: {reason}", span=copy.span,
                hint="let the other block read it: T.copy(tile, fragment, rank=...) between two T.cluster_sync()",
            )  # fmt: skip
        self._say(copy, f"bulk_copy_cluster into {copy.destination.buffer.name}")
        return replace(copy, prefer=BULK)

    def _into_slot(self, copy: Copy) -> Copy:
        name = copy.destination.buffer.name
        if self._is_bulk(copy):
            return copy if copy.prefer == BULK else replace(copy, prefer=BULK)
        reason = engine_misfit(copy, self.kernel, self.context, self.analyzer)
        if reason is None:
            self._say(copy, f"tma_load into {name}")
            return copy if copy.prefer == TMA else replace(copy, prefer=TMA)
        self._refused(copy, reason)
        threads = thread_misfit(copy, self.kernel, self.context, self.analyzer)
        if threads is None:
            self._say(copy, f"cp_async into {name} (not tma_load: {reason})")
            return replace(copy, prefer=CP_ASYNC, token=SLOTS)
        self._say(copy, f"by threads (not tma_load: {reason}; not cp_async: {threads})")
        return replace(copy, prefer=SYNC)

    def _say(self, copy: Copy, words: str) -> None:
        place = f"{copy.span.file}:{copy.span.line}: " if copy.span else ""
        self.context.facts.setdefault("choices", []).append(f"{place}copy: {words}")

    def _refused(self, copy: Copy, reason: str) -> None:
        if copy.prefer in ENGINE:
            self.context.warn(f"this copy cannot be made by the copy engine: {reason}", copy.span)

    def _is_by_quads(self, copy: Copy) -> bool:
        """Whether rows of a tensor become columns of a right operand in registers, in whole units of 16 bytes."""
        source, tile = copy.source, copy.destination
        unit = ROW_BYTES * 8 // source.dtype.stored_bits
        if source.buffer.scope != "global" or source.dtype != tile.dtype or source.dtype.bits != 16:
            return False
        if tile.buffer not in self.transposed or not tile.is_whole or _longer(source) != [tile.extents[0]]:
            return False
        rows, columns = tile.buffer.static_shape
        divides = (source.starts[-1], source.buffer.shape[-1])
        return (
            rows % 8 == 0
            and columns % QUAD_COLUMNS == 0
            and source.extents[-1] == columns
            and row_misfit(source.buffer, ROW_BYTES, self.analyzer) is None
            and all(self.analyzer.divides(one, unit) for one in divides)
        )

    def _is_bulk(self, copy: Copy) -> bool:
        """Whether bytes in one piece are moved to a tile that no gemm reads, so that it may be row-major."""
        if (
            copy.prefer not in (None, BULK)
            or not self.context.arch.has("tma")
            or self.operands & {copy.destination.buffer, copy.source.buffer}
        ):
            return False
        tensor = copy.source if copy.source.buffer.scope == "global" else copy.destination
        if copy.source.dtype != copy.destination.dtype or tensor.buffer.scope != "global" or copy.multicast:
            return False
        if copy.adds:
            return False
        if tensor.buffer.placed:
            return False
        aligned = row_misfit(tensor.buffer, ROW_BYTES, self.analyzer) is None
        runs = aligned and all(_is_run(one, self.analyzer) for one in (copy.source, copy.destination))
        return (runs or lies_in_one_piece(copy, self.analyzer)) and _stays_inside(tensor, self.analyzer)


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


def lies_in_one_piece(copy: Copy, analyzer: Analyzer) -> bool:
    """Whether a copy moves consecutive bytes between a tensor and a row-major tile, 16 at a time."""
    regions = (copy.source, copy.destination)
    pieces = [_piece(region) for region in regions]
    return pieces[0] is not None and pieces[0] == pieces[1] and all(_is_even(one, analyzer) for one in regions)


def _piece(region: Region) -> int | None:
    """Elements of a region that follow each other in row-major order; None where it lies in several pieces."""
    inner = [(extent, size) for extent, size in zip(region.extents, region.buffer.shape, strict=True)]
    while inner and inner[0][0] == 1:
        inner.pop(0)
    if not all(isinstance(extent, int) for extent, _ in inner) or any(extent != size for extent, size in inner[1:]):
        return None
    return math.prod(extent for extent, _ in inner)  # type: ignore[misc]


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


def _is_run(region: Region, analyzer: Analyzer) -> bool:
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


def _stays_inside(region: Region, analyzer: Analyzer) -> bool:
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
    if source.extents[-1] != destination.extents[-1] or _longer(source) != _longer(destination):
        return f"rows of the tile are no rows of {source.buffer.name}"
    columns = tile.static_shape[-1]
    row_bytes = tile.dtype.nbytes(columns)
    if row_bytes % ROW_BYTES:
        return f"rows of {row_bytes} bytes are no multiple of {ROW_BYTES}"
    if columns // tile.dtype.per_byte > MAXIMUM_ROW and tile_span(tile, kernel) is None:
        return f"rows of {columns} elements do not divide into boxes"
    return None


def _longer(region: Region) -> list[Any]:
    """Extents of a region but its last, without those of 1."""
    return [extent for extent in region.extents[:-1] if extent != 1]
