"""``C = A W^T`` for a few rows of A on Hopper, W in low-bit records: the stream of weights is the kernel.

The problem is transposed: rows of W are what the matrix instruction calls rows, the few rows of A its columns. Every
worker is one warp. It keeps its part of A's columns in registers for the whole launch and streams the records of these
columns through a ring of its own, so that no warp ever waits for another on the way in. Codes go to the tensor cores as
the masks leave them; powers of two, offsets and scales are applied to float32 sums of groups (offsets to codes where
groups are shorter than records: there would be too many sums of A). What workers found for a tile is added by the
adders, in order, so that results repeat bit by bit.
"""

from __future__ import annotations

import functools

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.kernels import HOPPER, PLAIN, Epilogue, Speed, Tile, Value, ceil_div, speed_of, worker_registers
from tilewright.kernels.code_table import fill_pairs, table_bytes, table_of_pairs
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

FEW = 16
"""Rows of A that it serves at most."""

SLOTS = 3
"""Tiles whose sums are on their way."""

WORKER = Worker(record=160, numbers=16, held=377, rows=8, columns=1)
"""What a worker takes."""

FILLED = 5
"""The named barrier behind which the table of pairs is filled."""

STEP = 64
"""Columns that are decoded at once where records have more than 16 rows: registers hold so many codes."""


class InvalidShares(TilewrightError):
    """Workers that would leave some of the weight's columns out."""

    def __init__(self, across: int, records: int, workers: int) -> None:
        super().__init__(
            f"{workers} workers of {records} records each cannot share a weight of {across} records of {COLUMNS} "
            "columns",
            hint="records divides them, and cluster * warps * records is at least as many",
        )


@tilewright.jit
def skinny_quant_matmul(
    N: int,
    K: int,
    form: FragmentRecords,
    tokens: int = 8,
    out: str = "float16",
    offset: int = 8,
    zeros_mode: str = "original",
    epilogue: Epilogue = PLAIN,
    warps: int = 16,
    records: int = 4,
    stages: int = 2,
    ahead: int = 1,
    cluster: int = 1,
    blocks: int | None = None,
) -> T.PrimFunc:
    """Product of up to `tokens` rows with ``(codes - offset) * scales``, or ``(codes - zeros) * scales``.

    Parameters
    ----------
    form : order of W (`FragmentRecords`), with scales; with zeros where each group has its own.
    tokens : rows of A that one launch serves, a multiple of 8.
    offset : what all codes are too large by.
    zeros_mode : with zeros: ``"original"``, ``(codes - offset - zeros) * scales``, or ``"rescale"``,
        ``(codes - offset) * scales - zeros``.
    epilogue : what becomes of sums before they are stored.
    warps : workers of a block; together they cover K: ``cluster * warps * records * 128`` is at least K.
    records : that a worker reads of each tile, in one copy.
    stages : copies of a worker on their way.
    ahead : those that begin before activations are asked for, which would wait behind all of them.
    cluster : blocks that divide K among them and add their sums at the end, through distributed shared memory.
    blocks : how many blocks run, None for one a multiprocessor; each cluster takes every so many-th tile of W's rows.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``: `form.pack` makes it), ``A[M, K]`` of the form's operand type, M at
    most `tokens`, and ``C[M, N]`` of `out`. A's rows start at multiples of 16 bytes. With an epilogue there stand
    before C ``factor[1]`` (float32), ``bias[N]`` and ``residual[M, N]``, one element each where they are not used.

    Raises
    ------
    InvalidShares : workers would leave columns of W out.
    """
    M = T.dynamic("M")
    dtype = str(form.operand)
    down, across, words = form.shape(N, K)
    if across % records or cluster * warps * records * COLUMNS < K:
        raise InvalidShares(across, records, cluster * warps)
    rows, step = form.rows, min(form.group, STEP if form.rows > 16 else COLUMNS)
    steps, groups_of_a, span = form.group // step, records * form.sets, records * COLUMNS
    pieces, whole = groups_of_a * steps, K // span * records
    adders = 4 - warps % 4
    in_codes = form.sets > 1 and form.zero is None and form.raw_bias + offset != 0
    units = [1.0 if in_codes else form.raw_unit(h) for h in (0, 1)]
    groups = min((blocks or speed_of(T.machine()).cores) // cluster, down)
    tiles_of_cluster = -(-down // (groups * cluster))
    bias = 0 if in_codes else form.raw_bias + offset
    added = bias != 0 or form.zero is not None

    def scaled(factor: Value, scale: Tile, row: Value) -> Value:
        return factor if form.scale is None else scale[row] * factor

    @T.macro
    def add_columns(a: list[Tile], of_a: list[Tile]) -> None:
        """The sums of the columns of each group of A, which offsets and zeros are multiplied by."""
        ones = T.alloc_fragment((16, step), dtype)
        columns = T.alloc_fragment((16, tokens), "float32")
        T.fill(ones, 1.0)
        for number in list(range(len(of_a))):
            for k in list(range(steps)):
                T.gemm(ones, a[number * steps + k], columns, transpose_B=True, clear_accum=k == 0)
            T.reduce_max(columns, of_a[number], dim=0)

    @T.macro
    def product(W: Tile, A: Tile, others: tuple[Tile, Tile, Tile], C: Tile) -> None:
        with T.Kernel(groups * cluster, threads=32 * (warps + adders), cluster_dims=cluster) as block:
            group, rank = block // cluster, block % cluster
            walk = group, groups
            ring = T.alloc_shared((warps, stages, records, words), "uint32")
            sums = T.alloc_shared((SLOTS, warps, rows, tokens), "float32")
            shares = cluster_sums((cluster, tiles_of_cluster, tokens, rows))
            table = table_of_pairs(form)
            stream = T.channel(ring, writers="workers", readers="workers", scope="warp")
            found = T.channel(sums, writers="workers", readers="adders")
            tiles = (down - group + groups - 1) // groups
            with T.roles():
                with T.role("workers", warps=1, instances=warps, registers=worker_registers(warps)) as worker:
                    first = (rank * warps + worker) * records
                    mine = W, ring, stream, worker, first
                    start_copies(*mine, walk, range(stages)[:ahead])
                    if form.is_looked_up:
                        for part in T.serial(-(-16 // warps)):
                            if part * warps + worker < 16:
                                fill_pairs(form, table, (part * warps + worker) * 16, 16)
                        T.sync_threads(FILLED, 32 * warps)
                    T.pdl_sync()
                    T.pdl_trigger()
                    a = [T.alloc_fragment((tokens, step), dtype) for _ in range(pieces)]
                    # Who has all of its columns asks for them without a look at each; so does the one that K ends
                    # with, since it is known who that is.
                    if cluster * warps * span <= K or first + records <= whole:
                        for piece in list(range(pieces)):
                            T.copy(A[0, first * COLUMNS + piece * step], a[piece])
                    else:
                        for piece in list(range(pieces)):
                            T.clear(a[piece])
                        if first == whole:
                            for piece in list(range(ceil_div(K % span, step))):
                                T.copy(A[0, whole * COLUMNS + piece * step], a[piece])
                    start_copies(*mine, walk, range(stages)[ahead:])
                    of_a = [T.alloc_fragment((tokens,), "float32") for _ in range(groups_of_a)] if added else []
                    add_columns(a, of_a)
                    codes = T.alloc_fragment((rows, step), dtype)
                    scale = T.alloc_fragment((rows,), "float32")
                    zero = T.alloc_fragment((rows,), "float32")
                    part = T.alloc_fragment((rows, tokens), "float32")
                    total = T.alloc_fragment((rows, tokens), "float32")
                    for turn in T.serial(tiles):
                        T.clear(total)
                        if first + records <= across:
                            slot = stream.receive(turn)
                            for number in list(range(groups_of_a)):
                                record, place = number // form.sets, number % form.sets * form.group
                                if bias != 0:
                                    for i, j in T.Parallel(rows, tokens):
                                        part[i, j] = of_a[number][j] * by_half(i, *(-bias * unit for unit in units))
                                for k in list(range(steps)):
                                    T.unpack(
                                        ring[worker, slot, record, :],
                                        form,
                                        codes,
                                        scale if form.scale and k == 0 else None,
                                        zero if form.zero and k == 0 else None,
                                        first=place + k * step,
                                        offset=offset if in_codes else None,
                                        table=table,
                                    )
                                    T.gemm(
                                        codes,
                                        a[number * steps + k],
                                        part,
                                        transpose_B=True,
                                        clear_accum=bias == 0 and k == 0,
                                    )
                                for i, j in T.Parallel(rows, tokens):
                                    inverse = by_half(i, *(1 / unit for unit in units))
                                    factor_of = scaled(inverse, scale, i)
                                    if form.zero is None:
                                        total[i, j] = T.fma(part[i, j], factor_of, total[i, j])
                                    elif zeros_mode == "original":
                                        less = part[i, j] * inverse - zero[i] * of_a[number][j]
                                        total[i, j] = T.fma(less, scaled(1.0, scale, i), total[i, j])
                                    else:
                                        less = zero[i] * of_a[number][j]
                                        total[i, j] = T.fma(part[i, j], factor_of, total[i, j] - less)
                            stream.release(turn)
                            following = group + (turn + stages) * groups
                            if following < down:
                                start_copy(*mine, turn + stages, following)
                        own = found.acquire(turn)
                        T.copy(total, sums[own, worker, :, :])
                        found.publish(turn)
                    if cluster > 1:
                        store_cluster_sums(shares, epilogue, others, C, rank, walk, worker, warps)
                with T.role("adders", warps=adders, registers=32 if adders % 4 == 0 else None):
                    add_partial_tiles(sums, found, 1, tiles, shares, epilogue, others, C, walk)

    tensors = T.Tensor((down, across, words), "uint32"), T.Tensor((M, K), dtype), T.Tensor((M, N), out)
    return entry_point("few_rows", product, tensors, (M, N), epilogue)


def by_half(row: Value, upper: float, lower: float) -> Value:
    """One number for rows 0 to 7 of each 16, another for rows 8 to 15."""
    return upper if upper == lower else T.if_then_else(row % 16 < 8, T.float32(upper), T.float32(lower))


@functools.lru_cache(maxsize=1024)
def skinny_candidates(N: int, K: int, M: int, form: FragmentRecords, speed: Speed = HOPPER) -> SkinnyCandidates | None:
    """Candidates for a product of so many rows; None where there is none.

    A worker keeps the columns of A that it multiplies by in registers, sums of many rows besides, and those of A's
    columns for zeros of short groups: 16 workers have fewer than eight.
    """
    tokens = 8 if M <= 8 else FEW
    light = tokens == 8 and form.rows == 16 and (form.sets == 1 or form.zero is None)
    tried = [records for records in (2, 4, 8) if tokens * records <= 64]
    room = 1024 + table_bytes(form), 4 * form.rows * tokens * SLOTS, 0
    if M > FEW:
        return None
    return candidates_that_fit((N, K), form, WORKER, speed, tokens, 16 if light else 8, tried, room)
