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

from dataclasses import replace
from typing import Any

from tilewright.errors import NotAsynchronous
from tilewright.ir.nodes import Function, If, Kernel, Parallel
from tilewright.ir.visitor import find
from tilewright.machine.instructions import GLOBAL
from tilewright.ops.copy import Copy
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.context import CHOICES, Context
from tilewright.passes.rows import row_misfit
from tilewright.passes.scoped import ScopedRewriter, negated
from tilewright.passes.tile.copies.copy_misfits import (
    ROW_BYTES,
    engine_misfit,
    gather_misfit,
    is_row_major,
    is_run,
    lies_in_one_piece,
    longer,
    stays_inside,
    store_misfit,
    thread_misfit,
)
from tilewright.passes.tile.copies.copy_ways import (
    BULK,
    ENGINE,
    QUAD_COLUMNS,
    QUADS,
    SLOTS,
    TMA,
    channel_copies,
    is_by_hand,
    slot_buffers,
)
from tilewright.passes.tile.copies.gathers import gather_of
from tilewright.passes.tile.copies.select_async_copies import CP_ASYNC, SYNC


def select_copies(function: Function, context: Context) -> Function:
    """Write into every copy whether the copy engine makes it."""
    body = _Select(function, context)(function.body)
    return function if body is function.body else function.with_body(body)


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
        choices = self.context.facts[CHOICES]
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
        elif not self._is_row_major(copy):
            reason = "the author's layout of one of the tiles is not row-major"
        elif not lies_in_one_piece(copy, self.analyzer) and not all(is_run(tile, self.analyzer) for tile in tiles):
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
        self.context.facts[CHOICES].append(f"{place}copy: {words}")

    def _refused(self, copy: Copy, reason: str) -> None:
        if copy.prefer in ENGINE:
            self.context.warn(f"this copy cannot be made by the copy engine: {reason}", copy.span)

    def _is_by_quads(self, copy: Copy) -> bool:
        """Whether rows of a tensor become columns of a right operand in registers, in whole units of 16 bytes."""
        source, tile = copy.source, copy.destination
        unit = ROW_BYTES * 8 // source.dtype.stored_bits
        if not self.context.arch.has("quad_exchange") or source.buffer.scope != "global":
            return False
        if source.dtype != tile.dtype or source.dtype.bits != 16:
            return False
        if tile.buffer not in self.transposed or not tile.is_whole or longer(source) != [tile.extents[0]]:
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

    def _is_row_major(self, copy: Copy) -> bool:
        tiles = (one for one in (copy.source, copy.destination) if one.buffer.scope == "shared")
        return all(is_row_major(one, self.kernel) for one in tiles)

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
        if copy.adds or tensor.buffer.placed or not self._is_row_major(copy):
            return False
        aligned = row_misfit(tensor.buffer, ROW_BYTES, self.analyzer) is None
        runs = aligned and all(is_run(one, self.analyzer) for one in (copy.source, copy.destination))
        return (runs or lies_in_one_piece(copy, self.analyzer)) and stays_inside(tensor, self.analyzer)
