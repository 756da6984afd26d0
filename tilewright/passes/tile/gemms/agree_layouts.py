"""Statements that each could hold their fragments in several ways choose so that all of them agree.

Two gemms that add to one accumulator need it in the same threads.  Where the best way of the one is not open to the
other, both take the candidates that are best together::

    gemm(a, b, c)     # 1. wgmma on 1 x 2 warpgroups   2. mma on 4 x 2 warps   3. mma on 8 x 1 warps  -> 2
    gemm(d, e, c)     # 1. mma on 4 x 2 warps          2. mma on 8 x 1 warps                          -> 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.nodes import Buffer
from tilewright.layout.layout import Layout

Demand = Mapping[Buffer, Layout]
"""The layouts of fragments that one way of executing a statement asks for."""


def agree(candidates: Sequence[Sequence[Demand]]) -> list[int] | None:
    """For each statement the way to take, such that no fragment is asked for twice differently.

    Parameters
    ----------
    candidates : of each statement, the best first.

    Returns
    -------
    Positions in `candidates` with the least sum; None where no choice agrees.
    """
    best: list[int] | None = None
    least = sum(map(len, candidates)) + 1

    def go_on(chosen: list[int], known: dict[Buffer, Layout], cost: int) -> None:
        nonlocal best, least
        if cost >= least:
            return
        if len(chosen) == len(candidates):
            best, least = list(chosen), cost
            return
        for position, demand in enumerate(candidates[len(chosen)]):
            if all(known.get(buffer, layout) == layout for buffer, layout in demand.items()):
                go_on([*chosen, position], {**known, **demand}, cost + position)

    go_on([], {}, 0)
    return best
