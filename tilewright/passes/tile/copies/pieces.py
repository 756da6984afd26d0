"""cp.async: how many bytes of a copy, or of a loop that brings rows, one instruction of a thread moves; or why none
can, in words."""

from __future__ import annotations

from tilewright.arith import Analyzer
from tilewright.ir import Buffer, Load, Region, index_binary, root, walk
from tilewright.layout import MEMORY, Layout
from tilewright.machine import AsyncCopy
from tilewright.ops import CP_ASYNC, ENGINE, THREADS, Copy, kept_axes
from tilewright.passes.rows import box_unsupported, conversion_unsupported, is_plain_tensor, runs_of
from tilewright.passes.tile.copies.filled_tiles import Site
from tilewright.passes.tile.copies.gathers import Gather, gather_bytes, is_zero

MOST_REGISTERS = 64
"""32-bit registers of a thread that tiles on their way to shared memory may take."""


def copied_piece(copy: Copy, site: Site) -> int | str:
    """How many bytes of a copy from global to shared memory a thread starts at once, or why it cannot."""
    if copy.schedule.prefer not in (None, *ENGINE, CP_ASYNC, THREADS):
        return f"the author asks for {copy.schedule.prefer}"
    instruction = _instruction(copy.source.buffer, copy.destination.buffer, site)
    if isinstance(instruction, str):
        return instruction
    layout = site.layout(copy.destination.buffer)
    found = piece_bytes(copy, instruction, site.analyzer, layout)
    if isinstance(found, str) or instruction.threads == 1:
        return found
    unsupported = _waves_unsupported(copy, instruction, found, site)
    return found if unsupported is None else unsupported


def _waves_unsupported(copy: Copy, instruction: AsyncCopy, size: int, site: Site) -> str | None:
    """Why waves do not bring a tile in instructions that write side by side what their lanes read; or should not."""
    tile, source, threads = copy.destination.buffer, copy.source, len(site.threads)
    if not copy.destination.is_whole:
        return "it fills a part of its tile, and waves write side by side what they read"
    layout = site.layout(tile)
    if layout is not None and not (layout.is_bijective and layout.places == (MEMORY,)):
        return "its tile has bytes between its rows, and waves write side by side what they read"
    width = size * 8 // source.dtype.stored_bits
    if (
        threads % instruction.threads
        or site.threads.start % instruction.threads
        or tile.size % (width * instruction.threads)
        or tile.dtype.nbytes(tile.size) % (site.arch.vector_bytes * instruction.threads)
    ):
        return f"no whole waves of {instruction.threads} lanes bring its pieces of {size} bytes"
    end, extent = source.starts[-1] + source.extents[-1], source.buffer.shape[-1]
    if not (site.analyzer.divides(extent, width) or site.analyzer.prove(index_binary("le", end, extent))):
        return f"rows of {source.buffer.name} may end within a piece of {size} bytes"
    wanted = copy.schedule.prefer == CP_ASYNC or 32 * threads * MOST_REGISTERS < tile.size * source.dtype.stored_bits
    if size < site.arch.vector_bytes and not wanted:
        return f"loads of {site.arch.vector_bytes} bytes into registers are fewer than pieces of {size}"
    return None


def gathered_piece(gather: Gather, site: Site) -> int | str:
    """How many bytes of the rows that a loop brings a thread starts at once, or why it cannot."""
    if any(node in site.kernel.thread_vars for node in walk(gather.loop)):
        return "it depends on the thread"
    instruction = _instruction(gather.source.buffer, gather.tile, site)
    if isinstance(instruction, str):
        return instruction
    if instruction.threads > 1:
        return "waves write side by side what they read"
    return gather_bytes(gather, instruction, site.analyzer, site.layout(gather.tile))


def _instruction(tensor: Buffer, tile: Buffer, site: Site) -> AsyncCopy | str:
    """The instruction by which threads bring parts of a tensor into a tile, or why they have none."""
    instruction = site.arch.async_copy
    if instruction is None:
        return "the machine has none"
    if tile in site.private_slots:
        return "its slots are those of single warps"
    if tile in site.slots and not site.arch.copies_arrive:
        return "no arrivals at the machine's barriers follow copies"
    outside = dict(site.kernel.safe_values).get(root(tensor))
    if outside is not None and not is_zero(outside):
        return "what is out of bounds is not zero"
    return instruction


def piece_bytes(copy: Copy, instruction: AsyncCopy, analyzer: Analyzer, layout: Layout | None) -> int | str:
    """How many bytes one instruction moves of a copy from global to shared memory, or why none can.

    Parameters
    ----------
    layout : of the shared tile, where it is known already.
    """
    source, destination = copy.source, copy.destination
    converts = conversion_unsupported(source.dtype, destination.dtype)
    if converts is not None:
        return converts
    if not is_plain_tensor(source.buffer):
        return "elements of the source are no whole bytes in their order"
    if not analyzer.divides(source.buffer.shape[-1], source.dtype.per_byte):
        return f"rows of {source.buffer.name} may end within a byte"
    if destination.buffer.source is not None:
        return "the destination is a view"
    rank = len(copy.destination.tile_shape)
    axes = kept_axes(source, rank), kept_axes(destination, rank)
    for region, kept in zip((source, destination), axes, strict=True):
        if kept is None or kept[-1] != len(region.extents) - 1:
            return f"neighbours in the tile are no neighbours in {region.buffer.name}"
    if any(
        isinstance(node, Load) and node.buffer.scope in ("fragment", "local") for s in source.starts for node in walk(s)
    ):
        return "threads would have to agree on where it starts"
    columns = destination.tile_shape[-1]
    assert isinstance(columns, int)
    for size in instruction.bytes:
        width = size * 8 // source.dtype.stored_bits
        if (
            width
            and columns % width == 0
            and box_unsupported(source, size, analyzer) is None
            and _runs(destination, width, layout, analyzer)
        ):
            return size
    return f"rows do not consist of pieces of {instruction.bytes[-1]} bytes"


def _runs(region: Region, width: int, layout: Layout | None, analyzer: Analyzer) -> bool:
    """Whether `width` neighbours of a shared region lie side by side, at a multiple of it."""
    if not analyzer.divides(region.starts[-1], width):
        return False
    if layout is None:
        return region.buffer.static_shape[-1] % width == 0
    return runs_of(layout, width)
