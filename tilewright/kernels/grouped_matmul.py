"""Products of runs of rows with a weight each (mixture of experts) on Hopper, in one launch, however long the runs are.

The rows stand sorted by expert. A kernel of one block cuts the runs into tiles of rows and writes a list of them, so
that nobody on the host needs to know how long they are; the blocks of the product stay and take every so many-th tile.
Short runs swap the operands: rows of the weight are the instruction's rows, the few rows of A its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.kernels import HOPPER, PAIRED, Number, Speed, Tile, Value, applied, cycles_of, paired, speed_of, stored
from tilewright.kernels.dense_matmul import sum_type
from tilewright.kernels.hopper import SHARED_BYTES, consumer_registers
from tilewright.kernels.tile_choice import fastest_first
from tilewright.kernels.tile_launches import work_of
from tilewright.kernels.tiles import FEW_ROWS, ROW_BYTES, STAGING_BYTES, Tiles, table_of
from tilewright.language.trace import PrimFunc

BAND = 8
"""Tiles of rows that are walked column by column, so that neighbours in time share tiles of the weights in the L2
cache."""


ALIKE = 0.25
"""The share of runs that are as long as the average; the lengths of others fall off as those of runs that end behind
each row with the same chance (34 products of bfloat16, H200: 3% faster than tiles by thresholds, none slower by 2%)."""


def expected_tiles(rows: int, height: Number, above: int = 0) -> Number:
    """Tiles of a height that a run of about so many rows takes, on average: those of which more rows than `above` are
    its own."""
    goes_on = rows / (rows + 1)
    alike = rows // height + (rows % height > above)
    return ALIKE * alike + (1 - ALIKE) * goes_on ** (above + 1) / (1 - goes_on**height)


def runs_with_rows(rows: int) -> float:
    """The share of runs that have rows, of those that have about so many."""
    return ALIKE + (1 - ALIKE) * rows / (rows + 1)


def group_tiles(experts: int, rows: int, N: int, K: int, dtype: str = "bfloat16", speed: Speed = HOPPER) -> list[Tiles]:
    """Tiles for runs of about so many rows, those that take the fewest cycles first."""
    shapes = [(held, columns, (1, 1)) for held in (8, 16, 32, 64) for columns in (64, 128)]
    shapes += [(64, 256, (1, 1)), *((128, 256, cluster) for cluster in ((2, 1), (1, 2), (1, 1)))]
    size, listed = tilewright.dtype(dtype).storage_bytes, []
    for held, columns, cluster in shapes:
        swapped = held <= FEW_ROWS
        room = SHARED_BYTES - (2048 if swapped else STAGING_BYTES)
        stages, threads = min(12, room // ((held + columns) * ROW_BYTES)), 128 if columns == 64 else 256
        listed.append(Tiles(held, columns, ROW_BYTES // size, stages, threads, cluster, swapped=swapped))
    table = table_of(tuple(listed))
    height = table.rows * table.along_M
    tiles, some = expected_tiles(rows, height), runs_with_rows(rows)
    work = replace(
        work_of(table, experts * tiles * height, N, K, speed),
        ahead=0,
        memory=experts * (some * N * K + rows * (N + K)) * size,
        in_flight=table.stages * table.columns * ROW_BYTES,
    )
    return [listed[line] for line in fastest_first(table, np.asarray(cycles_of(work, speed)))]


@T.macro
def list_tiles(
    sizes: Any, count: Tile, of: Tile, firsts: Tile, ends: Tile, rows: int, lower: tuple[int, ...] = ()
) -> None:
    """Cut runs of ``sizes[experts]`` rows into tiles: how many, the expert of each, its first row, and its run's end.

    Entries behind the last tile have no rows. With `lower`, heights below `rows` from the greatest down, the tiles that
    end runs and need no more than these stand behind the others, the lowest last: who walks along the list works on
    tiles of one height, then on those of the next.
    """
    experts = sizes.shape[0]
    heights = [rows, *lower]
    kinds = len(heights)
    with T.Kernel(1, threads=256):
        T.pdl_sync()
        T.pdl_trigger()
        # Running sums in steps of 1, 2, 4, ...: of rows, and of tiles of each height.
        run_ends = T.alloc_shared((2, experts), "int32")
        tile_ends = T.alloc_shared((2, kinds, experts), "int32")
        for e in T.Parallel(experts):
            run_ends[0, e] = sizes[e]
            for kind in list(range(kinds)):
                tile_ends[0, kind, e] = tiles_of_run(sizes[e], kind, heights)
        steps = (experts - 1).bit_length()
        for step in list(range(steps)):
            for e in T.Parallel(experts):
                before = T.max(e - (1 << step), 0)
                counts = e >= 1 << step
                now, then = (step + 1) % 2, step % 2
                run_ends[now, e] = run_ends[then, e] + T.if_then_else(counts, run_ends[then, before], 0)
                for kind in list(range(kinds)):
                    added = T.if_then_else(counts, tile_ends[then, kind, before], 0)
                    tile_ends[now, kind, e] = tile_ends[then, kind, e] + added
        last = steps % 2
        begins: list[Value] = [0]
        for kind in list(range(kinds)):
            begins.append(begins[kind] + tile_ends[last, kind, experts - 1])
        for one in T.Parallel(1):
            count[one] = begins[kinds]
        for t in T.Parallel(of.shape[0]):
            if t >= begins[kinds]:
                of[t] = 0
                firsts[t] = 0
                ends[t] = 0
        for kind in list(range(kinds)):
            for e in T.Parallel(experts):
                own = tiles_of_run(sizes[e], kind, heights)
                start = run_ends[last, e] - sizes[e] + (0 if kind == 0 else sizes[e] // rows * rows)
                for number in T.serial(own):
                    tile = begins[kind] + tile_ends[last, kind, e] - own + number
                    of[tile] = e
                    firsts[tile] = start + number * rows
                    ends[tile] = run_ends[last, e]


def tiles_of_run(size: Value, kind: int, heights: Sequence[int]) -> Value:
    """How many tiles of a kind a run has: of the first as many as it fills, and what is left in the lowest that holds
    it."""
    full, rest = size // heights[0], size % heights[0]
    least = heights[kind + 1] + 1 if kind + 1 < len(heights) else 1
    if kind == 0:
        return full + T.if_then_else(rest >= least, 1, 0)
    return T.if_then_else((rest >= least) & (rest <= heights[kind]), 1, 0)


@tilewright.jit
def grouped_matmul(
    experts: int,
    N: int,
    K: int,
    dtype: str = "bfloat16",
    out: str = "bfloat16",
    scaled: bool = False,
    tiles: Tiles | None = None,
    blocks: int | None = None,
) -> PrimFunc:
    """``C[m] = A[m] B[expert of m]^T``.

    Parameters
    ----------
    experts : how many weights there are.
    N, K : size of each, ``[N, K]``; rows of K elements are multiples of 16 bytes.
    dtype, out : of the operands, 8 or 16 bits, and of the result.
    scaled : whether sums are multiplied by a factor of their row and of their column (of an expert's weight).
    tiles : of a block, None for those that suit runs of 128 rows; up to 64 rows swap the operands. Blocks share
        loads of the weights where they have rows one below the other, of A where they have columns side by side, not
        both.
    blocks : how many run at once, None for one a multiprocessor.

    Returns
    -------
    kernel of ``A[M, K]``, ``B[experts, N, K]``, where `scaled` then ``scales_A[M]`` and ``scales_B[experts, N]``
    (float32), ``sizes[experts]`` (int32: rows of each expert's run, in their order; together at most M) and
    ``C[M, N]``; any M.
    """
    M, speed = T.dynamic("M"), speed_of(T.machine())
    tiles = tiles or group_tiles(experts, 128, N, K, dtype, speed)[0]
    rows, columns, block_K, stages = tiles.block_M, tiles.block_N, tiles.block_K, tiles.stages
    beside, below = tiles.cluster or (1, 1)
    cluster, warpgroups = beside * below, tiles.threads // 128
    across, steps = -(-N // (columns * beside)), -(-K // block_K)
    length = M // (rows * below) + experts
    groups, sums = (blocks or speed.cores) // cluster, sum_type(dtype)

    def place(tile: Value, down: Value, rank: Value, firsts: Tile) -> tuple[Value, Value, Value]:
        """The entry of the list that a block's tile belongs to, its first row and its first column."""
        first = tile // (BAND * across) * BAND
        inside = tile - first * across
        height = T.min(down - first, BAND)
        entry, column = first + inside % height, inside // height
        T.assume(entry >= 0)
        T.assume(entry < length)
        T.assume(column >= 0)
        row = firsts[entry] + (rank * rows if below > 1 else 0)
        return entry, row, (column * beside + (rank if beside > 1 else 0)) * columns

    @T.macro
    def multiply(A: Tile, B: Tile, scales: tuple[Tile, Tile], listed: tuple[Tile, Tile, Tile, Tile], C: Tile) -> None:
        count, of, firsts, ends = listed
        with T.Kernel(groups * cluster, threads=128 * (warpgroups + 1), cluster_dims=cluster) as block:
            A_ring = T.alloc_shared((stages, rows, block_K), dtype)
            B_ring = T.alloc_shared((stages, columns, block_K), dtype)
            scope = "cluster" if cluster > 1 else "block"
            ring = T.channel(A_ring, B_ring, writers="producer", readers="consumers", scope=scope)
            group, rank = block // cluster, block % cluster
            with T.roles():
                with T.role("consumers", warps=4 * warpgroups, registers=consumer_registers(warpgroups)):
                    T.pdl_sync()
                    shape = (columns, rows) if tiles.swapped else (rows, columns)
                    total = T.alloc_fragment(shape, sums)
                    down = count[0]
                    for turn in T.serial(T.ceildiv(down * across - group, groups)):
                        entry, first, n = place(turn * groups + group, down, rank, firsts)
                        T.assume(first >= 0)
                        for k in T.serial(steps):
                            number = turn * steps + k
                            slot = ring.receive(number)
                            left, right = (B_ring, A_ring) if tiles.swapped else (A_ring, B_ring)
                            T.wgmma_gemm(
                                left[slot, :, :], right[slot, :, :], total, transpose_B=True, clear_accum=k == 0
                            )
                            T.wait_wgmma(1)
                            if k > 0:
                                ring.release(number - 1)
                        T.wait_wgmma(0)
                        ring.release(turn * steps + steps - 1)
                        finish(total, scales, of[entry], first, ends[entry], n, C)
                with T.role("producer", warps=4, registers=40):
                    T.pdl_sync()
                    T.pdl_trigger()
                    down = count[0]
                    for turn in T.serial(T.ceildiv(down * across - group, groups)):
                        entry, first, n = place(turn * groups + group, down, rank, firsts)
                        T.assume(first >= 0)
                        expert = of[entry]
                        for k in T.serial(steps):
                            slot = ring.acquire(turn * steps + k)
                            T.copy(A[first, k * block_K], A_ring[slot, :, :], multicast=beside > 1)
                            T.copy(B[expert, n, k * block_K], B_ring[slot, :, :], multicast=below > 1)
                            ring.publish(turn * steps + k)

    @T.macro
    def finish(
        total: Tile, scales: tuple[Tile, Tile], expert: Value, first: Value, end: Value, n: Value, C: Tile
    ) -> None:
        """Store a tile's sums: whole ones in boxes, the last of a run row by row up to its end."""
        of_rows, of_columns = None, None
        if scaled:
            of_rows = T.alloc_fragment((rows,), "float32")
            of_columns = T.alloc_shared((columns,), "float32")
            T.copy(scales[0][first], of_rows)
            T.copy(scales[1][expert, n], of_columns)
        if tiles.swapped:
            for j, i in T.Parallel(rows, columns):
                if first + j < end:
                    C[first + j, n + i] = T.cast(factored(total[i, j], of_rows, of_columns, j, i), out)
        elif first + rows <= end:
            result = T.alloc_fragment((rows, columns), out)
            for i, j in T.Parallel(rows, columns):
                result[i, j] = T.cast(factored(total[i, j], of_rows, of_columns, i, j), out)
            T.copy(result, C[first, n])
        else:
            for i, j in T.Parallel(rows, columns):
                if first + i < end:
                    C[first + i, n + j] = T.cast(factored(total[i, j], of_rows, of_columns, i, j), out)

    @T.macro
    def product(A: Tile, B: Tile, scales: tuple[Tile, Tile], sizes: Tile, C: Tile) -> None:
        count = T.alloc_global((1,), "int32")
        of = T.alloc_global((length,), "int32")
        firsts = T.alloc_global((length,), "int32")
        ends = T.alloc_global((length,), "int32")
        list_tiles(sizes, count, of, firsts, ends, rows * below)
        multiply(A, B, scales, (count, of, firsts, ends), C)

    OfRows, OfColumns = (T.Tensor(shape, "float32") if scaled else None for shape in ((M,), (experts, N)))

    def launched(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((experts, N, K), dtype),
        scales_A: OfRows,
        scales_B: OfColumns,
        sizes: T.Tensor((experts,), "int32"),
        C: T.Tensor((M, N), out),
    ) -> None:
        product(A, B, (scales_A, scales_B), sizes, C)

    launched.__name__ = "grouped_scaled_matmul" if scaled else "grouped_matmul"
    return T.prim_func(launched)


def factored(value: Value, of_rows: Tile | None, of_columns: Tile | None, row: Value, column: Value) -> Value:
    """A sum times the factors of its row and its column, where there are some."""
    return (
        value if of_rows is None or of_columns is None else T.cast(value, "float32") * of_rows[row] * of_columns[column]
    )


ROWS, COLUMNS = 8, 256
"""Of a block's part of the result."""


@tilewright.jit
def expert_epilogue(experts: int, N: int, out: str, bias: str | None = None, function: str | None = None) -> PrimFunc:
    """``function(sums + bias of the row's expert)``, rounded once.

    Parameters
    ----------
    experts : how many there are.
    N : columns of the sums, even where pairs of neighbours become one.
    out : type of the result.
    bias : element type of ``bias[experts, N]``; None for none.
    function : one of `epilogue.FUNCTIONS` or `epilogue.PAIRED`; None for none.

    Returns
    -------
    kernel of ``sums[M, N]`` (float32), ``bias[experts, N]`` (``[1, 1]`` where there is none), ``sizes[experts]``
    (int32: rows of each expert's run, in their order; together at most M) and ``C[M, N]``, ``C[M, N / 2]`` for pairs;
    any M.
    """
    M = T.dynamic("M")
    each = 2 if function in PAIRED else 1
    columns, length = N // each, M // ROWS + experts

    @T.prim_func
    def expert_epilogue(
        sums: T.Tensor((M, N), "float32"),
        shift: T.Tensor((experts, N) if bias else (1, 1), bias or "float32"),
        sizes: T.Tensor((experts,), "int32"),
        C: T.Tensor((M, columns), out),
    ):
        count = T.alloc_global((1,), "int32")
        of = T.alloc_global((length,), "int32")
        firsts = T.alloc_global((length,), "int32")
        ends = T.alloc_global((length,), "int32")
        list_tiles(sizes, count, of, firsts, ends, ROWS)
        with T.Kernel(length, T.ceildiv(columns, COLUMNS), threads=256) as (tile, column):
            T.pdl_sync()
            T.pdl_trigger()
            expert, first, end = of[tile], firsts[tile], ends[tile]
            T.assume(expert >= 0)
            T.assume(expert < experts)
            T.assume(first >= 0)
            for i, j in T.Parallel(ROWS, COLUMNS):
                row, place = first + i, column * COLUMNS + j
                if (row < end) & (place < columns):
                    if each == 2:
                        gate, up = sums[row, 2 * place], sums[row, 2 * place + 1]
                        if bias is not None:
                            gate = gate + T.cast(shift[expert, 2 * place], "float32")
                            up = up + T.cast(shift[expert, 2 * place + 1], "float32")
                        C[row, place] = stored(paired(gate, up, function), out)
                    else:
                        value = sums[row, place]
                        if bias is not None:
                            value = value + T.cast(shift[expert, place], "float32")
                        C[row, place] = stored(applied(value, function), out)

    return expert_epilogue
