"""Which tiles a dense product is cut into on a GPU: the fewest cycles by a model of waves, tiles and their ends.

All multiprocessors take a tile at a time.  A wave of tiles costs the products of one, slower for small tiles, and what is
before and behind them; the last wave costs as much however few tiles are left.  So a product may have two parts: columns
that make whole waves of large tiles, and the others in smaller tiles that make one short wave of all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import tilewright

CORES = 132
"""Multiprocessors, where the caller does not say."""

MANY = 4096
"""Rows that tiles are chosen for where nobody says how many there will be."""

PRODUCTS = {1: 4096, 2: 2048, 4: 1024, 8: 128}
"""Multiplications a cycle and multiprocessor, by the bytes of an operand."""

ENDS = 3000
"""Cycles of a tile beside its products: the first loads of a block, and what of the stores nothing hides."""

WASTE = 8
"""Of so many pairs of rows of tiles one may be half empty."""

ROW_BYTES = 128
"""Bytes of k in a tile: one row of the widest swizzle."""

SHARED_BYTES = 227 << 10
STAGING_BYTES = 33 << 10
"""Shared memory of a block, and of it the boxes through which results leave."""

EFFICIENCY = {
    (128, 256): 1.0, (256, 128): 1.0, (256, 192): 0.98, (128, 224): 0.98, (256, 160): 0.94, (128, 192): 0.92,
    (128, 160): 0.92, (192, 128): 0.9, (128, 128): 0.85, (256, 64): 0.69, (128, 64): 0.6, (64, 256): 0.59,
    (64, 128): 0.5, (64, 64): 0.45,
}  # fmt: skip
"""Rows and columns of tiles whose accumulators fit the registers of warpgroups that share their rows, and the rate of
their products beside that of the first (measured on an H200): smaller ones read shared memory more often."""

UNSHARED = 0.96
"""The rate where no two blocks share loads."""

DOUBLES = {(128, 64): 1.0, (64, 64): 0.96}
"""The same for float64, whose accumulators take two registers an element; 128 threads (H200, 4096^3: 51.3, 49.4 TFLOP/s)."""

EXCHANGE = 3500
"""Cycles of two blocks that add up a tile of 128 x 256 sums of each."""

RESIDENT = {1: 1.0, 2: 1.0, 4: 0.87}
"""Parts that K is divided into, one a block of a cluster, and the share of the multiprocessors that clusters of as many fill."""

SECOND_PART = 4000
"""Cycles that a second part costs: another launch."""

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
    """

    block_M: int
    block_N: int
    block_K: int
    stages: int
    threads: int = 256
    cluster: tuple[int, int] | None = None
    splits: int = 1
    persistent: bool | None = None


Parts = tuple[tuple[int, Tiles], ...]
"""Columns of a product, from the first on, and the tiles that they are cut into."""


def choose_parts(M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES) -> Parts:
    """One or two parts for a product of this size; parameters as for `choose_tiles`."""
    size = tilewright.dtype(dtype).storage_bytes
    single = choose_tiles(M, N, K, dtype, cores)
    best: Parts = ((N, single),)
    fewest = _cycles(single, M, N, K, cores)
    for rows, columns in _shapes(size):
        down, across = -(-M // rows), -(-N // columns)
        whole = down * across // cores * cores // down  # columns of tiles that make whole waves
        for count in (whole, whole - 1):  # blocks share loads in pairs
            if not 0 < count * columns < N:
                continue
            first, rest = _cut(rows, columns, M, count * columns, size), N - count * columns
            second = choose_tiles(M, rest, K, dtype, cores)
            cycles = _cycles(first, M, count * columns, K, cores) + _cycles(second, M, rest, K, cores) + SECOND_PART
            if cycles < fewest:
                best, fewest = ((count * columns, first), (rest, second)), cycles
    return best


def choose_tiles(M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES) -> Tiles:
    """The tiles for a product of this size, all in one part.

    Parameters
    ----------
    M : rows expected; kernels made with the result take any number.
    dtype : of the operands.
    """
    return min(candidates(M, N, dtype), key=lambda tiles: _cycles(tiles, M, N, K, cores))


def candidates(M: int, N: int, dtype: str = "bfloat16") -> Iterator[Tiles]:
    """All tiles that a product of so many rows and columns may be cut into."""
    size = tilewright.dtype(dtype).storage_bytes
    for rows, columns in _shapes(size):
        whole = _cut(rows, columns, M, N, size)
        yield whole
        if size < 8:
            yield from (replace(whole, cluster=None, splits=splits) for splits in RESIDENT if splits > 1)


def candidate_parts(M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES) -> Iterator[Parts]:
    """Ways to cut a product, that of `choose_parts` first, then all shapes of tiles by the cycles that they would take."""
    yield choose_parts(M, N, K, dtype, cores)
    for tiles in sorted(candidates(M, N, dtype), key=lambda tiles: _cycles(tiles, M, N, K, cores)):
        yield ((N, tiles),)


def _shapes(size: int) -> list[tuple[int, int]]:
    """Rows and columns of tiles for operands of so many bytes."""
    if size == 8:
        return list(DOUBLES)
    # Factors of the epilogue of bytes need registers that the largest accumulators leave none of.
    return [shape for shape in EFFICIENCY if size > 1 or shape[0] * shape[1] <= 128 * 256]


def _cut(rows: int, columns: int, M: int, N: int, size: int) -> Tiles:
    """Tiles of a shape, with their ring, warps and cluster."""
    block_K = ROW_BYTES // size
    if size == 8:
        return Tiles(rows, columns, block_K, 4, 128)
    threads = 256 if rows % 128 == 0 else 128 * (rows // 64)
    stages = (SHARED_BYTES - STAGING_BYTES) // ((rows + columns) * ROW_BYTES)
    down, across = -(-M // rows), -(-N // columns)
    cluster = (2, 1) if across % 2 == 0 else None
    if columns >= rows and (down % 2 == 0 or down > 2 * WASTE):
        cluster = (1, 2)  # the larger operand's loads are shared
    return Tiles(rows, columns, block_K, min(stages, 8), threads, cluster)


def _cycles(tiles: Tiles, M: int, N: int, K: int, cores: int) -> float:
    """Cycles of the busiest multiprocessor."""
    size = ROW_BYTES // tiles.block_K
    shape = tiles.block_M, tiles.block_N
    efficiency = DOUBLES[shape] if size == 8 else EFFICIENCY[shape] * (1.0 if tiles.cluster else UNSHARED)
    blocks = -(-M // tiles.block_M) * -(-N // tiles.block_N) * tiles.splits
    waves = -(-blocks // int(cores * RESIDENT[tiles.splits]))
    area = tiles.block_M * tiles.block_N
    steps = -(-K // (tiles.block_K * tiles.splits))
    products = area * steps * tiles.block_K / PRODUCTS[size] / efficiency
    exchange = EXCHANGE * area / (128 * 256) * (tiles.splits - 1) / tiles.splits * 2 if tiles.splits > 1 else 0
    return waves * (products + ENDS + exchange)
