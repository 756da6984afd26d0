"""Copies that the copy engine makes: one thread names a box of a tensor, a tile and the barrier that counts its
bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import ChannelMisuse, InternalError
from tilewright.ir import ALL, INT32, UINT64, DType, perform
from tilewright.ir import nodes as ir
from tilewright.layout import CHUNK_BYTES, PATTERN_ROWS, Layout
from tilewright.machine import CopyEngine
from tilewright.ops import BULK, Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.targets.gpu.copies.boxes import BoxPlan, Swizzle, moved_as, plan_boxes


def lower_engine_copy(copy: Copy, context: Context) -> ir.Statement:
    """The loads of a copy into a channel's slot, or of one that the author gives to the engine."""
    block = context.facts[BLOCK]
    barrier = signalled(copy, context)
    if copy.schedule.prefer == BULK:
        return _bytes(copy, block, barrier)
    return _Boxes(copy, copy.source, copy.destination, block, barrier, _engine(context)).statement()


def signalled(copy: Copy, context: Context) -> ir.Region:
    """The barrier on which a copy completes."""
    assert copy.barrier is not None
    return replace(copy.barrier, starts=tuple(context.facts[BLOCK].visited(copy.barrier.starts)))


def _elements(tensor: ir.Region, block: BlockView) -> ir.Region:
    """The first element of a part of a tensor whose bytes lie in one piece."""
    starts = tuple(block.simplify(start) for start in block.visited(tensor.starts))
    return ir.Region(tensor.buffer, starts, (1,) * len(starts))


def lower_engine_tile_store(copy: Copy, context: Context) -> ir.Statement:
    """The stores of a shared tile that the author gives to the engine."""
    block = context.facts[BLOCK]
    if copy.schedule.prefer == BULK:
        size = ir.const(copy.source.dtype.nbytes(copy.source.size))
        return perform("bulk_store", _elements(copy.destination, block), block.piece(copy.source), size, span=copy.span)
    return _Boxes(copy, copy.destination, copy.source, block, None, _engine(context)).statement()


def _engine(context: Context) -> CopyEngine:
    assert context.arch.copy_engine is not None
    return context.arch.copy_engine


def _bytes(copy: Copy, block: BlockView, barrier: ir.Region) -> ir.Statement:
    """One load of bytes that lie in one piece."""
    size = ir.const(copy.source.dtype.nbytes(copy.destination.size))
    arguments = (block.piece(copy.destination), _elements(copy.source, block), size, barrier)
    if copy.schedule.eviction is None:
        return perform("bulk_load", *arguments, span=copy.span)
    return perform("bulk_load_hint", *arguments, copy.schedule.eviction, span=copy.span)


def swizzle_of(layout: Layout, dtype: DType) -> Swizzle | None:
    """The copy engine's mode for a tile's swizzle; None where it has no such one."""
    if layout.swizzle is None:
        return Swizzle.NONE
    swizzle = layout.swizzle
    chunk = (CHUNK_BYTES * 8 // dtype.stored_bits).bit_length() - 1
    return Swizzle(swizzle.bits) if (swizzle.base, swizzle.shift) == (chunk, 3) and swizzle.bits <= 3 else None


def mapped_span(swizzle: Swizzle | None) -> int:
    """Bytes of a swizzle's span as a tensor map says it, 0 for none."""
    return swizzle.span if swizzle else 0


@functools.lru_cache(maxsize=256)
def tile_boxes(layout: Layout, dtype: DType, engine: CopyEngine) -> BoxPlan | None:
    """How an engine's boxes fill one slot (the last two dimensions) of tiles of this layout; None where none do.

    Elements that share bytes are moved as bytes.
    """
    swizzle = swizzle_of(layout, dtype)
    if swizzle is None:
        return None
    rows, columns = layout.shape[-2:]
    shared = dtype.per_byte
    columns //= shared
    plan = plan_boxes((columns, rows), moved_as(dtype), engine, swizzle)
    if plan is None:
        return None
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    place = layout.offset("memory", *(0 for _ in layout.shape[:-2]), row, column * shared) // shared
    wanted = plan.offset(column, row) // plan.dtype.storage_bytes
    return plan if np.array_equal(np.broadcast_to(place, (rows, columns)), wanted) else None


@dataclass(slots=True)
class _Boxes:
    """The boxes between a part of a tensor and a shared tile; stores where there is no barrier."""

    copy: Copy
    tensor: ir.Region
    tile: ir.Region
    block: BlockView
    barrier: ir.Region | None
    engine: CopyEngine

    def statement(self) -> ir.Statement:
        copy = self.copy
        plan = tile_boxes(self.block.layouts[self.tile.buffer], self.tile.dtype, self.engine)
        if plan is None:
            raise InternalError(f"no boxes fill {self.tile.buffer.name}", span=copy.span)
        peers = (copy.schedule.peers or (1, self.block.cluster)) if copy.schedule.multicast else (1, 1)
        made = self._shares(plan, *peers) if peers[1] > 1 else self._boxes(plan)
        return made[0] if len(made) == 1 else ir.seq(*made)

    def _boxes(self, plan: BoxPlan) -> list[ir.Statement]:
        described = ir.TensorMap(UINT64, self.tensor.buffer, self._box(*plan.box), mapped_span(plan.swizzle))
        blocks = () if self.copy.mask is None else (ir.const(self.copy.mask, ALL["uint16"]),)
        return [self._load(described, ir.const(column), ir.const(row), blocks) for (column, row), _ in plan.boxes()]

    def _shares(self, plan: BoxPlan, distance: int, blocks: int) -> list[ir.Statement]:
        """This block's rows of the tile, for all blocks of the cluster, or for those of them whose ranks are so far
        apart."""
        rows = plan.box[1] * plan.counts[1]
        share = rows // blocks
        if rows % (blocks * PATTERN_ROWS) or share > self.engine.box:
            raise ChannelMisuse(
                f"{rows} rows of {self.tile.buffer.name} cannot be shared by {blocks} blocks",
                span=self.copy.span,
                hint=f"a block's share is a multiple of {PATTERN_ROWS} rows, at most {self.engine.box}",
            )
        described = ir.TensorMap(UINT64, self.tensor.buffer, self._box(plan.box[0], share), mapped_span(plan.swizzle))
        head: list[ir.Statement] = []
        own: ir.Expr = ir.Call(INT32, "cluster_rank", ())
        everyone: ir.Expr = ir.const(sum(1 << number * distance for number in range(blocks)), ALL["uint16"])
        if blocks < self.block.cluster:
            rank = ir.Var(INT32, f"{self.tile.buffer.name}_rank")
            head = [ir.Let(rank, own, span=self.copy.span), ir.Assume(ir.index_binary("ge", rank, 0))]
            self.block.analyzer.bind_extent(rank, self.block.cluster)
            own = rank // distance % blocks
            lowest = rank - own * distance
            everyone = ir.cast(ir.binary("shl", ir.cast(everyone, INT32), lowest), ALL["uint16"])
        first = self.block.simplify(own * share)
        columns = range(0, plan.box[0] * plan.counts[0], plan.box[0])
        return head + [self._load(described, ir.const(column), first, (everyone,)) for column in columns]

    def _load(
        self, described: ir.TensorMap, column: ir.Expr, row: ir.Expr, blocks: tuple[ir.Expr, ...]
    ) -> ir.Statement:
        """One box, which begins at a row and a column of the tile; for several blocks of the cluster where given."""
        to = self.tile
        within = column * to.dtype.per_byte
        place = self.block.shared(to, [*(ir.const(0) for _ in range(to.buffer.rank - 2)), row, within])
        coordinates = self._coordinates(column, row)
        if self.barrier is None:
            function = "box_reduce_add" if self.copy.adds else "box_store"
            return perform(function, described, place, *coordinates, span=self.copy.span)
        function = "box_load_multicast" if blocks else "box_load"
        hint: tuple[str, ...] = ()
        if self.copy.schedule.eviction is not None:
            function, hint = f"{function}_hint", (self.copy.schedule.eviction,)
        arguments: tuple[Any, ...] = (place, described, self.barrier, *blocks, *hint, *coordinates)
        return perform(function, *arguments, span=self.copy.span)

    def _axes(self) -> tuple[int | None, int]:
        """Dimensions of the tensor along which the tile's rows and columns run."""
        extents = self.tensor.extents
        last = len(extents) - 1
        return next((axis for axis in reversed(range(last)) if extents[axis] != 1), None), last

    def _box(self, inner: int, outer: int) -> tuple[int, ...]:
        rows, columns = self._axes()
        box = [1] * len(self.tensor.extents)
        box[columns] = inner
        if rows is not None:
            box[rows] = outer
        return tuple(box)

    def _coordinates(self, column: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """Where the box begins in the tensor, innermost dimension first."""
        rows, columns = self._axes()
        starts = list(self.block.visited(self.tensor.starts))
        first = starts[columns] // self.tensor.dtype.per_byte
        starts[columns] = first + column
        if rows is not None:
            starts[rows] = starts[rows] + row
        return [ir.cast(self.block.simplify(start), INT32) for start in reversed(starts)]
