"""Stream-K: persistent blocks compute whole tiles, and split the tiles of the last partial wave along K.

Groups of blocks begin with the tiles of the partial wave, and with those of one whole wave besides where the partial
one has so few that many groups would share each. The steps along K of all of them, one tile after the other, are
divided into equal ranges, one a group. The steps of a range that belong to one tile are a segment. Whole tiles follow,
each a segment too. A segment that begins inside a tile stores its partial sums in a workspace. The group with the
tile's first steps adds them in order, so that results are the same in every run. The last block has the first range: a
block only waits for blocks with smaller numbers, which the machine starts before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import tilewright.language as T
from tilewright.kernels import SPREAD, Tile, Value, least_steps
from tilewright.language.proxies import Scalar

HELD, PIECE = 16, 8
"""Rows of sums that a warp holds, and columns of them in one piece of its registers."""


def tiles_to_share(tiles: Value, groups: int) -> Value:
    """How many of the tiles groups split along K (`roofline.shared_tiles`)."""
    left = tiles % groups
    return left + T.if_then_else((left > 0) & (left * SPREAD <= groups) & (tiles >= groups), groups, 0)


def range_length(tiles: Value, chunks: int, groups: int) -> Value:
    """Steps of shared tiles that each group takes, fewer than two tiles have; groups may be left without any."""
    return T.max(T.ceildiv(tiles_to_share(tiles, groups) * chunks, groups), int(least_steps(chunks)))


def range_of(tiles: Value, chunks: int, groups: int, group: Value) -> tuple[Value, Value, Value]:
    """A group's range of the shared tiles' steps: its first step, its length, and the steps in its first tile."""
    shared, share = tiles_to_share(tiles, groups) * chunks, range_length(tiles, chunks, groups)
    first = T.min((groups - 1 - group) * share, shared)
    length = T.min(share, shared - first)
    return first, length, T.min(chunks - first % chunks, length)


@dataclass(frozen=True, slots=True)
class StreamK:
    """The work of one group of blocks.

    Attributes
    ----------
    tiles : how many there are, known at launch.
    chunks : steps along K of each.
    groups, group : how many groups of blocks there are, and the number of this one among them.
    first, length, head : see `range_of`; a kernel gives them names, since all other expressions contain them.
    """

    tiles: Value
    chunks: int
    groups: int
    group: Value
    first: Value
    length: Value
    head: Value

    @property
    def alone(self) -> Value:
        """Tiles that a group computes alone."""
        return (self.tiles - tiles_to_share(self.tiles, self.groups)) // self.groups

    @property
    def shared(self) -> Value:
        """Tiles that the range may reach into: three where it is longer than one."""
        return T.if_then_else(self.length > self.chunks, 3, 2)

    @property
    def segments(self) -> Value:
        """Segments of a group, some of them empty: those of shared tiles, and whole tiles."""
        return self.shared + self.alone

    @property
    def steps(self) -> Value:
        """How many the group does in all."""
        return self.length + self.alone * self.chunks

    @property
    def has_work(self) -> bool | Scalar:
        """Whether the group has any step to do: there may be fewer than groups."""
        return self.length + self.alone > 0

    @property
    def own(self) -> Value:
        """The number of this group's range: the last group has the first."""
        return self.groups - 1 - self.group

    def segment(self, number: Value) -> tuple[Value, Value, Value, Value]:
        """The tile of a segment, its first step, how many follow, and how many steps this group has done before."""
        begins, shares = number == 0, number < self.shared
        begin = T.if_then_else(begins, self.first % self.chunks, 0)
        behind = self.head + (number - 1) * self.chunks
        count = T.if_then_else(begins, self.head, T.max(0, T.min(self.chunks, self.length - behind)))
        later = number - self.shared
        own = tiles_to_share(self.tiles, self.groups) + later * self.groups + self.own
        tile = T.if_then_else(shares, self.first // self.chunks + number, own)
        before = T.if_then_else(shares, T.if_then_else(begins, 0, behind), self.length + later * self.chunks)
        return tile, begin, T.if_then_else(shares, count, self.chunks), before

    def peers(self, tile: Value) -> tuple[Value, Value]:
        """The ranges that also have steps of this group's last shared tile: the first, and the end."""
        return self.own + 1, T.ceildiv((tile + 1) * self.chunks, range_length(self.tiles, self.chunks, self.groups))


@dataclass(frozen=True, slots=True)
class OneTile:
    """The work of a block that computes one tile, or some of its steps.

    Attributes
    ----------
    tile : its place.
    begin, count : its first step along K, and how many follow.
    """

    tile: tuple[Value, Value]
    begin: Value
    count: Value

    segments = 1

    @property
    def steps(self) -> Value:
        """How many the block does in all."""
        return self.count

    @property
    def has_work(self) -> bool | Scalar:
        """Whether the block has any step to do."""
        return self.count > 0

    def segment(self, number: Value) -> tuple[tuple[Value, Value], Value, Value, Value]:
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
    """Memory for the partial sums of so many roles, and a flag for each that says whether they are stored.

    Eight columns of 16 rows lie together, so that a warp writes and reads the pairs that its threads hold as whole
    lines.
    """
    shape = (places, totals, rows // HELD, columns // PIECE, HELD, PIECE)
    return T.alloc_global(shape, dtype), T.alloc_global((places,), "uint32")


@T.macro
def store_partial(totals: list[Tile], partial: Tile, place: Value, barrier: int, threads: int) -> None:
    """Store a warpgroup's partial sums in the workspace; the messenger, which waits at the barrier, sets the flag."""
    for number, total in list(enumerate(totals)):
        for i, j in T.Parallel(*total.shape):
            partial[place, number, i // HELD, j // PIECE, i % HELD, j % PIECE] = total[i, j]
    T.named_barrier_arrive(barrier, threads + 32)


@T.macro
def flag_partial(work: StreamK, done: Tile, first: Value, barrier: int, count: int, threads: int) -> None:
    """The messenger warp waits until partial sums are stored and sets their flags, so that consumers need not wait."""
    _, begin, steps, _ = work.segment(0)
    if (begin > 0) & (steps > 0):
        T.pdl_sync()
        T.sync_threads(barrier, threads + 32)
        if T.get_thread_binding() == 0:
            for number in list(range(count)):
                T.atomic_store(done[first + number], 1, "release")


@T.macro
def add_partial(totals: list[Tile], partial: Tile, done: Tile, first: Value, count: Value, step: int) -> None:
    """Wait for the partial sums of `count` other blocks and add them: places `first`, `first + step` and so on."""
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
