"""``C = A W^T`` for one or two rows of A on Hopper, W in records of 1 to 4 bits: activations are cut into slices of
int8, as the Ozaki scheme cuts floats.

A matrix instruction has eight columns, of which one row of A fills one. So each number of A becomes a whole number,
relative to the largest of its worker's columns, and that number four signed bytes, one in each of four columns;
products with bytes have half the instructions of those with halves, and codes become bytes by half the masks. Sums of
whole numbers are exact; powers of 256, scales and offsets come after them. Who does what is as in
`hopper_quant_skinny`: every worker, a warp, streams its columns of W through a ring of its own.
"""

from __future__ import annotations

import functools

import tilewright
import tilewright.language as T
from tilewright.kernels import HOPPER, PLAIN, Epilogue, Speed, Tile, Value, speed_of, worker_registers
from tilewright.kernels.hopper_quant_skinny import InvalidShares
from tilewright.kernels.skinny_tiles import (
    SkinnyCandidates,
    Worker,
    add_partial_tiles,
    candidates_that_fit,
    cluster_sums,
    entry_point,
    start_copies,
    start_copy,
    store_cluster_sums,
)
from tilewright.machine import COLUMNS, FragmentRecords

SLICES = 4
"""Bytes that a number of A becomes."""

WIDTH = 8
"""Columns of an instruction."""

TOKENS = WIDTH // SLICES
"""Rows of A that they serve."""

BITS = 29
"""Of whole numbers: the largest of A lies from 2^29 on."""

SLOTS = 2
"""Tiles whose sums are on their way."""

WARPS = 16
"""Workers of a block at most: registers."""

WORKER = Worker(record=82, numbers=35, held=0, rows=1, columns=SLICES)
"""What a worker takes: before it begins, it takes its columns of A apart."""

STEP = 64
"""Columns that are decoded at once where records have more than 16 rows: registers hold so many codes."""

QUAD, IN_RECORD = 4, COLUMNS // 4
"""Columns whose codes as bytes are one register, and times so many in a record."""

APART = 16
"""Bytes between the slices of a row and those of the next, so that lanes that read one column each meet in no bank."""

LEAST = -90
"""The exponent below which numbers count as zero beside nothing larger."""

INFINITE = 0x7F800000
"""The bits of an infinite float32."""


@tilewright.jit
def sliced_quant_matmul(
    N: int,
    K: int,
    form: FragmentRecords,
    tokens: int = 2,
    out: str = "float16",
    offset: int = 2,
    epilogue: Epilogue = PLAIN,
    warps: int = 16,
    records: int = 2,
    stages: int = 3,
    ahead: int = 1,
    cluster: int = 2,
    blocks: int | None = None,
) -> T.PrimFunc:
    """Product of one or two rows with ``(codes - offset) * scales``.

    Parameters
    ----------
    form : order of W (`FragmentRecords`), whose codes can be bytes, with scales of groups of 128 or more, without
        zeros.
    tokens : rows of A that one launch serves, 1 or 2.
    offset : what all codes are too large by; 0 for signs.
    epilogue, warps, records, stages, ahead, cluster, blocks : as in `skinny_quant_matmul`.

    Returns
    -------
    kernel of the parameters that `skinny_quant_matmul` has; rows of A may start anywhere.

    Raises
    ------
    InvalidShares : workers would leave columns of W out.
    """
    M = T.dynamic("M")
    dtype = str(form.operand)
    down, across, words = form.shape(N, K)
    if across % records or cluster * warps * records * COLUMNS < K:
        raise InvalidShares(across, records, cluster * warps)
    rows, step = form.rows, STEP if form.rows > 16 else COLUMNS
    steps, pieces = COLUMNS // step, records * COLUMNS // step
    quads, span = records * IN_RECORD, records * COLUMNS
    used, fills = tokens * SLICES, cluster * warps * records * COLUMNS == K
    adders = 4 - warps % 4
    groups = min((blocks or speed_of(T.machine()).cores) // cluster, down)
    tiles_of_cluster = -(-down // (groups * cluster))

    @T.macro
    def read(A: Tile, first: Value, x: Tile) -> None:
        """A worker's columns of A, in the order of codes as bytes."""
        for n, k, e in T.Parallel(tokens, quads, QUAD):
            column = first * COLUMNS + k // IN_RECORD * COLUMNS + form.byte_column(k % IN_RECORD * QUAD + e)
            value = A[T.min(n, M - 1), column if fills else T.min(column, K - 1)]
            x[n, k, e] = value if fills else T.if_then_else(column < K, value, T.cast(0.0, dtype))

    @T.macro
    def split(x: Tile, planes: Tile, largest: Tile, worker: Value) -> None:
        """Numbers of A as four bytes each, and the bits of each row's largest magnitude: beyond
        infinity's for none."""
        sizes = T.alloc_fragment((tokens, quads, QUAD), "int32")
        found = T.alloc_fragment((tokens, quads), "int32")
        most = T.alloc_fragment((tokens,), "int32")
        power = T.alloc_fragment((tokens,), "float32")
        for n, k, e in T.Parallel(tokens, quads, QUAD):
            sizes[n, k, e] = T.reinterpret(T.cast(x[n, k, e], "float32"), "int32") & 0x7FFFFFFF
        T.reduce_max(sizes, found, dim=2)
        T.reduce_max(found, most, dim=1)
        for n in T.Parallel(tokens):
            largest[worker, n] = most[n]
            exponent = exponent_of(most[n])
            power[n] = T.if_then_else(exponent < 128, power_of(BITS - exponent), power_of(-126))
        for n, k, e in T.Parallel(tokens, quads, QUAD):
            value = T.cast(x[n, k, e], "float32") * (power[n] * power_of(-form.byte_unit(k % IN_RECORD * QUAD)))
            whole = T.cast(T.clamp(value, -(2.0 ** (BITS + 1)), 2.0 ** (BITS + 1)), "int32")
            # Lower slices are from -128 on, so that what is above them carries.
            sizes[n, k, e] = (whole + 0x00808080) ^ 0x00808080
        for number in list(range(SLICES)):
            for n, k, e in T.Parallel(tokens, quads, QUAD):
                planes[worker, n * SLICES + number, k * QUAD + e] = T.cast(sizes[n, k, e] >> (8 * number), "int8")
        T.sync_warp()

    @T.macro
    def load(planes: Tile, largest: Tile, worker: Value, slices: list[Tile], weight: Tile) -> None:
        """What a worker multiplies by, and what each slice is worth: powers of 256; infinity where there is one,
        nothing else beside it."""
        for piece in list(range(pieces)):
            for n, k in T.Parallel(WIDTH, step):
                slices[piece][n, k] = planes[worker, n % used, piece * step + k]
        for n in T.Parallel(WIDTH):
            most = largest[worker, n % used // SLICES]
            exponent = exponent_of(most)
            endless = T.if_then_else(n % SLICES == SLICES - 1, T.infinity("float32"), 0.0)
            worth = T.if_then_else(exponent < 128, power_of(exponent - BITS + n % SLICES * 8), endless)
            weight[n] = T.if_then_else(most > INFINITE, T.reinterpret(T.int32(INFINITE + 1), "float32"), worth)

    @T.macro
    def add_columns(slices: list[Tile], sums: list[Tile]) -> None:
        """The sums of the slices of each record's columns, which offsets are multiplied by."""
        units = T.alloc_fragment((16, step), "int8")
        columns = T.alloc_fragment((16, WIDTH), "int32")
        for i, k in T.Parallel(16, step):
            units[i, k] = T.cast(T.int32(1) << form.byte_unit(k), "int8")
        for record in list(range(records)):
            for k in list(range(steps)):
                T.gemm(units, slices[record * steps + k], columns, transpose_B=True, clear_accum=k == 0)
            T.reduce_max(columns, sums[record], dim=0)

    @T.macro
    def multiply(
        ring: Tile,
        worker: Value,
        slot: Value,
        slices: list[Tile],
        of_slices: list[Tile],
        tiles: tuple[Tile, Tile, Tile, Tile],
    ) -> None:
        """A worker's share of a tile's sums."""
        codes, scale, part, total = tiles
        for record in list(range(records)):
            if not form.is_signs and offset != 0:
                for i, j in T.Parallel(rows, WIDTH):
                    part[i, j] = of_slices[record][j] * -offset
            for k in list(range(steps)):
                T.unpack(ring[worker, slot, record, :], form, codes, scale if k == 0 else None, first=k * step)
                begins = (form.is_signs or offset == 0) and k == 0
                T.gemm(codes, slices[record * steps + k], part, transpose_B=True, clear_accum=begins)
            for i, j in T.Parallel(rows, WIDTH):
                whole = part[i, j] * 2 - of_slices[record][j] if form.is_signs else part[i, j]
                total[i, j] = T.fma(T.cast(whole, "float32"), scale[i], total[i, j])

    @T.macro
    def product(W: Tile, A: Tile, others: tuple[Tile | None, ...], C: Tile) -> None:
        # Nobody works where there are no rows.
        with T.Kernel(T.min(M, 1) * (groups * cluster), threads=32 * (warps + adders), cluster_dims=cluster) as block:
            group, rank = block // cluster, block % cluster
            walk = group, groups
            ring = T.alloc_shared((warps, stages, records, words), "uint32")
            sums = T.alloc_shared((SLOTS, warps, rows, used), "float32")
            planes = T.alloc_shared((warps, used, span + APART), "int8")
            largest = T.alloc_shared((warps, tokens), "int32")
            shares = cluster_sums((cluster, tiles_of_cluster, tokens, rows))
            stream = T.channel(ring, writers="workers", readers="workers", scope="warp")
            found = T.channel(sums, writers="workers", readers="adders")
            tiles = (down - group + groups - 1) // groups
            with T.roles():
                with T.role("workers", warps=1, instances=warps, registers=worker_registers(warps)) as worker:
                    first = (rank * warps + worker) * records
                    T.assume(first <= (cluster * warps - 1) * records)
                    mine = W, ring, stream, worker, first
                    start_copies(*mine, walk, range(stages)[:ahead])
                    T.pdl_sync()
                    T.pdl_trigger()
                    T.assume(M > 0)
                    T.assume(first >= 0)
                    slices = [T.alloc_fragment((WIDTH, step), "int8") for _ in range(pieces)]
                    of_slices = [T.alloc_fragment((WIDTH,), "int32") for _ in range(records)]
                    weight = T.alloc_fragment((WIDTH,), "float32")
                    x = T.alloc_fragment((tokens, quads, QUAD), dtype)
                    read(A, first, x)
                    start_copies(*mine, walk, range(stages)[ahead:])
                    split(x, planes, largest, worker)
                    load(planes, largest, worker, slices, weight)
                    add_columns(slices, of_slices)
                    codes = T.alloc_fragment((rows, step), "int8")
                    scale = T.alloc_fragment((rows,), "float32")
                    part = T.alloc_fragment((rows, WIDTH), "int32")
                    total = T.alloc_fragment((rows, WIDTH), "float32")
                    for turn in T.serial(tiles):
                        T.clear(total)
                        if first + records <= across:
                            slot = stream.receive(turn)
                            multiply(ring, worker, slot, slices, of_slices, (codes, scale, part, total))
                            stream.release(turn)
                            following = group + (turn + stages) * groups
                            if following < down:
                                start_copy(*mine, turn + stages, following)
                        own = found.acquire(turn)
                        for i, j in T.Parallel(rows, WIDTH):
                            if j < used:
                                sums[own, worker, i, j] = total[i, j] * weight[j]
                        found.publish(turn)
                    if cluster > 1:
                        store_cluster_sums(shares, epilogue, others, C, rank, walk, worker, warps)
                with T.role("adders", warps=adders, registers=32 if adders % 4 == 0 else None):
                    add_partial_tiles(sums, found, SLICES, tiles, shares, epilogue, others, C, walk)

    tensors = T.Tensor((down, across, words), "uint32"), T.Tensor((M, K), dtype), T.Tensor((M, N), out)
    return entry_point("one_or_two_rows", product, tensors, (M, N), epilogue)


@functools.lru_cache(maxsize=1024)
def sliced_candidates(N: int, K: int, M: int, form: FragmentRecords, speed: Speed = HOPPER) -> SkinnyCandidates | None:
    """Candidates for a product of so many rows; None where the kernel has no such rows or records."""
    if M > TOKENS or not form.has_bytes or form.sets > 1 or form.zero is not None:
        return None
    room = 2048, SLICES * M * (4 * form.rows * SLOTS + APART), SLICES * M * COLUMNS
    return candidates_that_fit((N, K), form, WORKER, speed, M, WARPS, (1, 2, 4, 8), room)


def exponent_of(most: Value) -> Value:
    """The exponent of the largest magnitude that has these bits."""
    return T.max((most >> 23) - 127, LEAST)


def power_of(exponent: Value) -> Value:
    """Two to a whole number, float32."""
    return T.reinterpret((T.cast(exponent, "int32") + 127) << 23, "float32")
