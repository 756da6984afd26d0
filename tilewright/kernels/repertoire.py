"""Which few kernels serve calls with any number of rows: those whose times, together, are nearest the best for each
number."""

from __future__ import annotations

import numpy as np

MOST = 12
"""Kernels of a weight for one kind of call: so many are compiled, however many numbers of rows its calls have."""

ROWS: tuple[int, ...] = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112),
    *sorted({round(128 * 2 ** (step / 12)) for step in range(12 * 6 + 1)}),
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
    The kernels after which calls lose the least (`_loss`): one by one, then each in turn for a better one in its place.

    Examples
    --------
    >>> repertoire(np.array([[1.0, 2.0, 1.1], [4.0, 2.0, 2.1]]), most=1)
    [2]
    """
    slower = np.log(times / times.min(axis=1, keepdims=True))
    slower = np.minimum(slower, 1e3)  # a kernel that does not serve is worse than any that does
    left = np.full(len(times), 1e3)
    chosen: list[int] = []
    while len(chosen) < most and left.max() > 0:
        chosen.append(_best_beside(left, slower))
        left = np.minimum(left, slower[:, chosen[-1]])
    changed = len(chosen) > 1
    while changed:
        changed = False
        for place, column in enumerate(chosen):
            others = slower[:, chosen[:place] + chosen[place + 1 :]].min(axis=1)
            better = _best_beside(others, slower)
            losses = [_loss(np.minimum(others, slower[:, one])).sum() for one in (column, better)]
            if losses[1] < losses[0] * (1 - 1e-6):
                chosen[place], changed = better, True
    return chosen


def _best_beside(left: np.ndarray, slower: np.ndarray) -> int:
    """The column that leaves the least loss beside others that leave so much."""
    return int(_loss(np.minimum(left[:, None], slower)).sum(axis=0).argmin())


def _loss(slower: np.ndarray) -> np.ndarray:
    """What calls lose that are slower by these logarithms: those that are much slower weigh more."""
    return np.asarray(slower + 5 * slower**2)
