"""Copies between the shared memories of blocks of a cluster, and those that one block makes for several."""

from __future__ import annotations

import math

from tilewright.errors import BarrierMisuse
from tilewright.interpreter.barriers import barriers_of
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.tiles import read_region, write_region
from tilewright.ops.copy import Copy


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


def copy_for_blocks(state: Evaluator, copy: Copy) -> None:
    """What a load means for the other blocks that get its tile: the lowest of them brings it to all.

    Each announces the tile's bytes at its own barrier; they land when the lowest one comes here.
    """
    assert copy.mask is not None and copy.barrier is not None
    ranks = [rank for rank in range(len(state.peers)) if copy.mask >> rank & 1]
    if state.rank not in ranks or len(ranks) < 2:
        return
    size = copy.destination.dtype.nbytes(math.prod(e for e in copy.destination.extents if isinstance(e, int)))
    for barrier, *_ in barriers_of(state, copy.barrier):
        barrier.bytes += size
    if state.rank != ranks[0]:
        return
    values = copy.reference(read_region(state, copy.source))[0]
    own = state.places
    for rank in ranks:
        state.places = state.peers[rank]
        write_region(state, copy.destination, values)
        state.places = own
        for barrier, *_ in barriers_of(state, copy.barrier, rows=state.peer_barriers[rank]):
            barrier.announce(-size)
    state.woken += 1
