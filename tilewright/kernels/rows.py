"""How many rows of a matrix a block works on at once, for kernels that fold rows."""

from __future__ import annotations

import numpy as np

from tilewright.targets.cpu.arch import host

BLOCK_ELEMENTS = 8192
"""Elements of float32 that a block of 128 threads holds in registers (64 a thread)."""

TILES = 2
"""Tiles of float32 that kernels of rows have at most; on a CPU they stay in a core's second-level cache."""


def rows_at_once(columns: int, tensor: object = None) -> int:
    """Rows of this length that fit a block; 0 where not even one does, or where its length suits no vectors.

    Few rows make many blocks, and many blocks keep all of a machine busy. One core of a CPU takes rows of any length
    one by one: what vectors leave over it has in a moment.
    """
    if _is_on_cpu(tensor):
        return int(0 < columns <= host().l2_bytes // (4 * TILES))
    if columns % 128 or not 0 < columns <= BLOCK_ELEMENTS:
        return 0
    return max(1, min(8, 1024 // columns))


def _is_on_cpu(tensor: object) -> bool:
    device = getattr(tensor, "device", None)
    return isinstance(tensor, np.ndarray) or getattr(device, "type", None) == "cpu"
