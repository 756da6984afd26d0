"""``C = A @ B^T`` where A is 2:4 sparse: what was kept of it and where it stood, as `formats.sparse.compress` gives
both.

Matrix units skip what is zero, so that a product takes half the cycles of a dense one; the dense operand's traffic
stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.formats.sparse import LANE_ROWS, group_of, in_lanes
from tilewright.kernels import HOPPER, SHARED_BYTES, Speed, Tile, speed_of
from tilewright.kernels.dense_matmul import sum_type
from tilewright.kernels.tile_choice import MANY
from tilewright.kernels.tile_launches import BEGIN, Parts, cycles, launches_of
from tilewright.kernels.tiles import ROW_BYTES, STAGING_BYTES, Lanes, Tiles, table_of
from tilewright.language.trace import PrimFunc


@tilewright.jit
def sparse_matmul(
    M: int,
    K: int,
    dtype: str = "float16",
    out: str | None = None,
    transpose_B: bool = True,
    tiles: Tiles | Parts | None = None,
) -> PrimFunc:
    """Product of a sparse matrix, such as a pruned weight, and a dense one.

    Parameters
    ----------
    M, K : of the sparse matrix, which are known when the kernel is made; the dense one may have any N.
    dtype : of both operands.
    out : type of the result; that of the sums where not given.
    transpose_B : whether B is ``[N, K]`` in memory.
    tiles : for all rows, or for parts of them, which suit one number of columns (see `sparse_parts`); None for those
        that suit many, in one launch.

    Returns
    -------
    kernel of kept ``[M, K / 2]``, metadata (uint8, what `pack_metadata` makes of it), B ``[N, K]`` (or ``[K, N]``) and
    C ``[M, N]``.

    Example
    -------
    >>> kept, metadata = compress(prune(weight))
    >>> kernel = sparse_matmul(*weight.shape, "float16", "float16")
    >>> kernel(kept, pack_metadata(metadata, "float16"), activations, C)
    """
    N, accumulate = T.dynamic("N"), sum_type(dtype)
    if tiles is None:
        tiles = _fastest(M, 4 * MANY, K, dtype, speed_of(T.machine()))[0]
    parts: Parts = ((M, tiles),) if isinstance(tiles, Tiles) else tiles
    block_K = parts[0][1].block_K
    step_bytes = block_K // (2 * group_of(tilewright.dtype(dtype)))

    @T.macro
    def multiply(kept: Tile, metadata: Tile, B: Tile, C: Tile, first: int, height: int, chosen: Tiles) -> None:
        """Some rows of the product."""
        block_M, block_N = chosen.block_M, chosen.block_N
        grid = T.ceildiv(N, block_N), T.ceildiv(height, block_M)
        with T.Kernel(*grid, threads=chosen.threads, cluster_dims=chosen.cluster) as (bn, bm):
            row = first + bm * block_M
            a = T.alloc_shared((block_M, block_K // 2), dtype)
            places = T.alloc_shared((block_M, step_bytes), "uint8")
            b = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
            total = T.alloc_fragment((block_M, block_N), accumulate)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=chosen.stages):
                T.copy(kept[row, k * block_K // 2], a)
                T.copy(metadata[k, row, 0], places)
                T.copy(B[(bn * block_N, k * block_K) if transpose_B else (k * block_K, bn * block_N)], b)
                T.gemm_sp(a, places, b, total, transpose_B=transpose_B, order="lanes")
            T.copy(total, C[row, bn * block_N])

    @T.prim_func
    def sparse_matmul(
        kept: T.Tensor((M, K // 2), dtype),
        metadata: T.Tensor((-(-K // block_K), -(-M // LANE_ROWS) * LANE_ROWS, step_bytes), "uint8"),
        B: T.Tensor((N, K) if transpose_B else (K, N), dtype),
        C: T.Tensor((M, N), out or accumulate),
    ):
        multiply(kept, metadata, B, C, 0, *parts[0])
        if len(parts) == 2:
            multiply(kept, metadata, B, C, parts[0][0], *parts[1])

    return sparse_matmul


def pack_metadata(metadata: Any, dtype: str, tiles: Tiles | None = None) -> Any:
    """Metadata in the order in which the kernel reads it: the columns of one step of k together, so that a tile is one
    piece.

    Parameters
    ----------
    metadata : ``[M, K / 8]`` (``[M, K / 4]`` for tfloat32), as `formats.sparse.compress` gives it; a NumPy array or a
        tensor.
    dtype, tiles : those of the kernel; all tiles of `sparse_parts` have the same order.

    Returns
    -------
    ``[steps, M, bytes of a step]``, M the next multiple of 16, each step in the order of lanes
    (`formats.sparse.in_lanes`); beyond the matrix zeros.
    """
    record = tilewright.dtype(dtype)
    depth = tiles.block_K if tiles else ROW_BYTES // record.storage_bytes
    step_bytes = depth // (2 * group_of(record))
    rows, columns = metadata.shape
    height, steps = -(-rows // LANE_ROWS) * LANE_ROWS, -(-columns // step_bytes)
    if (height, steps * step_bytes) != (rows, columns):
        is_array = isinstance(metadata, np.ndarray)
        whole = (
            np.zeros((height, steps * step_bytes), np.uint8)
            if is_array
            else metadata.new_zeros(height, steps * step_bytes)
        )
        whole[:rows, :columns] = metadata
        metadata = whole
    packed = in_lanes(metadata.reshape(height, steps, step_bytes).swapaxes(0, 1), record.bits)
    return np.ascontiguousarray(packed) if isinstance(packed, np.ndarray) else packed.contiguous()


SHAPES = ((256, 192), (128, 256), (256, 128), (128, 192), (128, 128))
"""Rows and columns of tiles."""

SPARSE = Lanes(skip=True)

WORTH = 0.985
"""Two parts must take less than so much of one: they are two launches. (Right for the columns expected, 4 to 21% slower
for others: H200.)"""


def sparse_parts(M: int, N: int, K: int, dtype: str, speed: Speed = HOPPER) -> Parts:
    """Rows and tiles of one or two parts of a product of this size: whole waves of large tiles, and what they leave.

    Parameters
    ----------
    N : columns expected; kernels made with the result take any number.
    dtype : of the operands.
    """
    single, alone = _fastest(M, N, K, dtype, speed)
    best: Parts = ((M, single),)
    fewest = alone * WORTH
    for tiles in (_tiles(*shape, dtype) for shape in SHAPES):
        down, across = -(-M // tiles.block_M), -(-N // tiles.block_N)
        height = down * across // speed.cores * speed.cores // across * tiles.block_M  # whole waves
        if 0 < height < M:
            second, rest = _fastest(M - height, N, K, dtype, speed)
            both = cycles(tiles, height, N, K, speed, SPARSE) + rest - speed.rates.launch + BEGIN
            if both < fewest:
                best, fewest = ((height, tiles), (M - height, second)), both
    return best


def _fastest(M: int, N: int, K: int, dtype: str, speed: Speed) -> tuple[Tiles, float]:
    """The tiles that a product takes the fewest cycles in, and these."""
    table = table_of(tuple(_tiles(*shape, dtype) for shape in SHAPES))
    taken = launches_of(table, M, N, K, speed, SPARSE).cycles
    return table.of[int(taken.argmin())], float(taken.min())


def _tiles(rows: int, columns: int, dtype: str) -> Tiles:
    stages = (SHARED_BYTES - STAGING_BYTES) // (rows * ROW_BYTES // 2 + columns * ROW_BYTES + rows * ROW_BYTES // 16)
    return Tiles(rows, columns, ROW_BYTES // tilewright.dtype(dtype).storage_bytes, min(stages, 6), 256)
