"""What a launch with some tiles takes by the model (`roofline.Work`): cycles of it alone, and beside another one.

What is said in cycles fits 74 products of bfloat16 and 19 of e4m3 with 1,130 times of tiles of every kind (H200, 5 to
7,000 rows, 24 November 2026): of the tiles that were tried for a product, the model chose some that were 0.9% slower
than the best, on average, 1.4% for e4m3; 2.4% and 0.5% on an H100, to which no number is fitted. Most of these kernels
divided by their slots, where slots are counted now: 28 cycles of a step of rings that have no power of two of them,
which are left out here. `tile_choice` chooses by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.kernels import HOPPER, Speed, Value, Work, ceil_div, cycles_of
from tilewright.kernels.tiles import (
    GRAIN,
    IDLE,
    ROW_BYTES,
    Lanes,
    Tiles,
    TileTable,
    _factors,
    _padded,
    begin_together,
    table_of,
)

BEGIN = 7000
"""Cycles that blocks cost which begin beside another launch (59 products in two parts beside those in one, H200: taken
where that makes two parts the faster ones, they gain 0.64% on average, with 2000 nothing)."""

LAST = 1500
"""Cycles in which the last 128 x 256 sums of a block leave, which no product hides."""

STEP = 6
"""Cycles of a step that nothing hides."""

TOGETHER = 25
"""The same for blocks that share loads: each waits until its partners have room for what it brings them."""

ALONE = 1.08
"""How much longer the products of one warpgroup take, beside which no other's hide its waiting."""

UNEVEN = 1.02
"""The same for instructions whose columns 16 does not divide."""

PROMOTION, PROMOTED_SUM = 180, 1.5
"""Cycles from the end of a warpgroup's products of a step until it starts the next ones where its sums are promoted,
and those for each of a thread's sums; other warpgroups multiply meanwhile (592 products of e4m3, H200, 24 November
2026)."""

SCALING, SCALED_SUM, FACTOR = 50, 2.0, 2.7
"""The same where sums are scaled before, and those for each of a thread's sums and for each factor that it reads."""

TRANSPOSING, THIRD = 10, 1.06
"""The same where lanes transpose the bytes of an operand, and how much longer products out of registers take of three
warpgroups (28 products of `[K, N]`, 126 times, H200, 24 November 2026)."""

NEXT = {1: 4600, 2: 3100, 4: 3100, 8: 3100}
"""Cycles that a further tile of 128 x 256 of a block costs, by the bytes of an operand: sums of bytes have factors."""

PARTNER = {1: 800}
"""Cycles of it besides, by the bytes of an operand, where blocks share loads: each waits for the end of its partner's
tile (34 pairs of kernels of e4m3, H200, 28 November 2026)."""

STAYING, ONCE_MORE = 1000, 1850
"""Cycles that it costs a launch of one tile a block that its kernel is made for several: fewer slots, and places to
reckon before the first load; and those that a further tile costs besides where a kernel is made for one, so that
another block begins."""

NEXT_PING_PONG, LEAVING = 330, {1: 3000, 2: 2580}
"""What a further tile costs a ping-pong schedule, whose second consumer multiplies when the first has done; and the
cycles, by the bytes of an operand, in which 128 x 128 sums of a consumer leave, for which it has the time of the
other's products (H200, K from 256 to 8192)."""

EXCHANGE, PEER = 7200, 680
"""Cycles of the blocks of a cluster that add up tiles of 128 x 256 sums, and those for each of them but one."""

Parts = tuple[tuple[int, Tiles], ...]
"""Columns of a product, from the first on, and the tiles that they are cut into."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch by the model: cycles of it alone, blocks that run at once, the tiles of those that have most, and all
    tiles."""

    cycles: float
    blocks: int
    waves: int
    tiles: int

    def free(self, speed: Speed) -> list[tuple[float, int]]:
        """From when on how many multiprocessors are free."""
        short = self.blocks * self.waves - self.tiles  # blocks with one tile less
        last = (self.cycles - speed.rates.launch) / self.waves
        times = [(0.0, speed.cores - self.blocks), (self.cycles - last, short), (self.cycles, self.blocks - short)]
        return [(time, count) for time, count in times if count > 0]

    def beside(self, second: Launch, speed: Speed) -> float:
        """Cycles of both, where the second begins as soon as the first leaves multiprocessors idle."""
        takes = second.cycles - speed.rates.launch + BEGIN
        free = self.free(speed)
        ends = sorted(time + turn * takes for time, _ in free for turn in range(1, 1 + int(self.cycles / takes) + 1))
        for end in ends:
            if sum(count * int((end - time) / takes + 1e-9) for time, count in free if time < end) >= second.blocks:
                return max(end, self.cycles)
        return self.cycles + takes


@dataclass(frozen=True, slots=True)
class Launches:
    """`Launch` of many tiles: columns of its numbers."""

    cycles: np.ndarray
    blocks: np.ndarray
    waves: np.ndarray
    tiles: np.ndarray

    def one(self, line: int) -> Launch:
        return Launch(float(self.cycles[line]), *(int(c[line]) for c in (self.blocks, self.waves, self.tiles)))


def cycles(tiles: Tiles, M: int, N: int, K: int, speed: Speed, lanes: Lanes = IDLE) -> float:
    """Cycles of a launch."""
    return float(launches_of(table_of((tiles,)), M, N, K, speed, lanes).cycles[0])


def cycles_of_parts(parts: Parts, M: int, K: int, speed: Speed = HOPPER, lanes: Lanes = IDLE) -> float:
    """Cycles of a product in one or two parts."""
    launches = (
        launches_of(table_of((tiles,)), M, columns, K, speed, lanes, part > 0)
        for part, (columns, tiles) in enumerate(parts)
    )
    first, *rest = (launch.one(0) for launch in launches)
    return first.beside(rest[0], speed) if rest else first.cycles


def launches_of(
    table: TileTable, M: Value, N: int | np.ndarray, K: int, speed: Speed, lanes: Lanes = IDLE, part: bool = False
) -> Launches:
    """What launches with each of the tiles take; N may differ from line to line."""
    work = work_of(table, M, N, K, speed, lanes, part)
    blocks = np.minimum(work.resident, ceil_div(work.blocks, work.waves))
    return Launches(cycles_of(work, speed), blocks, work.waves, work.blocks)


def work_of(
    table: TileTable,
    M: Value | np.ndarray,
    N: int | np.ndarray,
    K: int,
    speed: Speed,
    lanes: Lanes = IDLE,
    part: bool = False,
) -> Work:
    """What these launches do; blocks of the second `part` of a product begin as those of the first one end."""
    size, rows, columns, splits = table.size, table.rows, table.columns, table.splits
    along_N, along_M, block_K = table.along_N, table.along_M, ROW_BYTES // table.size
    blocks = _padded(ceil_div(M, rows), along_M) * _padded(ceil_div(N, columns), along_N) * splits
    resident = speed.resident(table.together)
    chunks = ceil_div(K, block_K * splits)
    waves = ceil_div(blocks, resident)
    high, wide = np.where(table.swapped, columns, rows), np.where(table.swapped, rows, columns)
    # Of the bytes of the instruction's rows, as they are brought and as they are read: metadata by words.
    kept, kept_read = (1 / 2 + 1 / 16, 1 / 2 + 1 / 4) if lanes.skip else (1.0, 1.0)
    products = rows * columns * block_K * (0.5 if lanes.skip else 1.0)
    # What a warpgroup does one after the other: its own products of a step, and what its lanes do with them.
    serial: float | np.ndarray = 0.0
    if not lanes.promote:
        products = products * np.where(table.alone, ALONE, 1.0)
    if lanes.transpose:
        products = products * np.where(table.groups > 2, THIRD, 1.0)
    if lanes.promote or lanes.transpose:
        serial = products / speed.product_rate(size) / table.groups
        serial = serial + (PROMOTION + PROMOTED_SUM * table.sums if lanes.promote else 0.0)
        serial = serial + TRANSPOSING * lanes.transpose
        serial = serial + (SCALING + SCALED_SUM * table.sums + FACTOR * _factors(table) if lanes.scale else 0.0)
    read = (high * kept_read + wide * high / 64) * ROW_BYTES  # by each instruction of 64 rows
    area = rows * columns / (128 * 256)
    # Rows of either operand that several clusters read at the same time.
    readers_B, readers_A = ceil_div(ceil_div(M, rows), along_M), ceil_div(ceil_div(N, columns), along_N)
    # Rows and columns behind the last ones: of a launch's slowest block where each has one tile, else of all on
    # average. Of blocks that share loads some bring nothing else.
    missing_A, missing_B = (
        (tiles * extent - count) / np.where(waves > 1, tiles, 1)
        for tiles, extent, count in ((ceil_div(M, rows), rows, M), (ceil_div(N, columns), columns, N))
    )
    empty = np.minimum(missing_A, rows / along_N) + np.minimum(missing_B, columns / along_M)
    side_by_side = begin_together(table, waves) & (not part)
    ahead = np.where(side_by_side, 0.0, N * (1 - 1 / readers_B) + M * (1 - 1 / readers_A))
    # Two multiprocessors that stand together ask the second-level cache once for what both want.
    in_pairs = side_by_side & (waves == 1) & ~table.stays & (along_M == 1) & (readers_B > 1)
    merged = np.where(in_pairs, (1 + readers_B % 2 / readers_B) / 2, 1.0)
    # Blocks that divide K and are not all there at once come by rows of tiles (`dense_matmul`): each wave reads anew
    # what the cache has not kept of the weight.
    by_rows = (splits > 1) & (2 * splits * ceil_div(N, columns) <= speed.cores)
    anew = np.where(by_rows, waves - 1, 0) * np.maximum(0.0, N * K * size - speed.cache_bytes)
    return Work(
        size=size,
        blocks=blocks,
        resident=resident,
        waves=waves,
        steps=chunks * np.where(wide % GRAIN, UNEVEN, 1.0),
        products=products / table.rate,
        shared=read + (rows * kept + columns) * ROW_BYTES,
        loads=((rows - missing_A) * kept / along_N + merged * (columns - missing_B) / along_M) * ROW_BYTES,
        empty=0.0 if lanes.skip else empty,  # not seen of 2:4 sparse ones
        fixed=STEP + TOGETHER * (along_N * along_M > 1),
        serial=serial,
        storing=np.where(table.ping_pong, LEAVING.get(size, 0) * 2 * area, 0.0),
        ends=np.where(table.ping_pong, NEXT_PING_PONG, NEXT[size] * area)
        + np.where(along_N * along_M > 1, PARTNER.get(size, 0) * area, 0)
        + np.where(table.leaves, ONCE_MORE, 0),
        begins=LAST * area + np.where(table.stays & (waves == 1), STAYING, 0),
        exchange=np.where(splits > 1, waves * (EXCHANGE * area + PEER * (splits - 1)), 0.0),
        memory=((M + N) * K + M * N) * size + anew,
        ahead=ahead * K * size,
        cluster=along_N * along_M,
    )
