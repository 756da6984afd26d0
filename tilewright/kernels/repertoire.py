"""Which few kernels serve calls with any number of rows: those whose times, together, are nearest the best for each
number."""

from __future__ import annotations

import numpy as np

MOST = 12
"""Kernels of a weight for one kind of call: so many are compiled, however many numbers of rows its calls have."""

ROWS: tuple[int, ...] = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112),
    *sorted({round(128 * 2 ** (step / 8)) for step in range(8 * 6 + 1)}),
)
"""Numbers of rows, up to 8192, that kernels are compared at."""


def repertoire(times: np.ndarray, most: int = MOST) -> list[int]:
    """The columns of at most `most` kernels, each of which makes calls faster than those before it leave them.

    Parameters
    ----------
    times : of each number of rows (lines) with each kernel (columns); infinite where a kernel does not serve so many
        rows.

    Returns
    -------
    Greedily, the kernels after which the logarithm of the times that calls take is least on average.

    Examples
    --------
    >>> repertoire(np.array([[1.0, 2.0, 1.1], [4.0, 2.0, 2.1]]), most=1)
    [2]
    """
    slower = np.log(times / times.min(axis=1, keepdims=True))
    slower = np.minimum(slower, 1e3)  # a kernel that does not serve is worse than any that does
    left = np.full(len(times), np.inf)
    chosen: list[int] = []
    while len(chosen) < most and left.max() > 0:
        after = np.minimum(left[:, None], slower)
        best = int(after.sum(axis=0).argmin())
        chosen.append(best)
        left = after[:, best]
    return chosen
