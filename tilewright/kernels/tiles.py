"""Tiles of a dense product on a GPU; what a launch does with them is the model's (`tile_launches`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.kernels import SHARED_BYTES, Speed, Value, ceil_div

SHALLOW = 3
"""Slots of a ring that are too few: what comes next is asked for late, which takes 3 to 12% (H100, 5 products)."""

ACCUMULATORS = {1: 128, 2: 192}
"""Registers of a thread for the sums of a consumer in turn, by the bytes of an operand: factors of the epilogue of
bytes need some."""

WASTE = 16
"""Blocks beyond the grid are at most one in so many."""

ROW_BYTES = 128
"""Bytes of k in a tile: one row of the widest swizzle."""

STAGING_BYTES, LESS_STAGING, RESERVED = 33 << 10, 17 << 10, 3 << 10
"""Shared memory of a block: what boxes take through which results leave, half of it where that makes four slots of
three, or factors and barriers alone."""

MOST_STAGES = 12
"""Slots of a ring: more hide no more."""

WIDTHS = {64: (32, 256), 128: (48, 256), 192: (64, 192), 256: (64, 192)}
"""Rows of an instruction's operands in a tile, and the fewest and the most columns of accumulators that fit the
registers of the warpgroups that share these rows."""

GRAIN, FINE = 16, 8
"""Columns of tiles are multiples of it, and of the other where they are rows of the result, which are few."""

DOUBLES = {(128, 64): 1.0, (64, 64): 0.96}
"""The same for float64, whose accumulators take two registers an element, and the rate of their products on 128 threads
(H200, 4096^3: 51.3, 49.4 TFLOP/s)."""

PROMOTED = {128: 96, 256: 96, 384: 64}
"""Sums of a thread that are promoted, by the threads that multiply: as many registers hold what is added to them."""

BLOCK = 128
"""Elements of k, and rows of a weight, that share a scale where it is one of blocks."""

SLOT = 32
"""Scales of float32 in a slot of a ring: 128 bytes begin wherever the copy engine may write."""

FEW_ROWS = 64
"""Up to so many rows the weight's rows are those of the instruction, and the activations its columns."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is divided.

    Attributes
    ----------
    block_M, block_N, block_K : of a block's tile, and of one step.
    stages : slots of the ring of tiles.
    threads : of the warps that multiply.
    cluster : blocks along N and M that share loads, or None.
    splits : blocks that divide K, and add up what they found: a cluster of their own.
    persistent : False where every block has one tile at most, and need not reckon which one is its next.
    ping_pong : whether two consumers of a block work at tiles of their own in turn, `threads` threads each.
    swapped : whether A and B are swapped: B's rows are the instruction's rows, of which there are 64, and A's its
        columns, of which there may be any multiple of 8; the sums are transposed on their way out.
    """

    block_M: int
    block_N: int
    block_K: int
    stages: int
    threads: int = 256
    cluster: tuple[int, int] | None = None
    splits: int = 1
    persistent: bool | None = None
    ping_pong: bool = False
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """What lanes do with the steps of a product.

    Attributes
    ----------
    promote : they add the sums of each step to others.
    scale : they scale them before, by scales of `BLOCK` elements of k.
    transpose : they transpose the bytes of the operand whose rows are the instruction's.
    skip : that operand is 2:4 sparse: half of it is there, with metadata, and half of the products are made.
    """

    promote: bool = False
    scale: bool = False
    transpose: bool = False
    skip: bool = False


IDLE = Lanes()
"""Lanes of products whose sums stay in the matrix unit."""

Shape = tuple[int, int, bool]

WAYS = (
    ((1, 1), 1), ((1, 2), 1), ((2, 1), 1), ((4, 1), 1), ((1, 4), 1),
    ((1, 1), 2), ((2, 1), 2), ((1, 2), 2), ((1, 1), 4),
)  # fmt: skip
"""Blocks of a cluster along N and M that share loads, and parts that K is divided into. Along both axes at once they
wait for one another longer than it saves."""

CLUSTERS = (1, 2, 4, 8)
"""Blocks of a cluster."""

PATTERN = 8
"""Each block of a cluster loads a multiple of so many rows of what they share."""


def _shapes(size: int, swapped: bool | None = None) -> Sequence[Shape]:
    """Rows and columns of tiles for operands of so many bytes, and whether operands are swapped."""
    if size == 8:
        return [(*shape, False) for shape in DOUBLES]
    # Factors of the epilogue of bytes need registers that the largest accumulators leave none of.
    fine = [
        (rows, columns)
        for rows, (least, most) in WIDTHS.items()
        for columns in range(least, most + 1, FINE)
        if size > 1 or rows * columns <= 128 * 256
    ]
    found = [shape for shape in fine if shape[1] % GRAIN == 0]
    # Results of words are not transposed on their way, and factors of bytes spill beside the widest sums of one
    # warpgroup.
    across = [shape for shape in fine if size == 2 or (size == 1 and shape != (64, 256))]
    both = [(*shape, False) for shape in found] + [(*shape[::-1], True) for shape in across]
    return [shape for shape in both if swapped in (None, shape[2])]


def _cuts(shape: Shape, size: int) -> Iterator[Tiles]:
    """Tiles of a shape: in clusters that share loads along N or M, each for itself, or in clusters that divide K."""
    rows, columns, swapped = shape
    block_K = ROW_BYTES // size
    if size == 8:
        yield Tiles(rows, columns, block_K, 4, 128)
        return
    threads = _threads(columns if swapped else rows)
    for cluster, splits in WAYS:
        along_N, along_M = cluster
        shares = ((rows, along_N), (columns, along_M))
        if rows % splits or any(along > 1 and extent % (along * PATTERN) for extent, along in shares):
            continue
        yield Tiles(rows, columns, block_K, 0, threads, cluster, splits, swapped=swapped)
        sums = rows * columns // 128
        high, wide = (columns, rows) if swapped else (rows, columns)
        if splits > 1 or along_N * along_M > 2 or high > 192 or sums > ACCUMULATORS.get(size, 0):
            continue
        if swapped or wide % 32 == 0:  # results of narrower boxes leave too slowly
            yield Tiles(rows, columns, block_K, 0, 128, cluster, ping_pong=True, swapped=swapped)


class TileTable:
    """Tiles as columns of numbers, so that the model reckons for all of them at once; stages and whether they are
    persistent follow from a product's size where they say neither (`fitted_tiles`).

    Attributes
    ----------
    shapes : the lines of each shape, one below the other.
    size : bytes of an operand.
    alone : whether one warpgroup multiplies, beside which no other does.
    rate : of products, where it depends on the tiles (`DOUBLES`).
    together : blocks of a cluster.
    stays, leaves : kernels that exist, whose blocks stay for several tiles, or have one each.
    groups : warpgroups that share a tile.
    sums : of a thread.
    """

    def __init__(self, of: Sequence[Tiles]) -> None:
        def column(number: Callable[[Tiles], float]) -> np.ndarray:
            return np.array([number(tiles) for tiles in of])

        self.of, self.size = of, ROW_BYTES // of[0].block_K
        kinds = [(tiles.block_M, tiles.block_N, tiles.swapped) for tiles in of]
        begins = [line for line, kind in enumerate(kinds) if line == 0 or kind != kinds[line - 1]]
        self.shapes = [slice(begin, end) for begin, end in zip(begins, [*begins[1:], len(of)])]
        self.rows, self.columns = column(lambda one: one.block_M), column(lambda one: one.block_N)
        self.along_N, self.along_M = np.array([tiles.cluster or (1, 1) for tiles in of]).T
        self.swapped, self.ping_pong = column(lambda one: one.swapped), column(lambda one: one.ping_pong)
        self.splits, self.stages = column(lambda one: one.splits), column(lambda one: one.stages)
        self.alone = column(lambda one: one.threads == 128 and not one.ping_pong)
        self.rate = column(lambda one: DOUBLES[one.block_M, one.block_N] if self.size == 8 else 1.0)
        self.together = self.along_N * self.along_M * self.splits
        self.stays = column(lambda one: one.stages > 0 and one.persistent is not False)
        self.leaves = (self.stages > 0) & ~self.stays & (self.splits == 1)
        self.groups = column(lambda one: one.threads // 128)
        self.sums = column(lambda one: one.block_M * one.block_N // one.threads)


@functools.cache
def all_tiles(size: int, swapped: bool | None) -> TileTable:
    """All tiles that there are for operands of so many bytes."""
    return table_of(tuple(tiles for shape in _shapes(size, swapped) for tiles in _cuts(shape, size)))


@functools.lru_cache(maxsize=1024)
def table_of(of: tuple[Tiles, ...]) -> TileTable:
    """Tiles as a table; those of a shape stand together."""
    return TileTable(of)


def suiting(table: TileTable, M: Value, N: int | np.ndarray, speed: Speed, lanes: Lanes = IDLE) -> np.ndarray:
    """Which tiles a product of so many rows and columns may be cut into."""
    suits = np.ones(len(table.of), bool)
    if lanes.promote:  # a thread needs room for both
        room = np.array([PROMOTED.get(tiles.threads, 0) for tiles in table.of])
        suits = (table.sums + (_factors(table) / 2 if lanes.scale else 0) <= room) & ~table.ping_pong
    if lanes.scale:  # no thread has the scales of many columns
        suits = suits & (table.swapped | (table.columns % BLOCK == 0) | (BLOCK % table.columns == 0))
        suits = suits & (table.along_N * table.along_M <= 2)  # more wait for one another's lanes (H200, up to 30%)
    for count, along in ((ceil_div(N, table.columns), table.along_N), (ceil_div(M, table.rows), table.along_M)):
        suits = suits & ((_padded(count, along) - count) * WASTE <= count)
    return np.asarray(suits & ~(table.ping_pong & _once(table, M, N, speed)))


def _factors(table: TileTable) -> np.ndarray:
    """Of a thread: one for each of its columns, which are the activations' rows where operands are swapped."""
    return np.where(table.swapped, table.rows / 4, 0)


def _once(table: TileTable, M: Value | np.ndarray, N: int | np.ndarray, speed: Speed) -> np.ndarray:
    """Where a block has one tile."""
    across, down = ceil_div(N, table.columns), ceil_div(M, table.rows)
    few = _padded(across, table.along_N) * _padded(down, table.along_M) <= speed.cores
    return (table.splits > 1) | few


def begin_together(table: TileTable, waves: np.ndarray) -> np.ndarray:
    """Where blocks that read the same columns begin together, so that memory is asked for the columns once: those of
    one tile each that are launched at once, side by side unless they divide K, and those that stay, which walk their
    tiles column by column (53 products, H200). Clusters along N put blocks of other columns between them, and take up
    to a third longer (64 pairs of kernels, H200)."""
    return (table.splits == 1) & (table.along_N == 1) & (~table.leaves | (waves == 1))


def fitted_tiles(tiles: Tiles, M: int, N: int, speed: Speed, lanes: Lanes = IDLE) -> Tiles:
    """Tiles with as many stages as there is room for."""
    if tiles.stages:
        return tiles
    return with_stages(tiles, bool(_once(table_of((tiles,)), M, N, speed)[0]), lanes)


def with_stages(tiles: Tiles, once: bool, lanes: Lanes = IDLE) -> Tiles:
    """Tiles with as many stages as there is room for where each block has one of them, or several."""
    # Where a block has one tile, the result leaves through the ring's bytes.
    room = SHARED_BYTES - (RESERVED if once else STAGING_BYTES)
    scales = 4 * padded_rows(tiles.block_M) if lanes.scale else 0
    slot = (tiles.block_M + tiles.block_N) * ROW_BYTES + scales
    stages = min(MOST_STAGES, room // slot)
    halves = tiles.block_K == ROW_BYTES // 2
    if stages == SHALLOW and halves and not once and (SHALLOW + 1) * slot <= SHARED_BYTES - LESS_STAGING:
        stages += 1
    return replace(tiles, stages=stages, persistent=False if once else None)


def padded_rows(rows: int) -> int:
    """Scales of rows in a slot: those of rows beyond the tile's come along, so that slots begin where the copy engine
    may."""
    return -(-rows // SLOT) * SLOT


def _threads(rows: int) -> int:
    """Threads of the warpgroups that share so many rows of the instruction's."""
    return 256 if rows % 128 == 0 else 128 * (rows // 64)


def _padded(count: np.ndarray, size: np.ndarray) -> np.ndarray:
    return ceil_div(count, size) * size
