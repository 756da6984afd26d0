"""``C = A @ B^T`` where A is 2:4 sparse: what was kept of it and where it stood, as `formats.sparse.compress` gives
both.

Matrix units skip what is zero, so that a product takes half the cycles of a dense one; the dense operand's traffic
stays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.formats.sparse import LANE_ROWS, group_of, in_lanes
from tilewright.kernels.dense_matmul import sum_type
from tilewright.kernels.hopper import SHARED_BYTES
from tilewright.kernels.roofline import HOPPER, Speed
from tilewright.kernels.tile_choice import MANY
from tilewright.kernels.tiles import ROW_BYTES, STAGING_BYTES, Parts, Tiles
from tilewright.kernels.values import Tile
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
    parts: Parts = (
        ((M, tiles),) if isinstance(tiles, Tiles) else tiles or ((M, _tiles(_best(M, 4 * MANY, HOPPER), dtype)),)
    )
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
                if transpose_B:
                    T.copy(B[bn * block_N, k * block_K], b)
                else:
                    T.copy(B[k * block_K, bn * block_N], b)
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


Shape = tuple[int, int]

WORTH = 0.985
"""Two parts must take less than so much of one: they are two launches. (Right for the columns expected, 4 to 21% slower
for others: H200.)"""

EFFICIENCY: dict[Shape, float] = {
    (256, 192): 1.0,
    (128, 256): 0.95,
    (256, 128): 0.91,
    (128, 192): 0.87,
    (128, 128): 0.75,
}
"""Rows and columns of tiles and the rate of their products beside that of the first (measured on an H200, the last
estimated): the dense operand is read from shared memory for each 64 rows, and both are written there once a tile."""


def sparse_parts(M: int, N: int, dtype: str, speed: Speed = HOPPER) -> Parts:
    """Rows and tiles of one or two parts of a product of this size: whole waves of large tiles, and what they leave.

    Parameters
    ----------
    N : columns expected; kernels made with the result take any number.
    dtype : of the operands.
    """
    single = _best(M, N, speed)
    best: Parts = ((M, _tiles(single, dtype)),)
    fewest = _cycles(single, M, N, speed) * WORTH
    for shape in EFFICIENCY:
        down, across = -(-M // shape[0]), -(-N // shape[1])
        whole = down * across // speed.cores * speed.cores // across  # rows of tiles that make whole waves
        for count in (whole, whole - 1):  # blocks share loads in pairs
            height = count * shape[0]
            if 0 < height < M:
                second = _best(M - height, N, speed)
                cycles = _cycles(shape, height, N, speed) + _cycles(second, M - height, N, speed)
                if cycles < fewest:
                    best, fewest = ((height, _tiles(shape, dtype)), (M - height, _tiles(second, dtype))), cycles
    return best


def _best(M: int, N: int, speed: Speed) -> Shape:
    return min(EFFICIENCY, key=lambda shape: _cycles(shape, M, N, speed))


def _cycles(shape: Shape, M: int, N: int, speed: Speed) -> float:
    """What a part takes, as areas of tiles in a row."""
    waves = -(-(-(-M // shape[0]) * -(-N // shape[1])) // speed.cores)
    return waves * math.prod(shape) / EFFICIENCY[shape]


def _tiles(shape: Shape, dtype: str) -> Tiles:
    rows, columns = shape
    stages = (SHARED_BYTES - STAGING_BYTES) // (rows * ROW_BYTES // 2 + columns * ROW_BYTES + rows * ROW_BYTES // 16)
    return Tiles(rows, columns, ROW_BYTES // tilewright.dtype(dtype).storage_bytes, min(stages, 6), 256)
