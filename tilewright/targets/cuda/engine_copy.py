"""Copies that the copy engine makes: one thread names a box of a tensor, a tile and the barrier that counts its bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir.dtypes import BOOL, INT32, UINT64, DType
from tilewright.ir.nodes import (
    Call,
    Evaluate,
    Expr,
    Region,
    Statement,
    TensorMap,
    cast,
    const,
    index_binary,
    seq,
)
from tilewright.layout.layout import Layout
from tilewright.ops.copy import Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.assign_threads import BLOCK, BlockView
from tilewright.passes.lower.lower_channels import FACT as BARRIERS
from tilewright.targets.cuda.operands import BoxPlan, plan_boxes
from tilewright.targets.cuda.tma import Swizzle


def lower_engine_copy(copy: Copy, context: Context) -> Statement:
    """The loads of a copy into a channel's slot."""
    return _Boxes(copy, context.facts[BLOCK], context.facts[BARRIERS][copy]).statement()


def swizzle_of(layout: Layout, dtype: DType) -> Swizzle | None:
    """The copy engine's mode for a tile's swizzle; None where it has no such one."""
    if layout.swizzle is None:
        return Swizzle.NONE
    scaled = layout.swizzle.scaled((dtype.bits // 8).bit_length() - 1)
    if (scaled.base, scaled.shift) != (4, 3) or scaled.bits > 3:
        return None
    return Swizzle(scaled.bits)


@functools.lru_cache(maxsize=256)
def tile_boxes(layout: Layout, dtype: DType) -> BoxPlan | None:
    """How boxes fill one slot (the last two dimensions) of tiles of this layout; None where none do."""
    swizzle = swizzle_of(layout, dtype)
    if swizzle is None:
        return None
    rows, columns = layout.shape[-2:]
    plan = plan_boxes((columns, rows), dtype, swizzle)
    if plan is None:
        return None
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    place = layout.offset("memory", *(0 for _ in layout.shape[:-2]), row, column)
    wanted = plan.offset(column, row) // dtype.storage_bytes
    return plan if np.array_equal(np.broadcast_to(place, (rows, columns)), wanted) else None


@dataclass(slots=True)
class _Boxes:
    copy: Copy
    block: BlockView
    barrier: Region

    def statement(self) -> Statement:
        copy = self.copy
        layout = self.block.layout(copy.destination.buffer)
        plan = tile_boxes(layout, copy.destination.dtype)
        if plan is None:
            raise InternalError(f"no boxes fill {copy.destination.buffer.name}", span=copy.span)
        described = TensorMap(UINT64, copy.source.buffer, self._box(plan), self._span(plan))
        made: list[Statement] = []
        for first, _ in plan.boxes():
            extra = copy.destination.buffer.rank - 2
            place = self.block.shared(
                copy.destination, [*(const(0) for _ in range(extra)), const(first[1]), const(first[0])]
            )
            arguments: tuple[Expr | Region, ...] = (place, described, self.barrier, *self._coordinates(first))
            made.append(Evaluate(Call(BOOL, "tma_load", arguments), span=copy.span))
        return made[0] if len(made) == 1 else seq(*made)

    @staticmethod
    def _span(plan: BoxPlan) -> int:
        return 0 if plan.swizzle is Swizzle.NONE else plan.swizzle.span

    def _axes(self) -> tuple[int | None, int]:
        """Dimensions of the tensor along which the tile's rows and columns run."""
        extents = self.copy.source.extents
        last = len(extents) - 1
        return next((axis for axis in reversed(range(last)) if extents[axis] != 1), None), last

    def _box(self, plan: BoxPlan) -> tuple[int, ...]:
        rows, columns = self._axes()
        box = [1] * len(self.copy.source.extents)
        box[columns] = plan.box[0]
        if rows is not None:
            box[rows] = plan.box[1]
        return tuple(box)

    def _coordinates(self, first: tuple[int, ...]) -> list[Expr]:
        """Where the box begins in the tensor, innermost dimension first."""
        rows, columns = self._axes()
        starts = list(self.block.visited(self.copy.source.starts))
        starts[columns] = index_binary("add", starts[columns], first[0])
        if rows is not None:
            starts[rows] = index_binary("add", starts[rows], first[1])
        return [cast(self.block.simplify(start), INT32) for start in reversed(starts)]
