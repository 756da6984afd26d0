"""`T.copy`: move a tile, converting its dtype.

This file is the model for an operator: fields, check, effects, reference, generic lowering, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ops.atomic import atomic_call, combine
from tilewright.ops.base import element, elementwise, full_index, same_shape, shape_text, static_extents, store_element
from tilewright.ops.rounding import cast_array

ENGINE_SUMS = ("float32", "float16", "bfloat16", "int32", "uint32", "uint64")
"""What the copy engine adds."""


TMA, BULK = "tma", "bulk"
"""What `Copy.prefer` says of a copy that the engine makes: boxes of a tensor, or bytes in one piece."""

ENGINE = (TMA, BULK)

CP_ASYNC, SYNC, THREADS = "cp_async", "sync", "threads"
"""What it says of threads: they start pieces, they load and store, or whichever of both can be done."""

QUADS = "quads"
"""What it says of a copy from global memory into the right operand of a matrix instruction that moves 16 bytes at once:
four lanes exchange words afterwards."""

SLOTS = f"{CP_ASYNC}_slots"
"""Token of copies whose arrivals a channel counts."""

BY_HAND = f"{CP_ASYNC}_by_hand"
"""The token of what authors start and wait for by themselves."""

TMA_LOADS = "tma"
"""The token of loads by the engine that the author's barriers count."""

TMA_STORES = "tma_store"
"""The token of the author's copies out of shared tiles by the engine."""


@ir.tile_operator("copy")
class Copy(ir.TileOperator):
    """``destination[...] = cast(source[...])``.

    Fields
    ------
    source, destination : regions whose shapes agree once dimensions of extent 1 are dropped.
    coalesced_width : elements a thread moves at once, where the author insists; else None.
    prefer : ``"tma"``, ``"cp_async"``, ``"sync"`` or None: the author's choice of instruction. ``"threads"``: any but
        the copy engine's.
    eviction : ``"evict_first"``, ``"evict_last"``, ``"evict_normal"`` or None: a hint to the L2 cache.
    multicast : all blocks of the cluster make the very same copy, so that each may load a part of it for all.
    peers : where not all of them do: of how many blocks each is one that do, and how far apart their ranks are, the
        distance first.
    rank : which block of the cluster the source, a shared tile, is that of (or, between shared tiles, the destination);
        None for the executing one.
    barrier : the author's, which counts the bytes that the copy engine brings (`T.tma_copy`); one thread announces
        them. Between shared tiles it is that of the receiving block, where the thread arrives too.
    mask : bits of the blocks of the cluster that get the same tile, each on its own barrier: the lowest of them loads
        it for all, the others load their own.
    adds : the engine adds the shared source to what the tensor holds, each element atomically
        (`T.atomic_add(use_tma=True)`).
    prefetch : bytes that cp.async advises the L2 cache to fetch around each piece: 64, 128, 256 or None.
    """

    source: ir.Region
    destination: ir.Region
    coalesced_width: int | None = None
    prefer: str | None = None
    eviction: str | None = None
    multicast: bool = False
    rank: ir.Expr | None = None
    barrier: ir.Region | None = None
    mask: int | None = None
    prefetch: int | None = None
    adds: bool = False
    peers: tuple[int, int] | None = None

    @property
    def landing_bytes(self) -> int:
        """Bytes that arrive at a destination of known extents, those from beyond the source's end included."""
        extents = static_extents(self.destination)
        assert extents is not None
        return self.destination.dtype.nbytes(math.prod(extents))

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

    def effects(self) -> ir.Effects:
        reads = (self.source, self.destination) if self.adds else (self.source,)
        return ir.Effects(reads=reads, writes=(self.destination,), atomic=self.adds)

    def reference(self, source: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray]:
        if self.adds:
            return (combine("add", others[0], source.reshape(others[0].shape), self.source.dtype),)
        return (cast_array(source, self.source.dtype, self.destination.dtype),)

    def lower(self) -> ir.Statement:
        return elementwise(
            self.destination, lambda *index: self._element(index, element(self.source, index)), span=self.span
        )

    def _element(self, index: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Statement:
        if not self.adds:
            return store_element(self.destination, index, value)
        return ir.Evaluate(atomic_call("add", self.destination, full_index(self.destination, index), value, "relaxed"))
