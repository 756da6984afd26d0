"""`T.fill` and `T.clear`: one value in every element of a tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.ir.nodes import Effects, Expr, Region, Statement, TileOperator, tile_operator
from tilewright.ops.base import elementwise, store_element
from tilewright.ops.rounding import cast_array


@tile_operator("fill")
class Fill(TileOperator):
    """``destination[...] = cast(value)``.

    Fields
    ------
    destination : any region.
    value : a scalar, converted to the destination's dtype.
    """

    destination: Region
    value: Expr

    def check(self) -> Iterator[str]:
        if self.value.dtype.lanes != 1:
            yield f"the value is a vector of {self.value.dtype}, but a scalar was expected"

    def effects(self) -> Effects:
        return Effects(writes=(self.destination,))

    def reference(self, value: Any) -> tuple[np.ndarray]:  # a number of Python's or NumPy's
        """The one element; writes broadcast."""
        return (cast_array(value, self.value.dtype, self.destination.dtype),)

    def lower(self) -> Statement:
        return elementwise(
            self.destination, lambda *index: store_element(self.destination, index, self.value), span=self.span
        )
