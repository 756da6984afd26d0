"""How many rows of a matrix a block works on at once, for kernels that fold rows."""

from __future__ import annotations

BLOCK_ELEMENTS = 8192
"""Elements of float32 that a block of 128 threads holds in registers (64 a thread), or a CPU core in its first-level cache."""


def rows_at_once(columns: int) -> int:
    """Rows of this length that fit a block; 0 where not even one does, or where its length suits no vectors.

    Few rows make many blocks, and many blocks keep all of a machine busy.
    """
    if columns % 128 or not 0 < columns <= BLOCK_ELEMENTS:
        return 0
    return max(1, min(8, 1024 // columns))
