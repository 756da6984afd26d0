"""`T.transpose`: a tile with its two dimensions exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from tilewright.ir.nodes import SPREAD, Effects, Region, Statement, TileOperator, tile_operator
from tilewright.ops import base
from tilewright.ops.copy_schedule import CopySchedule
from tilewright.ops.rounding import cast_array


@tile_operator("transpose")
class Transpose(TileOperator):
    """``destination[j, i] = cast(source[i, j])``.

    Fields
    ------
    source, destination : tiles of two dimensions, which do not overlap.
    schedule : how it is done: `TMA` where the copy engine stores what matrix instructions' registers are packed into;
        `OWN` where each thread transposes registers of its own; else by loops.
    """

    source: Region
    destination: Region
    schedule: CopySchedule = field(default=CopySchedule(), metadata=SPREAD)

    def check(self) -> Iterator[str]:
        source, destination = base.shape_of_rank(self.source, 2), base.shape_of_rank(self.destination, 2)
        yield from base.check_known(source=self.source, destination=self.destination)
        if source is None or destination is None or not base.same_shape(source, destination[::-1]):
            yield (
                f"the source has shape {base.shape_text(self.source)}, "
                f"but the destination, {base.shape_text(self.destination)}, is not its transpose"
            )
        yield from base.check_apart(self.source, self.destination, same=False)

    def effects(self) -> Effects:
        return Effects(reads=(self.source,), writes=(self.destination,))

    def reference(self, source: np.ndarray) -> tuple[np.ndarray]:
        matrix = base.as_shape(source, base.shape_of_rank(self.source, 2))
        return (cast_array(matrix.T, self.source.dtype, self.destination.dtype),)

    def lower(self) -> Statement:
        shape = base.shape_of_rank(self.destination, 2)
        assert shape is not None
        return base.parallel(
            shape,
            lambda i, j: base.store_element(self.destination, (i, j), base.element(self.source, (j, i))),
            span=self.span,
        )
