"""Split-K over the blocks of a cluster: each block adds the partial sums of some rows, always in the same order."""

from __future__ import annotations

import tilewright.language as T
from tilewright.kernels.values import Tile, Value

PADDING = 4
"""Columns beyond those of a tile of sums, so that threads that write one column each meet in no bank."""


@T.macro
def add_over_cluster(found: Tile, mine: Tile, part: Value, blocks: int, distance: int = 1, own: Value = 0) -> None:
    """Add some rows of the partial sums that every block of the cluster has in shared memory, in registers.

    A block begins with its own sums and goes on with the next block's, so that one block at a time reads each tile.
    Others read a block's tile until the next barrier of the cluster.

    Parameters
    ----------
    found : a block's partial sums, in shared memory; columns beyond those of `mine` are left out.
    mine : the fragment for the rows that this block adds.
    part, blocks : the number of the block's part of K, and the number of parts.
    distance, own : how far apart their ranks in the cluster are, and the rank of the first.
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
