"""`T.copy`: move a tile, converting its dtype.

This file is the model for an operator: fields, check, effects, reference, generic lowering, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ops import base
from tilewright.ops.atomic import atomic_call, combine
from tilewright.ops.base import element, elementwise, full_index, same_shape, shape_text, static_extents, store_element
from tilewright.ops.copy_schedule import CopySchedule
from tilewright.ops.rounding import cast_array

ENGINE_SUMS = ("float32", "float16", "bfloat16", "int32", "uint32", "uint64")
"""What the copy engine adds."""


@ir.tile_operator("copy")
class Copy(ir.TileOperator):
    """``destination[...] = cast(source[...])``.

    Fields
    ------
    source, destination : regions whose shapes agree once dimensions of extent 1 are dropped.
    schedule : how the tile is moved.
    rank : which block of the cluster the source, a shared tile, is that of (or, between shared tiles, the destination);
        None for the executing one.
    barrier : the author's, which counts the bytes that the copy engine brings (`T.tma_copy`); one thread announces
        them. Between shared tiles it is that of the receiving block, where the thread arrives too.
    mask : bits of the blocks of the cluster that get the same tile, each on its own barrier: the lowest of them loads
        it for all, the others load their own.
    adds : the engine adds the shared source to what the tensor holds, each element atomically
        (`T.atomic_add(use_tma=True)`).
    """

    source: ir.Region
    destination: ir.Region
    schedule: CopySchedule = field(default=CopySchedule(), metadata=ir.SPREAD)
    rank: ir.Expr | None = None
    barrier: ir.Region | None = None
    mask: int | None = None
    adds: bool = False

    @property
    def landing_bytes(self) -> int:
        """Bytes that arrive at a destination of known extents, those from beyond the source's end included."""
        extents = static_extents(self.destination)
        assert extents is not None
        return self.destination.dtype.nbytes(math.prod(extents))

    @property
    def by_hand(self) -> bool:
        """Whether the author gives it to the engine (`T.tma_copy`): a load with a barrier, or a store with a token."""
        return self.barrier is not None or (self.schedule.by_engine and self.token is not None)

    def check(self) -> Iterator[str]:
        scopes = (self.source.buffer.scope, self.destination.buffer.scope)
        if self.rank is not None and scopes != ("shared", "shared" if self.barrier else "fragment"):
            yield "another block's memory is read from its shared tiles into fragments"
        if self.barrier is not None and self.rank is None and scopes != ("global", "shared"):
            yield "a barrier counts the bytes that arrive in shared tiles from tensors in global memory"
        if self.adds and (scopes != ("shared", "global") or self.source.dtype != self.destination.dtype):
            yield "the copy engine adds shared tiles to tensors of the same dtype"
        if self.adds and self.source.dtype.name not in ENGINE_SUMS:
            yield f"the copy engine adds no {self.source.dtype}, only {', '.join(ENGINE_SUMS)}"
        if not same_shape(self.source.tile_shape, self.destination.tile_shape):
            yield f"shapes differ: source {shape_text(self.source)}, destination {shape_text(self.destination)}"
        yield from base.check_apart(self.source, self.destination)

    def effects(self) -> ir.Effects:
        reads = (self.source, self.destination) if self.adds else (self.source,)
        return ir.Effects(reads=reads, writes=(self.destination,), atomic=self.adds)

    def reference(self, source: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray]:
        if self.adds:
            return (combine("add", others[0], source.reshape(others[0].shape), self.source.dtype),)
        return (cast_array(source, self.source.dtype, self.destination.dtype),)

    def lower(self) -> ir.Statement:
        loop = elementwise(
            self.destination, lambda *index: self._element(index, element(self.source, index)), span=self.span
        )
        return replace(loop, coalesced_width=self.schedule.coalesced_width)

    def _element(self, index: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Statement:
        if not self.adds:
            return store_element(self.destination, index, value)
        return ir.Evaluate(atomic_call("add", self.destination, full_index(self.destination, index), value, "relaxed"))
