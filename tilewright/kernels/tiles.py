"""Which tiles a dense product is cut into on a GPU: the fewest cycles by a model of the machine.

A multiprocessor takes tiles one after the other, and all of them in waves.  A step of k takes as long as its products, as
shared memory takes to be written and read for them, or as the second-level cache takes to bring the operands, whichever is
longest; a product as long as its steps or as memory takes for the matrices.  Long ones meet the power limit, where bytes
that move cost products.  The last wave costs as much however few tiles are left.  So a product may have two parts: columns that make
whole waves of large tiles, and the others in smaller tiles that make one short wave beside the end of the first part; or the blocks of
a cluster divide K.

The rates are those that fit 420 products of bfloat16 on an H200 (71 to 8192 rows, weights of language models, tiles of every kind,
22 November 2026): of the tiles that were tried for a product, the model chose some that were 0.6% slower than the best, on average,
and as much of 20 products that it had not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tilewright

CORES = 132
"""Multiprocessors, where the caller does not say."""

MANY = 4096
"""Rows that tiles are chosen for where nobody says how many there will be."""

PRODUCTS = {1: 4096, 2: 2048, 4: 1024, 8: 128}
"""Multiplications a cycle and multiprocessor, by the bytes of an operand."""

SHARED_RATE, CACHE_RATE, MEMORY_RATE = 165, 50, 2120
"""Bytes a cycle of a multiprocessor's shared memory, of what the second-level cache gives each where all of them ask, what it
gets from memory included, and of what memory gives all of them."""

STEP = 46
"""Cycles of a step that nothing hides."""

ALONE = 1.2
"""How much longer the products of one warpgroup take, beside which no other's hide its waiting."""

BESIDE = 0.335
"""Share of the shorter of the two, products or memory, that the longer one does not hide."""

START, BEGIN = 11400, 2000
"""Cycles of a launch before its first product and behind its last, events around it included; of those what blocks cost that begin
beside another launch."""

NEXT = {1: 4800, 2: 2600, 4: 2600, 8: 2600}
"""Cycles that a further tile of 128 x 256 of a block costs, by the bytes of an operand: sums of bytes have factors."""

NEXT_IN_TURN, LEAVING = 330, {1: 3000, 2: 2580}
"""What a further tile costs two consumers in turn, of whom one multiplies when the other has done; and the cycles, by the bytes of an operand,
in which 128 x 128 sums of a consumer leave, for which it has the time of the other's products (H200, K from 256 to 8192)."""

IN_TURN, OTHERWISE_IN_TURN = {(128, 128): 0.995, (128, 192): 0.995, (192, 128): 0.995}, 0.97
"""The rate of consumers in turn beside that of 128 x 256 together, by rows and columns of a tile, and of tiles that are not listed."""

ACCUMULATORS = {1: 128, 2: 192}
"""Registers of a thread for the sums of a consumer in turn, by the bytes of an operand: factors of the epilogue of bytes need some."""

WASTE = 16
"""Blocks beyond the grid are at most one in so many."""

ROW_BYTES = 128
"""Bytes of k in a tile: one row of the widest swizzle."""

SHARED_BYTES = 227 << 10
STAGING_BYTES, RESERVED = 33 << 10, 3 << 10
"""Shared memory of a block, and of it what boxes take through which results leave, or factors and barriers alone."""

MOST_STAGES = 12
"""Slots of a ring: more hide no more."""

WIDTHS = {64: (32, 256), 128: (48, 256), 192: (96, 192), 256: (64, 192)}
"""Rows of an instruction's operands in a tile, and the fewest and the most columns of accumulators that fit the registers of the warpgroups
that share these rows."""

GRAIN = 16
"""Columns of tiles are multiples of it."""

FASTEST, SLOWER, SLOWEST = (128, 256), 0.012, 0.038
"""The instruction's rows and columns of the tiles that are fastest at the power limit, how much slower there products are in others,
and in those of 256 rows."""

DOUBLES = {(128, 64): 1.0, (64, 64): 0.96}
"""The same for float64, whose accumulators take two registers an element, and the rate of their products on 128 threads (H200, 4096^3:
51.3, 49.4 TFLOP/s)."""

HEAT, HOT = 0.27, 1_800_000
"""How much slower products become, when they are at the power limit, that as many cycles bring operands; and cycles until then."""

CLUSTER, PARTNERS, FAN = 465, 0.045, 1.15
"""Cycles that a launch in clusters that share loads costs, the share of its products that blocks wait for one another where the power limit
does not slow them down anyway, and how much longer loads take for each block beyond two that shares them."""

EXCHANGE, PEER = 11900, 310
"""Cycles of the blocks of a cluster that add up tiles of 128 x 256 sums, and those for each of them but one."""

AGAIN = 0.51
"""The share of memory's time, where that is what a product waits for, that it costs that several clusters ask for what is on its way."""

RESIDENT = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.85}
"""Blocks of a cluster, and the share of the multiprocessors that clusters of as many fill."""

WORTH = 0.99
"""The share of one part's cycles that two must stay below."""

TRIED = 12
"""Tiles of a second part that are tried beside the first."""

LARGE = 128 * 160
"""Elements of a tile that whole waves are cut into."""

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
    turned : B's rows are the instruction's rows, of which there are 64, and A's its columns, of which there may be any multiple of 8;
        the sums are transposed on their way out.
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
    turned: bool = False


Shape = tuple[int, int, bool]

WAYS = (
    ((1, 1), 1), ((1, 2), 1), ((2, 1), 1), ((4, 1), 1), ((1, 4), 1),
    ((1, 1), 2), ((2, 1), 2), ((1, 2), 2), ((1, 1), 4),
)  # fmt: skip
"""Blocks of a cluster along N and M that share loads, and parts that K is divided into.  Along both axes at once they wait for one another
longer than it saves."""

PATTERN = 8
"""Each block of a cluster loads a multiple of so many rows of what they share."""

Parts = tuple[tuple[int, Tiles], ...]
"""Columns of a product, from the first on, and the tiles that they are cut into."""


def choose_parts(
    M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES, turned: bool | None = None
) -> Parts:  # fmt: skip
    """One or two parts for a product of this size; parameters as for `choose_tiles`."""
    size = tilewright.dtype(dtype).storage_bytes
    single = choose_tiles(M, N, K, dtype, cores, turned)
    best: Parts = ((N, single),)
    fewest = WORTH * cycles(single, M, N, K, cores)
    if single.persistent is False:
        return best
    # Those whose work would take the fewest cycles if no multiprocessor ever were idle come first, so that few others need a look.
    for least, width, first, launch in sorted(_first_parts(M, N, K, size, cores, turned), key=lambda found: found[0]):
        if least >= fewest:
            break
        for second in _fastest(M, N - width, K, dtype, cores, turned):
            both = launch.beside(_launch(second, M, N - width, K, cores), cores)
            if both < fewest:
                best, fewest = ((width, first), (N - width, second)), both
    return best


def _first_parts(
    M: int, N: int, K: int, size: int, cores: int, turned: bool | None
) -> Iterator[tuple[float, int, Tiles, _Launch]]:  # fmt: skip
    """First parts of columns that make whole waves of large tiles: the cycles that a product in two parts takes at least, and the part."""
    for rows, columns, is_turned in _shapes(size, bool(turned)):
        if rows * columns < LARGE:
            continue
        down, across = -(-M // rows), -(-N // columns)
        whole = down * across // cores * cores // down  # columns of tiles that make whole waves
        for count in (whole, whole - 1):  # blocks share loads in pairs
            width, rest = count * columns, N - count * columns
            if width <= 0 or rest <= 0:
                continue
            ways = (
                (one, _launch(one, M, width, K, cores))
                for one in _cuts((rows, columns, is_turned), M, width, size, cores)
            )
            first, launch = min(ways, key=lambda pair: pair[1].cycles)
            work = launch.tiles * (launch.cycles - START) / launch.waves + M * rest * K / PRODUCTS[size]
            yield max(launch.cycles, START + work / cores), width, first, launch


@functools.lru_cache(maxsize=4096)
def _fastest(M: int, N: int, K: int, dtype: str, cores: int, turned: bool | None) -> tuple[Tiles, ...]:
    """The tiles that a product takes the fewest cycles in by itself, and some that are nearly as good."""
    found = sorted(candidates(M, N, dtype, cores, turned), key=lambda tiles: cycles(tiles, M, N, K, cores))
    return tuple(found[:TRIED])


@functools.lru_cache(maxsize=4096)
def choose_tiles(
    M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES, turned: bool | None = None
) -> Tiles:  # fmt: skip
    """The tiles for a product of this size, all in one part.

    Parameters
    ----------
    M : rows expected; kernels made with the result take any number.
    dtype : of the operands.
    turned : whether tiles must, or must not, be `Tiles.turned`.
    """
    return min(candidates(M, N, dtype, cores, turned), key=lambda tiles: cycles(tiles, M, N, K, cores))


def candidates(
    M: int, N: int, dtype: str = "bfloat16", cores: int = CORES, turned: bool | None = None
) -> Iterator[Tiles]:  # fmt: skip
    """All tiles that a product of so many rows and columns may be cut into."""
    size = tilewright.dtype(dtype).storage_bytes
    for shape in _shapes(size, turned):
        yield from _cuts(shape, M, N, size, cores)


def candidate_parts(M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES) -> Iterator[Parts]:
    """Ways to cut a product, that of `choose_parts` first, then all single parts by the cycles that they would take."""
    yield choose_parts(M, N, K, dtype, cores)
    for tiles in sorted(candidates(M, N, dtype, cores), key=lambda tiles: cycles(tiles, M, N, K, cores)):
        yield ((N, tiles),)


def _shapes(size: int, turned: bool | None = None) -> Sequence[Shape]:
    """Rows and columns of tiles for operands of so many bytes, and whether they are turned."""
    if size == 8:
        return [(*shape, False) for shape in DOUBLES]
    # Factors of the epilogue of bytes need registers that the largest accumulators leave none of.
    found = [
        (rows, columns) for rows, (least, most) in WIDTHS.items() for columns in range(least, most + 1, GRAIN)
        if size > 1 or rows * columns <= 128 * 256
    ]  # fmt: skip
    # Results of words are not turned on their way, and factors of bytes spill beside the widest sums of one warpgroup.
    across = [shape for shape in found if size == 2 or (size == 1 and shape != (64, 256))]
    both = [(*shape, False) for shape in found] + [(*shape[::-1], True) for shape in across]
    return [shape for shape in both if turned in (None, shape[2])]


def _cuts(shape: Shape, M: int, N: int, size: int, cores: int) -> Iterator[Tiles]:
    """Tiles of a shape: in clusters that share loads along N or M, each for itself, or in clusters that divide K."""
    rows, columns, turned = shape
    block_K = ROW_BYTES // size
    if size == 8:
        yield Tiles(rows, columns, block_K, 4, 128)
        return
    threads = _threads(columns if turned else rows)
    down, across = -(-M // rows), -(-N // columns)
    for cluster, splits in WAYS:
        along_N, along_M = cluster
        if any(
            (_padded(count, along) - count) * WASTE > count for count, along in ((across, along_N), (down, along_M))
        ):
            continue
        shares = ((rows, along_N), (columns, along_M))
        if rows % splits or any(along > 1 and extent % (along * PATTERN) for extent, along in shares):
            continue
        once = splits > 1 or _padded(across, along_N) * _padded(down, along_M) <= cores
        # Where a block has one tile, the result leaves through the ring's bytes.
        room = SHARED_BYTES - (RESERVED if once else STAGING_BYTES)
        stages = min(MOST_STAGES, room // ((rows + columns) * ROW_BYTES))
        yield Tiles(rows, columns, block_K, stages, threads, cluster, splits, False if once else None, turned=turned)
        sums = rows * columns // 128
        if once or turned or along_N * along_M > 2 or rows > 192 or sums > ACCUMULATORS.get(size, 0):
            continue
        if columns % 32 == 0:  # results of narrower boxes leave too slowly
            yield Tiles(rows, columns, block_K, stages, 128, cluster, ping_pong=True)


def _threads(rows: int) -> int:
    """Threads of the warpgroups that share so many rows of the instruction's."""
    return 256 if rows % 128 == 0 else 128 * (rows // 64)


def _tiles(count: int, size: int) -> int:
    return -(-count // size)


def _padded(count: int, size: int) -> int:
    return _tiles(count, size) * size


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch by the model: cycles of it alone, blocks that run at once, the tiles of those that have most, and all tiles."""

    cycles: float
    blocks: int
    waves: int
    tiles: int

    def free(self, cores: int) -> list[tuple[float, int]]:
        """From when on how many multiprocessors are free."""
        short = self.blocks * self.waves - self.tiles  # blocks with one tile less
        last = (self.cycles - START) / self.waves
        times = [(0.0, cores - self.blocks), (self.cycles - last, short), (self.cycles, self.blocks - short)]
        return [(time, count) for time, count in times if count > 0]

    def beside(self, second: _Launch, cores: int) -> float:
        """Cycles of both, where the second begins as soon as the first leaves multiprocessors idle."""
        takes = second.cycles - START + BEGIN
        free = self.free(cores)
        ends = sorted(time + turn * takes for time, _ in free for turn in range(1, 1 + int(self.cycles / takes) + 1))
        for end in ends:
            if sum(count * int((end - time) / takes + 1e-9) for time, count in free if time < end) >= second.blocks:
                return max(end, self.cycles)
        return self.cycles + takes


def cycles(tiles: Tiles, M: int, N: int, K: int, cores: int) -> float:
    """Cycles of a launch."""
    return _launch(tiles, M, N, K, cores).cycles


def cycles_of_parts(parts: Parts, M: int, K: int, cores: int = CORES) -> float:
    """Cycles of a product in one or two parts."""
    first, *rest = (_launch(tiles, M, columns, K, cores) for columns, tiles in parts)
    return first.beside(rest[0], cores) if rest else first.cycles


def _launch(tiles: Tiles, M: int, N: int, K: int, cores: int) -> _Launch:
    size = ROW_BYTES // tiles.block_K
    rows, columns = tiles.block_M, tiles.block_N
    along_N, along_M = tiles.cluster or (1, 1)
    blocks = _padded(_tiles(M, rows), along_M) * _padded(_tiles(N, columns), along_N) * tiles.splits
    resident = int(cores * RESIDENT[along_N * along_M * tiles.splits])
    waves = -(-blocks // resident)
    steps = -(-K // (tiles.block_K * tiles.splits))
    high, wide = (columns, rows) if tiles.turned else (rows, columns)
    products = rows * columns * tiles.block_K / PRODUCTS[size]
    if size == 8:
        products /= DOUBLES[rows, columns]
    if tiles.threads == 128 and not tiles.ping_pong:
        products *= ALONE
    read = (high + wide * high / 64) * ROW_BYTES  # by each instruction of 64 rows
    touched = (read + (rows + columns) * ROW_BYTES) / SHARED_RATE
    asked = (rows / along_N + columns / along_M) * ROW_BYTES
    loads = asked / CACHE_RATE * min(1.0, blocks / resident) * FAN ** max(0, along_N * along_M - 2)
    area = rows * columns / (128 * 256)
    of_tile = steps * (max(products, touched, loads) + STEP)
    slower_when_hot = HEAT * loads / products
    if tiles.ping_pong:
        of_tile /= IN_TURN.get((rows, columns), OTHERWISE_IN_TURN)
        of_tile = max(of_tile, (of_tile + LEAVING[size] * 2 * area) / 2)
        ending = NEXT_IN_TURN * (waves - 1.0)
    else:
        slower_when_hot += 0.0 if (high, wide) == FASTEST else SLOWEST if high == 256 else SLOWER
        ending = NEXT[size] * area * (waves - 1)
    multiplying = waves * of_tile
    hot, shared = min(1.0, multiplying / HOT), along_N * along_M > 1
    multiplying *= 1 + slower_when_hot * hot + (PARTNERS * (1 - hot) if shared else 0.0)
    memory = ((M + N) * K + M * N) * size / MEMORY_RATE
    # Rows of either operand that several clusters read at the same time.
    readers_B, readers_A = _tiles(_tiles(M, rows), along_M), _tiles(_tiles(N, columns), along_N)
    ahead = N * (1 - 1 / readers_B) + M * (1 - 1 / readers_A)
    again = AGAIN * ahead * K * size / MEMORY_RATE * min(1.0, memory / multiplying)
    slower, faster = max(multiplying, memory), min(multiplying, memory)
    exchange = waves * (EXCHANGE * area + PEER * (tiles.splits - 1)) if tiles.splits > 1 else 0.0
    taken = slower + BESIDE * faster + again + START + ending + exchange + (CLUSTER if shared else 0)
    return _Launch(taken, min(resident, -(-blocks // waves)), waves, blocks)
