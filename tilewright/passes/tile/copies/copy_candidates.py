"""Candidates for a copy, best first, each with the reason if it is impossible; `gemm_candidates` does so for gemms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.effects import root
from tilewright.machine.instructions import GLOBAL, SHARED
from tilewright.ops import BULK, CP_ASYNC, QUADS, SYNC, THREADS, TMA, Copy
from tilewright.passes.rows import row_unsupported
from tilewright.passes.tile.copies.engine_checks import (
    bulk_unsupported,
    load_unsupported,
    longer,
    passing_unsupported,
    store_unsupported,
)
from tilewright.passes.tile.copies.filled_tiles import Site
from tilewright.passes.tile.copies.pieces import copied_piece

QUAD_BYTES = 16
"""Bytes that a lane of a quad reads at once."""

QUAD_COLUMNS = 32
"""Bytes of a row that the lanes of a quad read at once."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate.

    Attributes
    ----------
    prefer : the value of `CopySchedule.prefer` that selects it.
    name : the instruction, as ``explain()`` calls it; None for what the generic lowering does.
    unsupported : why it is impossible for a copy; None where it is possible.
    """

    prefer: str
    name: str | None
    unsupported: Callable[[Copy, Site], str | None]


def candidates_of(copy: Copy, site: Site) -> tuple[Candidate, ...]:
    """The candidates for a copy, best first; none where its lowering has no choice."""
    if copy.by_hand:
        return _by_hand(copy)
    if copy.schedule.prefer in (None, QUADS) and copy.destination.buffer in site.transposed:
        return (EXCHANGED,)
    if copy in site.into_slots and copy.source.buffer.scope == GLOBAL:
        engine = (LOADED,) if copy.schedule.prefer not in (None, BULK) else (BULK_LOADED, LOADED)
        return (*engine, STARTED, BY_THREADS)
    memories = (copy.source.buffer.scope, copy.destination.buffer.scope)
    if memories != (GLOBAL, SHARED) or copy.schedule.prefer not in (None, THREADS, CP_ASYNC):
        return ()
    # Elsewhere the channel says how its slots are filled.
    return () if copy.destination.buffer in site.slots else (STARTED, BY_THREADS)


def _by_hand(copy: Copy) -> tuple[Candidate, ...]:
    """Candidates of the copy engine, for copies that authors give to it."""
    if copy.rank is not None:
        return (PASSED,)
    if copy.source.buffer.scope == GLOBAL:
        return (LOADED,) if copy.mask is not None else (BULK_LOADED, LOADED)
    return (ADDED,) if copy.adds else (BULK_STORED, STORED)


def _quad_unsupported(copy: Copy, site: Site) -> str | None:
    """Why rows of a tensor cannot become columns of a right operand in registers, in whole units of 16 bytes."""
    source, tile = copy.source, copy.destination
    if not site.arch.has("quad_exchange"):
        return f"lanes of {site.arch.name} exchange no words"
    if source.buffer.scope != GLOBAL or source.dtype != tile.dtype or source.dtype.bits != 16:
        return "it does not load 16-bit elements of a tensor without conversion"
    if any(buffer is root(source.buffer) for buffer, _ in site.kernel.safe_values):
        return f"{source.buffer.name} has a safe value, and lanes fill with zeros"
    if not tile.is_whole or longer(source) != [tile.extents[0]]:
        return "it does not fill the operand row by row"
    rows, columns = tile.buffer.static_shape
    if rows % 8 or columns % QUAD_COLUMNS or source.extents[-1] != columns:
        return f"{rows} x {columns} are no whole quads"
    unit = QUAD_BYTES * 8 // source.dtype.stored_bits
    if not all(site.analyzer.divides(one, unit) for one in (source.starts[-1], source.buffer.shape[-1])):
        return f"rows do not start and end at multiples of {QUAD_BYTES} bytes"
    return row_unsupported(source.buffer, QUAD_BYTES, site.analyzer)


def _piece_unsupported(copy: Copy, site: Site) -> str | None:
    found = copied_piece(copy, site)
    return found if isinstance(found, str) else None


EXCHANGED = Candidate(QUADS, "quad_exchange", _quad_unsupported)
BULK_LOADED = Candidate(BULK, "bulk_load", bulk_unsupported)
LOADED = Candidate(TMA, "tma_load", load_unsupported)
BULK_STORED = Candidate(BULK, "bulk_store", bulk_unsupported)
STORED = Candidate(TMA, "tma_store", store_unsupported)
ADDED = Candidate(TMA, "tma_reduce_add", store_unsupported)
PASSED = Candidate(BULK, "bulk_copy_cluster", passing_unsupported)
STARTED = Candidate(CP_ASYNC, "cp_async", _piece_unsupported)
BY_THREADS = Candidate(SYNC, None, lambda copy, site: None)
