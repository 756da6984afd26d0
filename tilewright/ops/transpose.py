"""`T.transpose`: a tile with its two dimensions exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.nodes import Effects, Region, Statement, TileOperator, tile_operator
from tilewright.ops.base import (
    as_shape,
    check_known,
    element,
    parallel,
    same_shape,
    shape_of_rank,
    shape_text,
    store_element,
)
from tilewright.ops.rounding import cast_array

OWN = "own"
"""Registers of a thread to others of its own."""


@tile_operator("transpose")
class Transpose(TileOperator):
    """``destination[j, i] = cast(source[i, j])``.

    Fields
    ------
    source, destination : tiles of two dimensions, which do not overlap.
    prefer : ``"tma"`` where the copy engine stores what matrix instructions' registers are packed into; ``OWN`` where
        each thread has blocks of whole words, and transposes them among its own registers; None for loops.
    """

    source: Region
    destination: Region
    prefer: str | None = None

    def check(self) -> Iterator[str]:
        source, destination = shape_of_rank(self.source, 2), shape_of_rank(self.destination, 2)
        yield from check_known(source=self.source, destination=self.destination)
        if source is None or destination is None or not same_shape(source, destination[::-1]):
            yield (
                f"the source has shape {shape_text(self.source)}, "
                f"but the destination, {shape_text(self.destination)}, is not its transpose"
            )
        if self.source.buffer is self.destination.buffer:
            yield "the source and the destination are the same buffer"

    def effects(self) -> Effects:
        return Effects(reads=(self.source,), writes=(self.destination,))

    def reference(self, source: np.ndarray) -> tuple[np.ndarray]:
        matrix = as_shape(source, shape_of_rank(self.source, 2))
        return (cast_array(matrix.T, self.source.dtype, self.destination.dtype),)

    def lower(self) -> Statement:
        shape = shape_of_rank(self.destination, 2)
        assert shape is not None
        return parallel(
            shape,
            lambda i, j: store_element(self.destination, (i, j), element(self.source, (j, i))),
            span=self.span,
        )
