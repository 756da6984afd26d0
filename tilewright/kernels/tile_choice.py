"""Which tiles a dense product on a GPU is cut into: those that take the fewest cycles by the model of `tiles`.

A product may have two parts: columns that make whole waves of large tiles, and the others in smaller tiles that make
one short wave beside the end of the first part; or the blocks of a cluster divide K. Calls of a weight come with any
number of rows: a few kernels serve all of them (`kernels_of`), each call by the one that takes the fewest cycles for
its own rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import tilewright
from tilewright.kernels.repertoire import MOST, OWN, ROWS, Kernels, repertoire
from tilewright.kernels.roofline import HOPPER, Speed, ceil_div
from tilewright.kernels.tile_launches import Launch, Parts, cycles, cycles_of_parts, launches_of
from tilewright.kernels.tiles import Lanes, Tiles, TileTable, all_tiles, fitted_tiles, suiting, table_of, with_stages

WORTH, FAST_BYTES = 0.99, 0.98
"""The share of one part's cycles that two must stay below, and that of bytes whose sums are not promoted: of 20 random
products whose two parts were told faster by less, they were 1.7% slower on average, at worst 15% (H200, 28 November
2026)."""

ALIKE = 1.002
"""What the model cannot tell apart. Of tiles that are so near the fastest the largest is taken, which moves the fewest
bytes through shared memory."""

TRIED = 12
"""Tiles of a second part that are tried beside the first."""

LARGE = 128 * 160
"""Elements of a tile that whole waves are cut into."""

MANY = 4096
"""Rows that tiles are chosen for where nobody says how many there will be."""


@dataclass(frozen=True)
class DenseProduct:
    """A product with a weight of N rows and K columns; M is rows of the result wherever it is asked about them.

    Attributes
    ----------
    dtype : of the operands.
    swapped : whether tiles must, or must not, be `Tiles.swapped`, because lanes transpose an operand of bytes.
    promoted : whether lanes add the sums of each step to others.
    in_blocks : and scale them, by scales of blocks.
    part : whether this is the second of two parts of a product's columns: its tiles are no clusters that divide K,
        which wait until neighbours have left the first part (9 products, H200: 4% longer than told on average, 13% at
        worst, where 71 of others take what is told).
    """

    N: int
    K: int
    dtype: str = "bfloat16"
    speed: Speed = HOPPER
    swapped: bool | None = None
    promoted: bool = False
    in_blocks: bool = False
    part: bool = False

    @property
    def size(self) -> int:
        """Bytes of an operand's element."""
        return tilewright.dtype(self.dtype).storage_bytes

    @property
    def lanes(self) -> Lanes:
        """What lanes do with the product's steps."""
        return Lanes(self.promoted, self.in_blocks, self.swapped is not None and self.size == 1)

    @property
    def tiles(self) -> TileTable:
        """All tiles that it may be cut into."""
        return all_tiles(self.size, self.swapped)

    def cycles(self, parts: Parts, M: int) -> float:
        """Cycles by the model, which speaks of two parts only where the first makes whole waves of tiles."""
        if len(parts) == 2:
            (width, first), _ = parts
            down = ceil_div(M, first.block_M)
            if -down * ceil_div(width, first.block_N) % self.speed.cores >= max(2 * down, 2):
                return math.inf
        return cycles_of_parts(parts, M, self.K, self.speed, self.lanes)

    def fastest_parts(self, M: int) -> Parts:
        """The one or two parts that it takes the fewest cycles in."""
        single, alone = fastest_alone(self, M)[0]
        best: Parts = ((self.N, single),)
        fast_bytes = self.size == 1 and not self.promoted
        fewest = (FAST_BYTES if fast_bytes else WORTH) * alone.cycles
        if alone.waves == 1:
            return best
        # Those whose work would take the fewest cycles if no multiprocessor ever were idle come first, so that few
        # others need a look.
        for least, width, first, launch in sorted(self._first_parts(M), key=lambda found: found[0]):
            if least >= fewest:
                break
            for second, other in fastest_alone(replace(self, N=self.N - width, part=True), M):
                both = launch.beside(other, self.speed)
                if both < fewest:
                    best, fewest = ((width, first), (self.N - width, second)), both
        return best

    def _first_parts(self, M: int) -> Iterator[tuple[float, int, Tiles, Launch]]:
        """First parts of columns that make whole waves of large tiles: the cycles that a product in two parts takes at
        least, and the part."""
        N, K, speed, lanes = self.N, self.K, self.speed, self.lanes
        table = all_tiles(self.size, bool(self.swapped))
        large = table.rows * table.columns >= LARGE
        down, across = ceil_div(M, table.rows), ceil_div(N, table.columns)
        whole = down * across // speed.cores * speed.cores // down  # columns of tiles that make whole waves
        for count in (whole, whole - 1):  # blocks share loads in pairs
            widths = count * table.columns
            useful = large & (widths > 0) & (widths < N)
            widths = np.where(useful, widths, N)
            found = launches_of(table, M, widths, K, speed, lanes)
            taken = np.where(useful & suiting(table, M, widths, speed, lanes), found.cycles, np.inf)
            for of_shape in table.shapes:
                line = of_shape.start + int(taken[of_shape].argmin())
                if np.isfinite(taken[line]):
                    launch, width = found.one(line), int(widths[line])
                    work = launch.tiles * (launch.cycles - speed.rates.launch) / launch.waves
                    work = work + M * (N - width) * K / speed.product_rate(self.size)
                    least = max(launch.cycles, speed.rates.launch + work / speed.cores)
                    yield least, width, fitted_tiles(table.of[line], M, width, speed, lanes), launch

    def suited_tiles(self, M: int) -> Iterator[Tiles]:
        """All tiles that it may be cut into."""
        for line in np.flatnonzero(suiting(self.tiles, M, self.N, self.speed, self.lanes)):
            yield fitted_tiles(self.tiles.of[int(line)], M, self.N, self.speed, self.lanes)

    def candidates(self, M: int) -> Iterator[Parts]:
        """Ways to cut it: that of `parts_for`, the fastest, then all single parts by the cycles that they would
        take."""
        yield parts_for(self, M)
        yield self.fastest_parts(M)
        for tiles in sorted(
            self.suited_tiles(M), key=lambda tiles: cycles(tiles, M, self.N, self.K, self.speed, self.lanes)
        ):
            yield ((self.N, tiles),)


def fastest_first(table: TileTable, taken: np.ndarray) -> np.ndarray:
    """Lines of a table by the cycles that they take; of those that are alike, the largest tiles first."""
    alike = np.where(taken <= ALIKE * taken.min(), table.rows * table.columns, 0)
    return np.lexsort((taken, -alike))


@functools.lru_cache(maxsize=4096)
def fastest_alone(product: DenseProduct, M: int) -> list[tuple[Tiles, Launch]]:
    """The tiles that a product takes the fewest cycles in by itself, and some that are nearly as good."""
    table, N, speed, lanes = product.tiles, product.N, product.speed, product.lanes
    found = launches_of(table, M, N, product.K, speed, lanes, product.part)
    suits = suiting(table, M, N, speed, lanes) & ~(product.part & (table.splits > 1))
    taken = np.where(suits, found.cycles, np.inf)
    order = [int(line) for line in fastest_first(table, taken)[:TRIED] if np.isfinite(taken[line])]
    return [(fitted_tiles(table.of[line], M, N, speed, lanes), found.one(line)) for line in order]


TWO_PARTS = 512
"""Rows from which on products are looked at in two parts, every half octave of `ROWS`: fewer make hardly a wave of
large tiles."""


@functools.lru_cache(maxsize=1024)
def kernels_of(product: DenseProduct) -> Kernels[Parts]:
    """The parts of all kernels that calls of a weight run: each number of rows has one that suits it."""
    N, speed, lanes = product.N, product.speed, product.lanes
    table = table_of((
        *(with_stages(one, True, lanes) for one in product.tiles.of if not one.ping_pong),
        *(with_stages(one, False, lanes) for one in product.tiles.of if one.splits == 1),
    ))  # fmt: skip
    taken = np.array([launches_of(table, M, N, product.K, speed, lanes).cycles for M in ROWS])
    suits = np.array([suiting(table, M, N, speed, lanes) for M in ROWS])
    both = [product.fastest_parts(M) for M in ROWS[::-6] if M >= TWO_PARTS]
    pairs = [parts for parts in dict.fromkeys(both) if len(parts) == 2]
    of_pairs = [[product.cycles(parts, M) for M in ROWS] for parts in pairs]
    single = np.where(suits, taken, np.inf)
    times = np.concatenate([single, np.array(of_pairs).reshape(len(pairs), len(ROWS)).T], axis=1)
    listed: list[Parts] = [*(((N, one),) for one in table.of), *pairs]
    return Kernels(listed[column] for column in repertoire(times, MOST - OWN, ROWS))


@functools.lru_cache(maxsize=1 << 16)
def parts_for(product: DenseProduct, M: int) -> Parts:
    """The tiles of the kernel that a call with so many rows runs: of at most `MOST` that a weight has."""
    return kernels_of(product).of(M, lambda parts: product.cycles(parts, M), lambda: product.fastest_parts(M))
