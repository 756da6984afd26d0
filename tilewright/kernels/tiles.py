"""Which tiles a dense product is cut into on a GPU: the fewest cycles by a model of waves, tiles and their ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tilewright

CORES = 132
"""Multiprocessors, where the caller does not say."""

MANY = 4096
"""Rows that tiles are chosen for where nobody says how many there will be."""

PRODUCTS = 2048
"""Multiplications of 16-bit operands a cycle and multiprocessor; operands of 8 bits have twice as many."""

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
    """

    block_M: int
    block_N: int
    block_K: int
    stages: int
    threads: int = 256
    cluster: tuple[int, int] | None = None


def choose_tiles(M: int, N: int, K: int, dtype: str = "bfloat16", cores: int = CORES) -> Tiles:
    """The tiles for a product of this size.

    Parameters
    ----------
    M : rows expected; kernels made with the result take any number.
    dtype : of the operands, 8 or 16 bits.
    """
    return min(_candidates(M, N, dtype), key=lambda tiles: _cycles(tiles, M, N, K, dtype, cores))


def _candidates(M: int, N: int, dtype: str) -> Iterator[Tiles]:
    size = tilewright.dtype(dtype).storage_bytes
    block_K = ROW_BYTES // size
    for rows, columns in EFFICIENCY:
        if size == 1 and rows * columns > 128 * 256:
            continue  # factors of the epilogue need registers that such accumulators leave none of
        threads = 256 if rows % 128 == 0 else 128 * (rows // 64)
        stages = (SHARED_BYTES - STAGING_BYTES) // ((rows + columns) * ROW_BYTES)
        down, across = -(-M // rows), -(-N // columns)
        cluster = (2, 1) if across % 2 == 0 else None
        if columns >= rows and (down % 2 == 0 or down > 2 * WASTE):
            cluster = (1, 2)  # the larger operand's loads are shared
        yield Tiles(rows, columns, block_K, min(stages, 8), threads, cluster)


def _cycles(tiles: Tiles, M: int, N: int, K: int, dtype: str, cores: int) -> float:
    """Cycles of the busiest multiprocessor."""
    size = tilewright.dtype(dtype).storage_bytes
    count = -(-M // tiles.block_M) * -(-N // tiles.block_N)
    waves = -(-count // cores)
    products = tiles.block_M * tiles.block_N * K / (PRODUCTS * 2 // size)
    return waves * (products / EFFICIENCY[tiles.block_M, tiles.block_N] + ENDS)
