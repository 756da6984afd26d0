"""Tiles of a product dealt to blocks that stay, so that all end together: what makes no whole wave is divided along K.

Groups of blocks first share the tiles that are too few for a wave: laid end to end, their steps along K are cut into as
many equal stretches as there are groups. Then each group takes every so many-th of the others. A stretch that begins
inside a tile leaves its sums in a workspace; who has the tile's first steps adds them, in order, so that results repeat
bit by bit. Stretches are dealt from the last block down: a block only ever waits for blocks of smaller numbers, which
the machine starts before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import tilewright.language as T
from tilewright.kernels import Tile, Value, least_share
from tilewright.language.proxies import Scalar

HELD, PIECE = 16, 8
"""Rows of sums that a warp holds, and columns of them in one piece of its registers."""


def share_of(tiles: Value, chunks: int, groups: int) -> Value:
    """Steps of shared tiles that each of so many groups takes, the last of them none where there are few; never more
    than a tile has."""
    return T.max(T.ceildiv(tiles % groups * chunks, groups), int(least_share(chunks)))


def own_stretch(tiles: Value, chunks: int, groups: int, group: Value) -> tuple[Value, Value, Value]:
    """A group's stretch of the steps of shared tiles: its first step, how many it is, and how many of them are its
    first tile's."""
    shared, share = tiles % groups * chunks, share_of(tiles, chunks, groups)
    first = T.min((groups - 1 - group) * share, shared)
    held = T.min(share, shared - first)
    return first, held, T.min(chunks - first % chunks, held)


@dataclass(frozen=True, slots=True)
class EvenShares:
    """What one group of blocks works on.

    Attributes
    ----------
    tiles : how many there are, known at launch.
    chunks : steps along K of each.
    groups, group : how many groups of blocks there are, and the number of this one among them.
    first, held, head : the group's stretch of shared tiles, see `own_stretch`; a kernel has names for them, since all
        that follows is made of them.
    """

    tiles: Value
    chunks: int
    groups: int
    group: Value
    first: Value
    held: Value
    head: Value

    @property
    def turns(self) -> Value:
        """Stretches of a group, some of them empty: two of shared tiles, and whole tiles."""
        return 2 + self.tiles // self.groups

    @property
    def steps(self) -> Value:
        """How many the group does in all."""
        return self.held + self.tiles // self.groups * self.chunks

    @property
    def works(self) -> bool | Scalar:
        """Whether the group has any step to do: there may be fewer than groups."""
        return self.held + self.tiles // self.groups > 0

    @property
    def own(self) -> Value:
        """The place of this group's stretches among all: counted from the last."""
        return self.groups - 1 - self.group

    def stretch(self, turn: Value) -> tuple[Value, Value, Value, Value]:
        """The tile of a turn, its first step, how many follow, and how many steps this group has done before."""
        begins, follows = turn == 0, turn == 1
        whole = self.tiles % self.groups - 2 * self.groups + self.own
        tile = T.if_then_else(turn < 2, self.first // self.chunks, whole)
        tile = tile + turn * T.if_then_else(turn < 2, 1, self.groups)
        begin = T.if_then_else(begins, self.first % self.chunks, 0)
        count = T.if_then_else(begins, self.head, T.if_then_else(follows, self.held - self.head, self.chunks))
        later = self.held + (turn - 2) * self.chunks
        before = T.if_then_else(begins, 0, T.if_then_else(follows, self.head, later))
        return tile, begin, count, before

    def peers(self, tile: Value) -> tuple[Value, Value]:
        """The places behind this group's that have stretches of its last shared tile: the first, and the one behind
        them."""
        return self.own + 1, T.ceildiv((tile + 1) * self.chunks, share_of(self.tiles, self.chunks, self.groups))


@dataclass(frozen=True, slots=True)
class OneTile:
    """What a block works on that has one tile, or some of its steps.

    Attributes
    ----------
    tile : its place.
    begin, count : its first step along K, and how many follow.
    """

    tile: tuple[Value, Value]
    begin: Value
    count: Value

    turns = 1

    @property
    def steps(self) -> Value:
        """How many the block does in all."""
        return self.count

    @property
    def works(self) -> bool | Scalar:
        """Whether the block has any step to do."""
        return self.count > 0

    def stretch(self, turn: Value) -> tuple[tuple[Value, Value], Value, Value, Value]:
        """The tile, its first step, how many follow, and how many steps the block has done before."""
        return self.tile, self.begin, self.count, 0


def in_panels(tile: Value, entries: Value, wide: int, band: int) -> tuple[Value, Value]:
    """A tile's place down A and across W, of which `wide` tiles cover the rows: `band` places down A are walked before
    the next of W."""
    panel = tile // (band * wide)
    inside = tile - panel * band * wide
    height = T.min(entries - panel * band, band) if band > 1 else 1
    across = inside // band
    for lower in range(1, band):  # numbers that a compiler knows are divided by in a few instructions
        across = T.if_then_else(height == lower, inside // lower, across)
    return panel * band + inside - across * height, across


def workspaces(places: int, totals: int, rows: int, columns: int, dtype: str) -> tuple[Tile, Tile]:
    """Memory for the sums of so many roles, and a flag for each: whether they are there.

    Eight columns of 16 rows lie together, so that a warp writes and reads the pairs that its threads hold as whole
    lines.
    """
    shape = (places, totals, rows // HELD, columns // PIECE, HELD, PIECE)
    return T.alloc_global(shape, dtype), T.alloc_global((places,), "uint32")


@T.macro
def hand_over(totals: list[Tile], partial: Tile, place: Value, barrier: int, threads: int) -> None:
    """Leave a warpgroup's sums in the workspace; the messenger, who waits for all of them at the barrier, says so."""
    for number, total in list(enumerate(totals)):
        for i, j in T.Parallel(*total.shape):
            partial[place, number, i // HELD, j // PIECE, i % HELD, j % PIECE] = total[i, j]
    T.named_barrier_arrive(barrier, threads + 32)


@T.macro
def announce(shares: EvenShares, done: Tile, first: Value, barrier: int, count: int, threads: int) -> None:
    """What the messenger, a warp, does: it waits until sums have left for memory, so that those who multiply need
    not."""
    _, begin, steps, _ = shares.stretch(0)
    if (begin > 0) & (steps > 0):
        T.pdl_sync()
        T.sync_threads(barrier, threads + 32)
        if T.get_thread_binding() == 0:
            for number in list(range(count)):
                T.atomic_store(done[first + number], 1, "release")


@T.macro
def take_over(totals: list[Tile], partial: Tile, done: Tile, first: Value, count: Value, step: int) -> None:
    """Add what `count` other blocks left, from place `first` on each `step` further, as soon as all of it is there."""
    most = done.shape[0] - 1
    if T.get_thread_binding() == 0:
        for peer in T.serial(count):
            place = T.min(first + peer * step, most)
            ready: Value = T.alloc_var("uint32", 0)
            while ready == 0:
                ready = T.atomic_load(done[place], "acquire")
            T.atomic_store(done[place], 0, "relaxed")
    T.sync_threads()
    for peer in T.serial(count):
        for number, total in list(enumerate(totals)):
            for i, j in T.Parallel(*total.shape):
                place = T.min(first + peer * step, most)
                total[i, j] += partial[place, number, i // HELD, j // PIECE, i % HELD, j % PIECE]
