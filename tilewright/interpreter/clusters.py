"""Clusters while a program runs: which blocks must run at once, and copies from one of them to others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import BarrierMisuse
from tilewright.interpreter.barriers import barriers_of
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.tiles import read_region, write_region
from tilewright.ir import Call, Kernel, find, walk
from tilewright.ops import Copy

TOGETHER = (
    "cluster_sync", "cluster_arrive", "cluster_arrive_relaxed", "cluster_wait", "cluster_rank",
    "signal_arrive_cluster",
)  # fmt: skip
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


def copy_between_blocks(state: Evaluator, copy: Copy) -> None:
    """A copy out of the shared memory of another block; or into it, which one thread's arrival at a barrier there tells
    of.

    Raises
    ------
    BarrierMisuse : there is no such block.
    """
    assert copy.rank is not None
    rank = state.uniform(copy.rank)
    if not 0 <= rank < len(state.peers):
        raise BarrierMisuse(f"there is no block {rank} in a cluster of {len(state.peers)}")
    own, theirs = state.places, state.peers[rank]
    state.places = own if copy.barrier is not None else theirs
    values = read_region(state, copy.source)
    state.places = theirs if copy.barrier is not None else own
    write_region(state, copy.destination, copy.reference(values)[0])
    state.places = own
    if copy.barrier is not None:
        for barrier, *_ in barriers_of(state, copy.barrier, rows=state.peer_barriers[rank]):
            barrier.arrive(1)
        state.woken += 1


def copy_for_blocks(state: Evaluator, copy: Copy) -> bool:
    """Do a load for several blocks: the lowest of them brings its tile to all. False where it is one block's alone.

    Each announces the tile's bytes at its own barrier; they land when the lowest one comes here.
    """
    assert copy.mask is not None and copy.barrier is not None
    ranks = [rank for rank in range(len(state.peers)) if copy.mask >> rank & 1]
    if state.rank not in ranks or len(ranks) < 2:
        return False
    for barrier, *_ in barriers_of(state, copy.barrier):
        barrier.bytes += copy.landing_bytes
    if state.rank != ranks[0]:
        return True
    values = copy.reference(read_region(state, copy.source))[0]
    own = state.places
    for rank in ranks:
        state.places = state.peers[rank]
        write_region(state, copy.destination, values)
        state.places = own
        for barrier, *_ in barriers_of(state, copy.barrier, rows=state.peer_barriers[rank]):
            barrier.announce(-copy.landing_bytes)
    state.woken += 1
    return True
