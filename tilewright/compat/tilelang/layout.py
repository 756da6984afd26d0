"""``tilelang.layout``: index maps, and the swizzled one of shared tiles."""

from __future__ import annotations

import math
from typing import Any

from tilewright.language import Fragment, Layout

__all__ = ["Fragment", "Layout", "make_swizzled_layout"]

CHUNK_BITS, ROWS = 128, 8


def make_swizzled_layout(buffer: Any, *_: Any, **options: Any) -> Any:
    """A layout in which 16-byte chunks of 8 neighbouring rows lie in different banks.

    Parameters
    ----------
    buffer : a shared tile.
    options : accepted for TileLang's sake.
    """
    *outer, columns = (int(extent) for extent in buffer.shape)
    chunk = CHUNK_BITS // buffer.buffer.dtype.bits
    span = math.gcd(ROWS, columns // chunk) if columns % chunk == 0 else 1

    def place(*indices: Any) -> Any:
        row: Any = 0
        for index, extent in zip(indices[:-1], outer, strict=True):
            row = row * extent + index
        return row * columns + (indices[-1] ^ (row // (ROWS // span) % span * chunk))

    return Layout((*outer, columns), place)
