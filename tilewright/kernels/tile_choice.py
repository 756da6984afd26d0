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

import numpy as np

import tilewright
from tilewright.kernels.repertoire import MOST, OWN, ROWS, Kernels, repertoire
from tilewright.kernels.roofline import HOPPER, Speed, ceil_div
from tilewright.kernels.tiles import (
    IDLE,
    Lanes,
    Launch,
    Parts,
    Tiles,
    all_tiles,
    cycles,
    cycles_of_parts,
    fitted_tiles,
    launches_of,
    suiting,
    table_of,
    with_stages,
)

WORTH, FAST_BYTES = 0.99, 0.98
"""The share of one part's cycles that two must stay below, and that of bytes whose sums are not promoted: they were 3%
slower than the model says of them beside single ones, others 1% (H200, 16 products)."""

ALIKE = 1.002
"""What the model cannot tell apart. Of tiles that are so near the fastest the largest is taken, which moves the fewest
bytes through shared memory."""

TRIED = 12
"""Tiles of a second part that are tried beside the first."""

LARGE = 128 * 160
"""Elements of a tile that whole waves are cut into."""

MANY = 4096
"""Rows that tiles are chosen for where nobody says how many there will be."""


def lanes_of(dtype: str, turned: bool | None, promoted: bool = False, in_blocks: bool = False) -> Lanes:
    """What lanes do with a product's steps; parameters as for `choose_tiles`."""
    return Lanes(promoted, in_blocks, turned is not None and tilewright.dtype(dtype).storage_bytes == 1)


def choose_parts(
    M: int, N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER, turned: bool | None = None,
    promoted: bool = False, in_blocks: bool = False,
) -> Parts:  # fmt: skip
    """One or two parts for a product of this size; parameters as for `choose_tiles`."""
    lanes = lanes_of(dtype, turned, promoted, in_blocks)
    single, alone = _fastest(M, N, K, dtype, speed, turned, promoted, in_blocks)[0]
    best: Parts = ((N, single),)
    fast_bytes = tilewright.dtype(dtype).storage_bytes == 1 and not promoted
    fewest = (FAST_BYTES if fast_bytes else WORTH) * alone.cycles
    if alone.waves == 1:
        return best
    # Those whose work would take the fewest cycles if no multiprocessor ever were idle come first, so that few others
    # need a look.
    firsts = _first_parts(M, N, K, dtype, speed, turned, lanes)
    for least, width, first, launch in sorted(firsts, key=lambda found: found[0]):
        if least >= fewest:
            break
        for second, other in _fastest(M, N - width, K, dtype, speed, turned, promoted, in_blocks):
            both = launch.beside(other, speed)
            if both < fewest:
                best, fewest = ((width, first), (N - width, second)), both
    return best


def _first_parts(
    M: int, N: int, K: int, dtype: str, speed: Speed, turned: bool | None, lanes: Lanes
) -> Iterator[tuple[float, int, Tiles, Launch]]:  # fmt: skip
    """First parts of columns that make whole waves of large tiles: the cycles that a product in two parts takes at
    least, and the part."""
    size = tilewright.dtype(dtype).storage_bytes
    table = all_tiles(size, bool(turned))
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
                work = launch.tiles * (launch.cycles - speed.rates.launch) / launch.waves + M * (
                    N - width
                ) * K / speed.multiplied(size)
                yield (
                    max(launch.cycles, speed.rates.launch + work / speed.cores),
                    width,
                    fitted_tiles(table.of[line], M, width, speed, lanes),
                    launch,
                )


@functools.lru_cache(maxsize=4096)
def _fastest(
    M: int, N: int, K: int, dtype: str, speed: Speed, turned: bool | None, promoted: bool,
    in_blocks: bool,
) -> list[tuple[Tiles, Launch]]:  # fmt: skip
    """The tiles that a product takes the fewest cycles in by itself, and some that are nearly as good."""
    table, lanes = (
        all_tiles(tilewright.dtype(dtype).storage_bytes, turned),
        lanes_of(dtype, turned, promoted, in_blocks),
    )
    found = launches_of(table, M, N, K, speed, lanes)
    taken = np.where(suiting(table, M, N, speed, lanes), found.cycles, np.inf)
    alike = np.where(taken <= ALIKE * taken.min(), table.rows * table.columns, 0)
    order = [int(line) for line in np.lexsort((taken, -alike))[:TRIED] if np.isfinite(taken[line])]
    return [(fitted_tiles(table.of[line], M, N, speed, lanes), found.one(line)) for line in order]


def choose_tiles(
    M: int, N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER, turned: bool | None = None,
    promoted: bool = False, in_blocks: bool = False,
) -> Tiles:  # fmt: skip
    """The tiles for a product of this size, all in one part.

    Parameters
    ----------
    M : rows expected; kernels made with the result take any number.
    dtype : of the operands.
    turned : whether tiles must, or must not, be `Tiles.turned`, because lanes turn an operand of bytes.
    promoted : whether lanes add the sums of each step to others.
    in_blocks : and scale them, by scales of blocks.
    """
    return _fastest(M, N, K, dtype, speed, turned, promoted, in_blocks)[0][0]


def candidates(
    M: int, N: int, dtype: str = "bfloat16", speed: Speed = HOPPER, turned: bool | None = None, lanes: Lanes = IDLE
) -> Iterator[Tiles]:  # fmt: skip
    """All tiles that a product of so many rows and columns may be cut into."""
    table = all_tiles(tilewright.dtype(dtype).storage_bytes, turned)
    for line in np.flatnonzero(suiting(table, M, N, speed, lanes)):
        yield fitted_tiles(table.of[int(line)], M, N, speed, lanes)


def candidate_parts(
    M: int, N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER, in_blocks: bool = False
) -> Iterator[Parts]:  # fmt: skip
    """Ways to cut a product: that of `parts_for`, of `choose_parts`, then all single parts by the cycles that they
    would take."""
    lanes = Lanes(in_blocks, in_blocks)
    yield parts_for(M, N, K, dtype, speed, promoted=in_blocks, in_blocks=in_blocks)
    yield choose_parts(M, N, K, dtype, speed, promoted=in_blocks, in_blocks=in_blocks)
    found = candidates(M, N, dtype, speed, lanes=lanes)
    for tiles in sorted(found, key=lambda tiles: cycles(tiles, M, N, K, speed, lanes)):
        yield ((N, tiles),)


TWO_PARTS = 512
"""Rows from which on products are looked at in two parts, every half octave of `ROWS`: fewer make hardly a wave of
large tiles."""


@functools.lru_cache(maxsize=1024)
def kernels_of(
    N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER, turned: bool | None = None, promoted: bool = False,
    in_blocks: bool = False,
) -> Kernels[Parts]:  # fmt: skip
    """The parts of all kernels that calls of a weight run: each number of rows has one that suits it.

    Parameters
    ----------
    turned : whether tiles must, or must not, be `Tiles.turned`.
    promoted : whether lanes add the sums of each step to others.
    in_blocks : and scale them, by scales of blocks.
    """
    rows, lanes = list(ROWS), lanes_of(dtype, turned, promoted, in_blocks)
    tiles = all_tiles(tilewright.dtype(dtype).storage_bytes, turned).of
    table = table_of((
        *(with_stages(one, True, lanes) for one in tiles if not one.ping_pong),
        *(with_stages(one, False, lanes) for one in tiles if one.splits == 1),
    ))  # fmt: skip
    taken = np.array([launches_of(table, M, N, K, speed, lanes).cycles for M in rows])
    suits = np.array([suiting(table, M, N, speed, lanes) for M in rows])
    both = [choose_parts(M, N, K, dtype, speed, turned, promoted, in_blocks) for M in rows[::-6] if M >= TWO_PARTS]
    pairs = [parts for parts in dict.fromkeys(both) if len(parts) == 2]
    of_pairs = [[_cycles(parts, M, K, speed, lanes) for M in rows] for parts in pairs]
    single = np.where(suits, taken, np.inf)
    times = np.concatenate([single, np.array(of_pairs).reshape(len(pairs), len(rows)).T], axis=1)
    listed: list[Parts] = [*(((N, one),) for one in table.of), *pairs]
    found = [listed[column] for column in repertoire(times, MOST - OWN, ROWS)]
    return Kernels(found)


@functools.lru_cache(maxsize=1 << 16)
def parts_for(
    M: int, N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER, turned: bool | None = None,
    promoted: bool = False, in_blocks: bool = False,
) -> Parts:  # fmt: skip
    """The tiles of the kernel that a call with so many rows runs: of at most `MOST` that a weight has."""
    lanes = lanes_of(dtype, turned, promoted, in_blocks)
    kernels = kernels_of(N, K, dtype, speed, turned, promoted, in_blocks)
    return kernels.of(
        M, lambda parts: _cycles(parts, M, K, speed, lanes),
        lambda: choose_parts(M, N, K, dtype, speed, turned, promoted, in_blocks),
    )  # fmt: skip


def _cycles(parts: Parts, M: int, K: int, speed: Speed, lanes: Lanes) -> float:
    """Cycles by the model, which speaks of two parts only where the first makes whole waves of tiles."""
    if len(parts) == 2:
        (width, first), _ = parts
        down = ceil_div(M, first.block_M)
        if -down * ceil_div(width, first.block_N) % speed.cores >= max(2 * down, 2):
            return math.inf
    return cycles_of_parts(parts, M, K, speed, lanes)
