"""Adding up what the blocks of a cluster found that divide K: each block finishes some rows, always in the same
order."""

from __future__ import annotations

import tilewright.language as T
from tilewright.kernels.values import Tile, Value

PADDING = 4
"""Columns beyond those of a tile of sums, so that threads that write one column each meet in no bank."""


@T.macro
def add_shares(found: Tile, mine: Tile, part: Value, blocks: int, distance: int = 1, own: Value = 0) -> None:
    """Some rows of the tile that every block of the cluster has in shared memory, added up in a block's registers.

    A block begins with its own and goes on with the next one's, so that each is read by one other at a time.  Its tile
    is read by others until the cluster meets again.

    Parameters
    ----------
    found : a block's sums, in shared memory; more columns than `mine` has are left out.
    mine : the fragment for a block's share of the rows.
    part, blocks : the block's number among those that add up, and how many there are.
    distance, own : how far apart their ranks in the cluster are, and the rank of the first of them.
    """
    rows, columns = mine.shape
    first = part * rows
    other = T.alloc_fragment((rows, columns), mine.dtype)
    T.sync_cluster()
    T.copy(found[first : first + rows, 0:columns], mine)
    for step in T.unroll(blocks - 1):
        T.copy(found[first : first + rows, 0:columns], other, rank=own + (part + 1 + step) % blocks * distance)
        for i, j in T.Parallel(rows, columns):
            mine[i, j] += other[i, j]
