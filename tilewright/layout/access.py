"""What a layout means for the accesses made through it: how wide they may be, and which banks they hit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.layout.digits import MEMORY
from tilewright.layout.tables import AnyLayout, TableLayout

BANK_BYTES = 4
"""Of a GPU's shared memory."""


def vector_width(layout: AnyLayout, bits: int, max_bytes: int = 16, dimension: int = -1, place: str = MEMORY) -> int:
    """How many elements, a power of two, are always contiguous and aligned along a dimension.

    Parameters
    ----------
    bits : of an element.
    max_bytes : the widest access there is.
    dimension : the one along which consecutive elements are taken, in groups aligned to their number.
    place : memory, or registers.
    """
    if not 0 <= dimension < layout.rank:
        dimension += layout.rank
    limit = max(1, max_bytes * 8 // bits)
    if isinstance(layout, TableLayout):
        return _width_of_table(layout.table(place), limit, dimension)
    lowest = layout.digits[dimension][0] if layout.digits[dimension] else None
    if lowest is None or lowest.place != place or lowest.stride != 1:
        return 1
    others = [one.stride for one in layout._all_digits() if one.place == place and one is not lowest]
    width = math.gcd(lowest.extent, *others)
    if layout.swizzle is not None and place == MEMORY:
        width = math.gcd(width, 1 << layout.swizzle.base)
    return min(width & -width, 1 << (limit.bit_length() - 1))


def _width_of_table(table: np.ndarray, limit: int, dimension: int) -> int:
    line = np.moveaxis(table, dimension, -1)
    width = 1
    while width * 2 <= limit and line.shape[-1] % (width * 2) == 0:
        groups = line.reshape(*line.shape[:-1], -1, width * 2)
        if (groups[..., :1] % (width * 2)).any() or (groups != groups[..., :1] + np.arange(width * 2)).any():
            break
        width *= 2
    return width


def bank_conflicts(byte_addresses: Sequence[int] | np.ndarray, access_bytes: int, banks: int) -> int:
    """Extra passes that an access of a warp takes because lanes ask one bank for different words.

    Parameters
    ----------
    byte_addresses : for each lane the first byte it accesses.
    access_bytes : of each lane; accesses wider than a bank are served in groups of as many lanes as fill all
        banks once.  Lanes that read the same word do not disturb each other.
    banks : of the machine.

    Returns
    -------
    0 where there is no conflict; 7 where eight rows of a matrix lie in the same banks.
    """
    addresses = np.asarray(byte_addresses, dtype=np.int64).reshape(-1)
    words = max(1, access_bytes // BANK_BYTES)
    group = max(1, banks // words)
    extra = 0
    for start in range(0, len(addresses), group):
        lanes = addresses[start : start + group]
        touched = np.unique((lanes[:, None] // BANK_BYTES + np.arange(words)).reshape(-1))
        extra += int(np.bincount(touched % banks).max()) - 1
    return extra


def warp_conflicts(
    layout: AnyLayout, coordinates: Sequence[np.ndarray], bits: int, elements: int = 1, *, banks: int
) -> int:
    """`bank_conflicts` of a warp whose lanes each access `elements` elements from the given coordinates on.

    Parameters
    ----------
    coordinates : for each dimension the coordinate of every lane's first element.
    bits : of an element.
    """
    offsets = np.asarray(layout.offset(MEMORY, *coordinates), dtype=np.int64)
    return bank_conflicts(offsets * bits // 8, max(1, elements * bits // 8), banks)
