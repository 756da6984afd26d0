"""Candidates for a product, and which few kernels serve calls with any number of rows: those whose times, together, are
nearest the best for each number, and some that are made for numbers of rows that calls really have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from tilewright.kernels.roofline import Speed, Work, cycles_of

MOST = 12
"""Kernels of a weight for one kind of call: so many are compiled, however many numbers of rows its calls have."""

OWN = 4
"""How many of them are not chosen before, but are the fastest for numbers of rows that the first calls have.

Calls of six numbers of rows, one of each range from 1 to 8192, lose 0.4% by the model (0.7% with three), calls of many
numbers 3.7% (3.6%); of six above 200 rows 1.3% (1.8%).
"""

WORTH = (0.995, 0.99, 0.98, 0.96)
"""The share of the others' time that the first, the second, ... such kernel must stay below: those that are left are
kept for numbers of rows that gain more. With 0.98 for each calls of one number of rows lost 0.12% by the model instead
of 0.01%, of three 0.13% instead of 0.04%, of many 4.70% instead of 4.68%."""

Kind = TypeVar("Kind")

ROWS: tuple[int, ...] = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112),
    *sorted({round(128 * 2 ** (step / 12)) for step in range(12 * 6 + 1)}),
)
"""Numbers of rows, up to 8192, that kernels are compared at."""


def repertoire(times: np.ndarray, most: int = MOST, rows: Sequence[int] = ()) -> list[int]:
    """The columns of at most `most` kernels, each of which makes calls faster than those before it leave them.

    Parameters
    ----------
    rows : the numbers of rows: each stands for those near it, as many octaves as there are between its neighbours.
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
    weight = np.gradient(np.log([*rows, rows[-1] * 2]))[:-1] if len(rows) > 1 else np.ones(len(times))
    left = np.full(len(times), 1e3)
    chosen: list[int] = []
    while len(chosen) < most and left.max() > 0:
        chosen.append(_best_addition(left, slower, weight))
        left = np.minimum(left, slower[:, chosen[-1]])
    changed = len(chosen) > 1
    while changed:
        changed = False
        for place, column in enumerate(chosen):
            others = slower[:, chosen[:place] + chosen[place + 1 :]].min(axis=1)
            better = _best_addition(others, slower, weight)
            losses = [weight @ _loss(np.minimum(others, slower[:, one])) for one in (column, better)]
            if losses[1] < losses[0] * (1 - 1e-6):
                chosen[place], changed = better, True
    return chosen


def _best_addition(left: np.ndarray, slower: np.ndarray, weight: np.ndarray) -> int:
    """The column that leaves the least loss beside others that leave so much."""
    return int((weight @ _loss(np.minimum(left[:, None], slower))).argmin())


def _loss(slower: np.ndarray) -> np.ndarray:
    """What calls lose that are slower by these logarithms: those that are much slower weigh more."""
    return np.asarray(slower + 6 * slower**2)


class Kernels(Generic[Kind]):
    """The kernels that calls of a weight run.

    Some serve every number of rows (`repertoire`). A call that one of its own would serve better gets it, until there
    are as many as a weight may have; from then on no number of rows needs a new one. What a number of rows has got it
    keeps.

    Parameters
    ----------
    serving : kernels that together serve every number of rows.
    most : kernels of a weight.

    Examples
    --------
    >>> kernels = Kernels(["tall"], most=2)
    >>> kernels.of(300, {"tall": 9.0, "low": 7.0}.__getitem__, lambda: "low")
    'low'
    >>> kernels.of(400, {"tall": 9.0, "low": 8.0, "flat": 7.0}.__getitem__, lambda: "flat")
    'low'
    """

    def __init__(self, serving: Iterable[Kind], most: int = MOST) -> None:
        self.made, self.most = list(serving), most
        self.serving = len(self.made)
        self._of: dict[int, Kind] = {}

    def of(self, M: int, cycles: Callable[[Kind], float], fastest: Callable[[], Kind]) -> Kind:
        """The kernel for so many rows. `cycles` says what one takes for them, infinite where it does not serve them;
        `fastest` gives the one that takes the fewest of all that there could be."""
        found = self._of.get(M)
        if found is None:
            found = min(self.made, key=cycles)
            if len(self.made) < self.most:
                own = fastest()
                worth = WORTH[min(len(self.made) - self.serving, len(WORTH) - 1)]
                if own not in self.made and cycles(own) < worth * cycles(found):
                    self.made.append(own)
                    found = own
            self._of[M] = found
        return found


def groups_of(wide: int, most: int) -> list[int]:
    """Numbers of groups of blocks that stay: as many as there can be, and those not far fewer that share no tile of any
    number of rows, where `wide` tiles cover the rows of W.

    Examples
    --------
    >>> groups_of(32, 66)
    [64, 66]
    """
    whole = {groups for groups in range(-(-most // 2), most) if groups % wide == 0 or wide % groups == 0}
    return [*sorted(whole), most]


class Candidates:
    """Candidates for the product of a weight, each a kernel's sizes, and their estimated times: a subclass counts the
    `work` of each.

    Attributes
    ----------
    of : the candidates: sizes by name.
    columns : an array of every size, one element a candidate.
    most, few : kernels that calls run, and the rows up to which another kernel serves them.
    """

    def __init__(self, of: list[dict[str, int]], speed: Speed, most: int = MOST, few: int = 0) -> None:
        self.of = list({repr(one): one for one in of}.values())
        self.speed, self.most, self.few = speed, most, few
        self.columns = {name: np.array([int(one[name]) for one in self.of]) for name in self.of[0]}

    def work(self, M: int) -> Work:
        """What launches for so many rows do."""
        raise NotImplementedError

    def fits(self, M: int) -> np.ndarray | bool:
        """Which candidates serve so many rows."""
        return True

    def cycles(self, M: int) -> np.ndarray:
        """What launches for so many rows take; infinite where a candidate does not serve them."""
        return np.where(self.fits(M), cycles_of(self.work(M), self.speed), np.inf)

    @functools.cached_property
    def kernels(self) -> Kernels[int]:
        """The candidates that calls run, by number: a few, so that one of them suits each number of rows."""
        rows = [M for M in ROWS if self.few < M]
        serving = repertoire(np.array([self.cycles(M) for M in rows]), self.most - OWN, rows)
        return Kernels(serving, self.most)

    def choice(self, M: int) -> dict[str, int]:
        """Of the candidates that serve the weight the fastest for so many rows."""
        times = self.cycles(M)
        return self.of[self.kernels.of(M, lambda index: float(times[index]), lambda: int(times.argmin()))]

    def ranked(self, M: int) -> Iterator[dict[str, int]]:
        """All candidates that serve so many rows, the fastest first."""
        times = self.cycles(M)
        yield from (self.of[index] for index in np.argsort(times, kind="stable") if np.isfinite(times[index]))
