"""Shared tiles that a role declares belong to each of its instances: the memory of all stands in one tile, cut into
equal parts.

Before (a role of two instances; ``boxes`` is declared in it)::

    boxes = shared(float16[8192])
    boxes[tx * 8] = ...

After::

    boxes = shared(float16[2, 8192])
    boxes[consumer, tx * 8] = ...

Each part of a tile that has a layout begins at a multiple of 1024 bytes, where a swizzle's pattern does.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.errors import InternalError
from tilewright.ir.effects import root
from tilewright.ir.nodes import Buffer, Expr, Role, Seq
from tilewright.ir.visitor import declared
from tilewright.passes.scoped import PlaceRewriter

PART = 1024
"""Bytes that a part is a multiple of."""


def own_tiles(role: Role, body: Seq) -> Seq:
    """The body of a role, threads assigned, with the shared tiles that it declares one for each instance."""
    if role.instances == 1 or role.index is None:
        return body
    made: Seq = _Own(role, set(declared(body, "shared", "barrier")))(body)
    return made


class _Own(PlaceRewriter):
    """Gives tiles a leading dimension, and what touches them the instance's number in front."""

    def __init__(self, role: Role, owned: set[Buffer]) -> None:
        assert role.index is not None
        self.instances, self.index, self.owned = role.instances, role.index, owned
        self.made: dict[Buffer, Buffer] = {}

    def _is_owned(self, buffer: Buffer) -> bool:
        return root(buffer) in self.owned

    def map_buffer(self, buffer: Buffer) -> Buffer:
        if not self._is_owned(buffer):
            return buffer
        if buffer not in self.made:
            if not all(isinstance(extent, int) for extent in buffer.shape):
                raise InternalError(f"the size of {buffer.name} is not known, so that instances cannot have one each")
            self.made[buffer] = self._parted(buffer)
        return self.made[buffer]

    def _parted(self, buffer: Buffer) -> Buffer:
        tile = root(buffer)
        part = tile.dtype.nbytes(math.prod(tile.static_shape))
        if tile.rank == 1:
            part = -(-part // PART) * PART
        elif buffer.dtype.nbytes(math.prod(buffer.static_shape)) != part and buffer.rank > 1:
            raise InternalError(
                f"{buffer.name} is a view of another size than its tile, of which instances have one each"
            )
        elements = part * 8 // buffer.dtype.stored_bits
        shape = (self.instances, elements) if buffer.rank == 1 else (self.instances, *buffer.shape)
        source = None if buffer.source is None else self.map_buffer(buffer.source)
        return replace(buffer, shape=shape, source=source)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return self.map_buffer(buffer), (self.index, *indices) if self._is_owned(buffer) else indices
