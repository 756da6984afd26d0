"""Which blocks of a grid must run at once: those of a cluster that meet, or that read each other's memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.nodes import Call, Kernel
from tilewright.ir.visitor import find, walk
from tilewright.ops.copy import Copy

TOGETHER = (
    "cluster_sync",
    "cluster_arrive",
    "cluster_arrive_relaxed",
    "cluster_wait",
    "cluster_rank",
    "mbarrier_arrive_cluster",
)
"""Functions by which blocks of a cluster depend on each other, or tell themselves apart."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """How a grid divides into clusters.

    Attributes
    ----------
    grid, sizes : blocks of the grid and of a cluster along each dimension.
    """

    grid: tuple[int, ...]
    sizes: tuple[int, ...]

    def ranks(self, block: int) -> Sequence[int]:
        """The blocks of a cluster in the order of their ranks, for its first block; none for the others."""
        place = []
        for extent in self.grid:
            place.append(block % extent)
            block //= extent
        if any(at % size for at, size in zip(place, self.sizes, strict=True)):
            return ()
        found = []
        for offsets in itertools.product(*(range(size) for size in reversed(self.sizes))):
            number, step = 0, 1
            for at, offset, extent in zip(place, reversed(offsets), self.grid, strict=True):
                number += (at + offset) * step
                step *= extent
            found.append(number)
        return found


def cluster_of(kernel: Kernel, grid: tuple[int, ...]) -> Clusters | None:
    """The clusters of a kernel whose blocks depend on each other; None where they run one after the other as well."""
    if any(node.function == "grid_sync" for node in find(kernel.body, Call)):
        return Clusters(grid, grid)
    sizes = tuple(kernel.attribute("cluster", (1,) * len(grid)))[: len(grid)]
    if not any(
        (isinstance(node, Call) and (node.function in TOGETHER or "cluster" in node.arguments))
        or (isinstance(node, Copy) and (node.rank is not None or node.mask is not None))
        for node in walk(kernel.body)
    ):
        return None
    return Clusters(grid, sizes)
