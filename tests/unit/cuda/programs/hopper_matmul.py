"""``C = A @ B^T`` on Hopper with roles written by hand: a producer warp feeds warpgroups, blocks stay for many tiles.

What the compiler makes of the plain kernel in `matmul` is the same, one tile a block; here the producer runs ahead
into the next tile while the last one is still stored.
"""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels import HOPPER, Tile, Value


@tilewright.jit
def hopper_matmul(
    A: Tile,
    B: Tile,
    dtype: str = "bfloat16",
    out: str = "bfloat16",
    block_M: int = 128,
    block_N: int = 256,
    block_K: int = 64,
    stages: int = 4,
    blocks: int = HOPPER.cores,
    band: int = 8,
    cluster: int = 2,
) -> Tile:
    """Product of two row-major matrices, sums in float32.

    Parameters
    ----------
    A : ``[M, K]`` of `dtype`, float16 or bfloat16; B : ``[N, K]``.  K is a multiple of 8.
    stages : slots of the ring of tiles.
    blocks : how many blocks run; each takes every so many-th tile.
    band : rows of pairs of tiles that are walked column by column, so that neighbours in time share tiles in the L2
        cache.
    cluster : blocks that share the tiles of B: each has rows of its own, loads a part of B's tile and sends it to all.

    Returns
    -------
    ``[M, N]`` of `out`.
    """
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K), dtype)
    C = T.empty((M, N), out)
    rows, columns, steps = -(-M // (block_M * cluster)), -(-N // block_N), -(-K // block_K)
    tiles = rows * columns
    groups = min(blocks // cluster, tiles)
    turns = -(-tiles // groups)
    with T.Kernel(groups * cluster, threads=384, cluster_dims=cluster) as block:
        A_ring = T.alloc_shared((stages, block_M, block_K), dtype)
        B_ring = T.alloc_shared((stages, block_N, block_K), dtype)
        ring = T.channel(A_ring, B_ring, writers="producer", readers="consumers", scope="cluster")
        group, rank = block // cluster, block % cluster
        with T.roles():
            with T.role("consumers", warps=8, registers=232):
                total = T.alloc_fragment((block_M, block_N), "float32")
                for turn in T.serial(turns):
                    tile = turn * groups + group
                    if tile < tiles:
                        row, column = place(tile, rows, columns, band)
                        for k in T.serial(steps):
                            number = turn * steps + k
                            slot = ring.receive(number)
                            T.wgmma_gemm(
                                A_ring[slot, :, :], B_ring[slot, :, :], total, transpose_B=True, clear_accum=k == 0
                            )
                            T.wait_wgmma(1)
                            if k > 0:
                                ring.release(number - 1)
                        T.wait_wgmma(0)
                        ring.release(turn * steps + steps - 1)
                        T.copy(total, C[(row * cluster + rank) * block_M, column * block_N])
            with T.role("producer", warps=4, registers=40):
                for turn in T.serial(turns):
                    tile = turn * groups + group
                    if tile < tiles:
                        row, column = place(tile, rows, columns, band)
                        for k in T.serial(steps):
                            slot = ring.acquire(turn * steps + k)
                            T.copy(A[(row * cluster + rank) * block_M, k * block_K], A_ring[slot, :, :])
                            T.copy(B[column * block_N, k * block_K], B_ring[slot, :, :], multicast=cluster > 1)
                            ring.publish(turn * steps + k)
    return C


def place(tile: Value, rows: int, columns: int, band: int) -> tuple[Value, Value]:
    """Row and column of a group of tiles: bands of rows are walked column by column."""
    band = min(band, rows)
    first = tile // (band * columns) * band
    inside = tile % (band * columns)
    height = T.min(rows - first, band) if rows % band else band
    return first + inside % height, inside // height
