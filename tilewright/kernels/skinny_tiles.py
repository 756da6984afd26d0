"""What the kernels of low-bit weights for small M share: a worker's copies, the adding warps, and the epilogue of a
tile of W's rows.

Every worker, a warp, streams the records of its columns through a ring of its own; the blocks of a cluster divide K
among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

import tilewright.language as T
from tilewright.kernels import BESIDE, SHARED_BYTES, Epilogue, Speed, Tile, Value, Work, ceil_div, stored
from tilewright.kernels.repertoire import Candidates
from tilewright.kernels.tiles import CLUSTERS
from tilewright.language.roles import Channel
from tilewright.language.tensors import TensorType
from tilewright.machine import COLUMNS, FragmentRecords

TURN, WIDER = 220, 0.48
"""Cycles of a worker for a tile of W's rows, however many records; and how much longer records take by 16 columns of
the instruction than by eight."""

COPY = 12.5
"""Rows of a box that the copy engine would fill in the time that a copy costs it besides."""

DECODED = 1.1
"""Operations that make an operand of a code; products wait for them."""

ADDED, BESIDE_ADDING = 13.5, 0.17
"""Cycles of an adding warp for 32 sums; and the share of the shorter, workers or adders, that the longer one waits
for."""

CLUSTER_SUMS = 1150
"""Cycles in which the blocks of a cluster hand their sums to one another."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker of a kernel takes. With the figures above it fits 142 products of 1, 2 and 4 bits with 1,200 times
    (H200, 27 and 28 November 2026): what is told to be the fastest takes 1.0% longer than the best that was timed.

    Attributes
    ----------
    record : cycles for 16 rows of a record by eight columns of the instruction.
    numbers, held : cycles of a block before its first tile for each record of A, and of a worker for each of its own.
    rows, columns : of A that share these, and that hold the sum of a row of A.
    """

    record: float
    numbers: float
    held: float
    rows: int
    columns: int


class SkinnyCandidates(Candidates):
    """Candidates for a product of a few rows among workers that stream records."""

    def __init__(
        self, of: list[dict[str, int]], N: int, K: int, form: FragmentRecords, worker: Worker, speed: Speed
    ) -> None:
        super().__init__(of, speed)
        self.N, self.K, self.form, self.worker = N, K, form, worker

    def work(self, M: int) -> Work:
        """See `Candidates`."""
        of, form, worker = self.columns, self.form, self.worker
        warps, records, cluster = of["warps"], of["records"], of["cluster"]
        down, _, words = form.shape(self.N, self.K)
        groups = np.minimum(of["blocks"] // cluster, down)
        waves = ceil_div(down, groups)
        width = np.maximum(8, of["tokens"] * worker.columns)
        turn = records * form.rows / 16 * worker.record * (1 + WIDER * (width - 8) / 8) + TURN
        adding = warps * form.rows * of["tokens"] * worker.columns / (32 * (4 - warps % 4)) * ADDED
        copied, codes = 4 * words * records, warps * records * form.rows * COLUMNS
        weights, others = 4 * words * self.N * self.K / (COLUMNS * form.rows), 2 * M * (self.N + self.K)
        return Work(
            size=2,
            blocks=groups * cluster,
            resident=groups * cluster,
            waves=waves,
            steps=1,
            products=codes * width * (1 if worker.columns > 1 else 2),
            memory=weights + others,
            loads=warps * copied,
            empty=warps * COPY,
            lanes=codes * DECODED,
            apart=1.0,
            serial=np.maximum(turn, adding) + BESIDE_ADDING * np.minimum(turn, adding),
            exchange=np.where(cluster > 1, CLUSTER_SUMS, 0),
            in_flight=warps * of["stages"] * copied,
            beside=np.minimum(1, BESIDE * others / (weights + others) + 1 / waves),  # the first tile hides nothing
            begins=records * (warps * worker.numbers + worker.held) * of["tokens"] / worker.rows,
        )


def candidates_that_fit(
    size: tuple[int, int],
    form: FragmentRecords,
    worker: Worker,
    speed: Speed,
    tokens: int,
    most: int,
    tried: Sequence[int],
    room: tuple[int, int, int],
) -> SkinnyCandidates | None:
    """Candidates whose blocks have room for two copies of each worker; None where there is none.

    Parameters
    ----------
    size : N and K.
    tokens : rows of A that a launch serves.
    most : workers of a block.
    tried : records that a worker reads at a time; clusters of blocks divide K among their workers.
    room : bytes of shared memory besides copies and shares: of a block, of each worker, of each of its records.
    """
    down, across, words = form.shape(*size)
    fixed, own, each = room
    fit = []
    for records, cluster in product((one for one in tried if across % one == 0), CLUSTERS):
        blocks = speed.resident(cluster, stay=True)
        warps = ceil_div(ceil_div(size[1], records * COLUMNS), cluster)  # records that pad a row are nobody's
        shares = ceil_div(down, blocks // cluster) + cluster if cluster > 1 else 0
        taken = fixed + warps * (own + records * each) + 4 * form.rows * tokens * shares
        stages = min(3, (SHARED_BYTES - taken) // (4 * warps * records * words))
        if warps <= most and stages >= 2:
            sizes = {"tokens": tokens, "warps": warps, "records": records, "stages": stages}
            fit.append({**sizes, "cluster": cluster, "blocks": blocks})
    return SkinnyCandidates(fit, *size, form, worker, speed) if fit else None


@T.macro
def start_copy(W: Tile, ring: Tile, stream: Channel, worker: Value, first: Value, turn: Value, tile: Value) -> None:
    """Start the copy of a tile's records, from `first` on, to a worker's part of `ring` [workers, slots, records,
    words]."""
    slot = stream.acquire(turn)
    T.copy(W[tile, first : first + ring.shape[2], :], ring[worker, slot, :, :], eviction_policy="evict_first")
    stream.publish(turn)


@T.macro
def start_copies(
    W: Tile, ring: Tile, stream: Channel, worker: Value, first: Value, walk: tuple[Value, int], slots: Sequence[int]
) -> None:
    """Start the copies of a worker's first tiles; `walk` is where the cluster begins and how far apart its tiles
    are."""
    down, across, _ = W.shape
    group, groups = walk
    for turn in list(slots):
        tile = group + turn * groups
        if tile < down and first + ring.shape[2] <= across:
            start_copy(W, ring, stream, worker, first, turn, tile)


@T.macro
def store(result: Tile, epilogue: Epilogue, others: tuple[Tile, ...], C: Tile, first: Value) -> None:
    """Sums (tokens, rows) of the rows of W from `first` on, into C; `others` are factor, bias and residual."""
    tokens, rows = result.shape
    factor, bias, residual = others
    if epilogue.is_plain:
        T.copy(result, C[0, first])
    else:
        shift = T.alloc_fragment((rows,), "float32")
        if epilogue.bias:
            T.copy(bias[first], shift)
        for i, j in T.Parallel(tokens, rows):
            value = epilogue.before_residual(result[i, j], factor[0], shift[j])
            if epilogue.residual:
                value = value + T.cast(residual[i, first + j], "float32")
            C[i, first + j] = stored(value, C.dtype)


def cluster_sums(shape: tuple[int, int, int, int]) -> Tile | None:
    """Shared memory for partial sums, [blocks, tiles, tokens, rows]; None where a cluster has one block."""
    return T.alloc_shared(shape, "float32") if shape[0] > 1 else None


@T.macro
def add_partial_tiles(
    sums: Tile,
    found: Channel,
    columns: int,
    tiles: Value,
    shares: Tile,
    epilogue: Epilogue,
    others: tuple[Tile | None, ...],
    C: Tile,
    walk: tuple[Value, int],
) -> None:
    """The adding warps: add the partial sums that the workers of the block have of a tile, always in the same order.

    Parameters
    ----------
    sums, found : [slots, workers, rows, tokens * columns], and the channel that they come by.
    columns : in which workers hold the sum of a row of A.
    tiles : how many the block works on; `walk` is where its cluster begins and how far apart they are.
    shares : shared memory for the partial sums of a cluster (`cluster_sums`); None where one block stores its own.
    """
    _, warps, rows, width = sums.shape
    tokens = width // columns
    group, groups = walk
    result = T.alloc_fragment((tokens, rows), "float32")
    T.pdl_sync()
    for turn in T.serial(tiles):
        full = found.receive(turn)
        T.clear(result)
        for number in T.unroll(warps):
            for i, j in T.Parallel(tokens, rows):
                for column in list(range(columns)):
                    result[i, j] += sums[full, number, j, i * columns + column]
        found.release(turn)
        if shares is None:
            store(result, epilogue, others, C, (group + turn * groups) * rows)
        else:
            T.copy(result, shares[turn % shares.shape[0], turn // shares.shape[0], :, :])
    if shares is not None:
        T.clear(result)
        for turn in T.serial(tiles, shares.shape[0] * shares.shape[1]):
            T.copy(result, shares[turn % shares.shape[0], turn // shares.shape[0], :, :])
        T.sync_cluster()
        T.sync_cluster(ordered=False)


@T.macro
def store_cluster_sums(
    shares: Tile,
    epilogue: Epilogue,
    others: tuple[Tile | None, ...],
    C: Tile,
    rank: Value,
    walk: tuple[Value, int],
    worker: Value,
    warps: int,
) -> None:
    """Add the partial sums of the cluster's blocks, in order of the blocks, for the tiles that this block stores.

    The workers do this last. Tiles go round robin to the blocks of a cluster, and within a block to its workers.
    """
    cluster, count, tokens, rows = shares.shape
    group, groups = walk
    total = T.alloc_fragment((tokens, rows), "float32")
    other = T.alloc_fragment((tokens, rows), "float32")
    T.sync_cluster()
    for turn in T.serial(-(-count // warps)):
        number = turn * warps + worker
        if number < count:
            T.copy(shares[rank, number, :, :], total, rank=0)
            for peer in list(range(1, cluster)):
                T.copy(shares[rank, number, :, :], other, rank=peer)
                for i, j in T.Parallel(tokens, rows):
                    total[i, j] += other[i, j]
            store(total, epilogue, others, C, (group + (number * cluster + rank) * groups) * rows)
    T.sync_cluster(ordered=False)


def entry_point(
    name: str,
    launch: Callable[..., None],
    tensors: tuple[TensorType, TensorType, TensorType],
    size: tuple[Value, int],
    epilogue: Epilogue,
) -> T.PrimFunc:
    """The function that is launched: of W, A and C alone, or with an epilogue's factor, bias and residual before C.

    Parameters
    ----------
    launch : called with W, A, the three others (each None where it is no parameter) and C.
    tensors : annotations of W, A and C.
    size : rows and columns of C before pairs of them become one.
    """
    Weight, Activations, Result = tensors
    M, N = size
    plain = epilogue.is_plain
    Factor = None if plain else T.Tensor((1,), "float32")
    Shift = None if plain else T.Tensor((N if epilogue.bias else 1,), epilogue.bias or "float32")
    Added = None if plain else T.Tensor((M, N) if epilogue.residual else (1, 1), Result.dtype)

    def launched(W: Weight, A: Activations, factor: Factor, bias: Shift, residual: Added, C: Result) -> None:
        launch(W, A, (factor, bias, residual), C)

    launched.__name__ = name if plain else f"{name}_and_more"
    return T.prim_func(launched)
