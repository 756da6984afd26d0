"""The order in which a packed weight has its columns: by groups, each padded."""

from __future__ import annotations

import numpy as np

RUN = 16
"""Groups of columns are padded to multiples of this, so that partial sums of a group fill matrix instructions."""


def column_order(columns: int, group: int, g_idx: np.ndarray | None) -> np.ndarray | None:
    """Columns of the activations in the order in which the weight is packed, -1 where a group is padded; None for none.

    Columns of a group follow one another, and every group takes as many columns: a multiple of `RUN`.
    """
    if g_idx is None and (group >= columns or group % RUN == 0):
        return None
    of = np.arange(columns) // group if g_idx is None else np.asarray(g_idx, np.int64)
    if (of == np.arange(columns) // group).all() and group % RUN == 0:
        return None
    count = max(int(of.max()) + 1, -(-columns // group))
    sizes = np.bincount(of, minlength=count)
    run = -(-int(sizes.max()) // RUN) * RUN
    order = np.full((count, run), -1, np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    by_group = np.argsort(of, kind="stable").astype(np.int32)
    for one in range(count):
        order[one, : sizes[one]] = by_group[starts[one] : starts[one] + sizes[one]]
    return order.reshape(-1)
