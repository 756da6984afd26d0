"""How many rows of a matrix a block works on at once, for kernels that fold rows."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK_ELEMENTS = 8192
"""Elements of float32 that a block of 128 threads holds in registers (64 a thread), or a CPU core in its first-level cache."""


def rows_at_once(columns: int, tensor: Any = None) -> int:
    """Rows of this length that fit a block; 0 where not even one does, or where its length suits no vectors.

    Few rows make many blocks, and many blocks keep all of a machine busy.  Rows of a `tensor` on a CPU may have any
    length: one core has what vectors leave over in a moment.
    """
    suits = columns % 128 == 0 or _is_on_cpu(tensor)
    if not suits or not 0 < columns <= BLOCK_ELEMENTS:
        return 0
    return max(1, min(8, 1024 // columns))


def _is_on_cpu(tensor: Any) -> bool:
    device = getattr(tensor, "device", None)
    return isinstance(tensor, np.ndarray) or getattr(device, "type", None) == "cpu"
