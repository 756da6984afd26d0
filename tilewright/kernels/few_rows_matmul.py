"""``C = A @ B^T`` for a few rows of A: the weight's rows are those of the instruction, and blocks share K.

What takes time is reading the weight once.  Its rows are the instruction's 64, the rows of A its columns, so that
nothing is multiplied in vain; K is split among the blocks of a cluster where there would be too few of them, and each
adds up some rows of what all of them found.
"""

from __future__ import annotations

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.kernels import SHARED_BYTES, Speed, Tile, Value, Work, ceil_div, speed_of
from tilewright.kernels.cluster_sums import PADDING, add_over_cluster
from tilewright.kernels.dense_matmul import sum_type
from tilewright.kernels.repertoire import Candidates
from tilewright.kernels.tiles import FEW_ROWS
from tilewright.language.trace import PrimFunc

ROW_BYTES = 128

STAGES = (8, 6, 5, 4)
"""Slots that a block's ring may have: fewer where then all blocks run at once."""

NARROW = 1.12
"""How much longer memory takes for a weight ``[K, N]`` of whose lines a tile has fewer than `ROW_BYTES` (H200, e4m3:
67.1 microseconds for 61.3 at 28672 x 8192, 7.35 for 6.73 at 4096 x 4096)."""

BEGIN, CLUSTER_BARRIER, PEER = 1830, 915, 1100
"""Cycles until a block's first bytes are there, until the blocks of a cluster have met, for each doubling of them, and
for the sums of 64 rows of one more of them."""

NARROW_PRODUCTS, BESIDE = 0.45, 0.23
"""The share of its rate that the matrix unit reaches with such narrow tiles, and that of their time which reading does
not hide."""

RESERVED = 2 << 10
"""Bytes of shared memory of a block beside its ring."""

HEIGHTS = (128, 64)
"""Rows of the weight in a tile, for two warpgroups or one."""

SPLITS = (1, 2, 4, 8)
"""Parts that K may have, blocks of a cluster of which each finishes as many rows."""

LEAST_STEPS = 8
"""Steps of k of a block: fewer do not fill its ring."""


class TooManyRows(TilewrightError):
    """A capacity that no instruction has."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows are more than {FEW_ROWS}", hint="dense_matmul is made for many rows")


class InvalidSplits(TilewrightError):
    """A number of parts that no cluster has."""

    def __init__(self, splits: int) -> None:
        super().__init__(f"K is not divided into {splits} parts", hint=f"one of {', '.join(map(str, SPLITS))}")


def room_for(rows: int) -> int:
    """Columns of the instruction for so many rows of A."""
    return next(size for size in (8, 16, 32, 64) if size >= rows)


class FewRowsCandidates(Candidates):
    """Candidates for the product of a weight: rows of it in a tile, parts of K and slots of a ring."""

    def __init__(self, N: int, K: int, dtype: str, speed: Speed, transpose_B: bool = True) -> None:
        self.N, self.K, self.size, self.transpose_B = N, K, tilewright.dtype(dtype).storage_bytes, transpose_B
        self.steps = ceil_div(K, ROW_BYTES // self.size)
        super().__init__(
            [
                {"height": height, "splits": splits, "stages": stages}
                for stages in STAGES
                for splits in SPLITS
                for height in HEIGHTS
                if splits == 1 or self.steps // splits >= LEAST_STEPS
            ],
            speed,
        )

    def work(self, M: int) -> Work:
        """See `Candidates`; blocks that share a multiprocessor are one that does the steps of all."""
        height, splits, stages = (self.columns[name] for name in ("height", "splits", "stages"))
        blocks, room, size = ceil_div(self.N, height) * splits, room_for(M), self.size
        resident = self.speed.resident(splits, stay=True) * (
            SHARED_BYTES // (RESERVED + stages * (height + room) * ROW_BYTES)
        )
        waves, most = ceil_div(blocks, resident), ceil_div(np.minimum(blocks, resident), self.speed.cores)
        narrow = np.where((not self.transpose_B) & (height * size < ROW_BYTES), NARROW, 1.0)
        exchange = CLUSTER_BARRIER * np.log2(splits) + PEER * (splits - 1) * room / FEW_ROWS
        return Work(
            size=size,
            blocks=blocks,
            resident=resident,
            waves=waves,
            steps=ceil_div(self.steps, splits),
            products=most * height * room * ROW_BYTES / size / NARROW_PRODUCTS,
            beside=BESIDE,
            memory=self.N * self.K * size * narrow,
            in_flight=height * ROW_BYTES * stages,
            exchange=waves * exchange,
            begins=waves * BEGIN / most,
        )


@tilewright.jit
def few_rows_matmul(
    N: int,
    K: int,
    dtype: str = "bfloat16",
    out: str | None = None,
    rows: int = 16,
    splits: int | None = None,
    height: int | None = None,
    stages: int | None = None,
    transpose_B: bool = True,
    scaled: bool = False,
    promote: bool = False,
) -> PrimFunc:
    """Product of at most `rows` rows with a weight.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``.
    dtype : of the operands, 8 or 16 bits.
    out : type of the result; that of the sums where not given.
    rows : what the kernel has room for, up to 64; calls with fewer work too.
    splits : parts of K, of which each is a block's, 1, 2, 4 or 8; None for as many as keep the machine busy.
    height : rows of the weight in a tile, 64 or 128, likewise.
    stages : slots of a block's ring of tiles, likewise.
    transpose_B : whether the weight is ``[N, K]`` in memory, else ``[K, N]``: of bytes lanes then turn it in registers.
    scaled : whether sums are multiplied by a factor for each row of A and one for each row of the weight.
    promote : whether the matrix unit adds up the products of 128 columns of bytes alone.

    Returns
    -------
    kernel of ``A[M, K]``, ``B[N, K]`` (or ``[K, N]``) and ``C[M, N]``; where scaled of A, ``scales_A[M]``, B,
    ``scales_B[N]`` and C, the factors float32.

    Raises
    ------
    TooManyRows : `rows` is more than 64.
    InvalidSplits : `splits` is no size of a cluster.
    """
    if rows > FEW_ROWS:
        raise TooManyRows(rows)
    if splits is not None and splits not in SPLITS:
        raise InvalidSplits(splits)
    room = room_for(rows)
    chosen = next(FewRowsCandidates(N, K, dtype, speed_of(T.machine()), transpose_B).ranked(rows))
    block_N, parts, slots = height or chosen["height"], splits or chosen["splits"], stages or chosen["stages"]
    sums, result = sum_type(dtype), out or sum_type(dtype)
    block_K = ROW_BYTES // tilewright.dtype(dtype).storage_bytes
    steps = -(-K // (block_K * parts))
    M = T.dynamic("M")

    def finished(value: Value, factors: tuple[Tile, Tile] | None, m: Value, n: Value) -> Value:
        """An element of C: the sum of a tile's row n and a row m of A, with the factors of both."""
        return T.cast(value if factors is None else value * factors[0][m] * factors[1][n], result)

    @T.macro
    def product(A: Tile, scales_A: Tile, B: Tile, scales_B: Tile, C: Tile) -> None:
        with T.Kernel(T.ceildiv(N, block_N), parts, threads=2 * block_N, cluster_dims=(1, parts)) as (bn, part):
            a = T.alloc_shared((room, block_K), dtype)
            b = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
            total = T.alloc_fragment((block_N, room), sums)
            row = bn * block_N
            T.pdl_sync()
            T.pdl_trigger()
            share = room // parts
            factors = None
            if scaled:  # they are read before the loop, which hides how long that takes
                factors = T.alloc_fragment((share,), "float32"), T.alloc_fragment((block_N,), "float32")
                T.copy(scales_A[part * share], factors[0])
                T.copy(scales_B[row], factors[1])
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=slots):
                column = (part * steps + k) * block_K
                T.copy(B[(row, column) if transpose_B else (column, row)], b)
                T.copy(A[0, column], a)
                every = block_K if promote else None
                T.gemm(b, a, total, transpose_A=not transpose_B, transpose_B=True, promote_every=every)
            if parts == 1:
                for n, m in T.Parallel(block_N, room):
                    C[m, row + n] = finished(total[n, m], factors, m, n)
            else:
                found = T.alloc_shared((room, block_N + PADDING), sums)
                for n, m in T.Parallel(block_N, room):
                    found[m, n] = total[n, m]
                mine = T.alloc_fragment((share, block_N), sums)
                add_over_cluster(found, mine, part, parts)
                T.cluster_arrive()
                for m, n in T.Parallel(share, block_N):
                    C[part * share + m, row + n] = finished(mine[m, n], factors, m, n)
                T.cluster_wait()

    OfRows, OfColumns = (T.Tensor((lines,), "float32") if scaled else None for lines in (M, N))

    def launched(
        A: T.Tensor((M, K), dtype),
        scales_A: OfRows,
        B: T.Tensor((N, K) if transpose_B else (K, N), dtype),
        scales_B: OfColumns,
        C: T.Tensor((M, N), result),
    ) -> None:
        product(A, scales_A, B, scales_B, C)

    launched.__name__ = "few_rows_scaled_matmul" if scaled else "few_rows_matmul"
    return T.prim_func(launched)
