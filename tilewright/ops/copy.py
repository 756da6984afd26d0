"""`T.copy`: move a tile, converting its dtype.

This file is the model for an operator: fields, check, effects, reference, generic lowering, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.nodes import (
    Effects,
    Expr,
    Region,
    Statement,
    TileOperator,
    tile_operator,
)
from tilewright.ops.base import element, elementwise, same_shape, shape_text, store_element
from tilewright.ops.rounding import cast_array


@tile_operator("copy")
class Copy(TileOperator):
    """``destination[...] = cast(source[...])``.

    Fields
    ------
    source, destination : regions whose shapes agree once dimensions of extent 1 are dropped.
    coalesced_width : elements a thread moves at once, where the author insists; else None.
    prefer : ``"tma"``, ``"cp_async"``, ``"sync"`` or None: the author's choice of instruction.
    eviction : ``"evict_first"``, ``"evict_last"``, ``"evict_normal"`` or None: a hint to the L2 cache.
    multicast : all blocks of the cluster make the very same copy, so that each may load a part of it for all.
    rank : which block of the cluster the source, a shared tile, is that of (or, between shared tiles, the destination);
        None for the executing one.
    barrier : the author's, which counts the bytes that the copy engine brings (`T.tma_copy`); one thread announces them.
        Between shared tiles it is that of the receiving block, where the thread arrives too.
    mask : bits of the blocks of the cluster that get the same tile, each on its own barrier: the lowest of them loads it
        for all, the others load their own.
    prefetch : bytes that cp.async advises the L2 cache to fetch around each piece: 64, 128, 256 or None.
    """

    source: Region
    destination: Region
    coalesced_width: int | None = None
    prefer: str | None = None
    eviction: str | None = None
    multicast: bool = False
    rank: Expr | None = None
    barrier: Region | None = None
    mask: int | None = None
    prefetch: int | None = None

    def check(self) -> Iterator[str]:
        scopes = (self.source.buffer.scope, self.destination.buffer.scope)
        if self.rank is not None and scopes != ("shared", "shared" if self.barrier else "fragment"):
            yield "another block's memory is read from its shared tiles into fragments"
        if self.barrier is not None and self.rank is None and scopes != ("global", "shared"):
            yield "a barrier counts the bytes that arrive in shared tiles from tensors in global memory"
        if not same_shape(self.source.tile_shape, self.destination.tile_shape):
            yield f"shapes differ: source {shape_text(self.source)}, destination {shape_text(self.destination)}"

    def effects(self) -> Effects:
        return Effects(reads=(self.source,), writes=(self.destination,))

    def reference(self, source: np.ndarray, *rank: np.ndarray) -> tuple[np.ndarray]:
        return (cast_array(source, self.source.dtype, self.destination.dtype),)

    def lower(self) -> Statement:
        return elementwise(
            self.destination,
            lambda *index: store_element(self.destination, index, element(self.source, index)),
            span=self.span,
        )
