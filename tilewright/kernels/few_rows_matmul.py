"""``C = A @ B^T`` for a few rows of A: the weight's rows are those of the instruction, and blocks share K.

What takes time is reading the weight once.  Its rows are the instruction's 64, the rows of A its columns, so that
nothing is multiplied in vain; K is split among the blocks of a cluster where there would be too few of them, and each
adds up some rows of what all of them found.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.kernels.cluster_sums import PADDING, add_shares
from tilewright.kernels.dense_matmul import sum_type
from tilewright.kernels.tiles import CORES, FEW_ROWS, SHARED_BYTES

ROW_BYTES = 128
BLOCK_N = 64
MOST_STAGES, LEAST_STAGES = 8, 4
MOST_RESIDENT = 5
"""Blocks of a multiprocessor that run at once with rings deep enough."""

BANDWIDTH = 4e12
"""Bytes a second that are read."""

EXCHANGE = 1e-6
"""Seconds that it takes the blocks of a cluster to add up what they found, besides the reads."""

IDLE_COST = 0.85
"""Share of the time that is lost where half of the multiprocessors have nothing to do; a few cost nearly nothing."""

RESERVED = 2 << 10
"""Bytes of shared memory of a block beside its ring."""

SPLITS = (1, 2, 4, 8)
"""Parts that K may have: blocks of a cluster, each of which finishes as many rows."""

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


def weight_rows(N: int, rows: int, cores: int = CORES) -> int:
    """Rows of the weight in a tile: twice as many where there are many rows of A, which are read again for each tile,
    and tiles enough for all multiprocessors."""
    return 2 * BLOCK_N if rows > FEW_ROWS // 2 and 2 * BLOCK_N * cores <= N else BLOCK_N


def choose_splits(N: int, K: int, dtype: str = "bfloat16", rows: int = 1, cores: int = CORES) -> int:
    """Parts of K that take the least time: parts that are written and added up, against multiprocessors without work.

    A multiprocessor that is done early leaves its bandwidth to others, so idleness costs less than its share.
    """
    size = tilewright.dtype(dtype).storage_bytes
    steps = -(-K // (ROW_BYTES // size))
    tiles = -(-N // weight_rows(N, rows, cores))
    alone = N * K * size / BANDWIDTH

    def seconds(splits: int) -> float:
        waves = -(-tiles * splits // cores) * cores * -(-steps // splits) / (tiles * steps)
        return alone * (1 + IDLE_COST * (waves - 1) ** 2) + (EXCHANGE if splits > 1 else 0.0)

    return min((n for n in SPLITS if n == 1 or steps // n >= LEAST_STEPS), key=seconds)


def choose_stages(blocks: int, stage_bytes: int, cores: int = CORES) -> int:
    """Slots of a ring: so many that all blocks run at once, where their rings are then still deep enough."""
    resident = -(-blocks // cores)
    if resident > MOST_RESIDENT:
        return MOST_STAGES
    return max(LEAST_STAGES, min(MOST_STAGES, (SHARED_BYTES // resident - RESERVED) // stage_bytes))


@tilewright.jit
def few_rows_matmul(
    N: int,
    K: int,
    dtype: str = "bfloat16",
    out: str | None = None,
    rows: int = 16,
    splits: int | None = None,
    stages: int | None = None,
    height: int | None = None,
) -> Any:
    """Product of at most `rows` rows with a weight.

    Parameters
    ----------
    N, K : size of the weight ``[N, K]``.
    dtype : of the operands, 8 or 16 bits.
    out : type of the result; that of the sums where not given.
    rows : what the kernel has room for, up to 64; calls with fewer work too.
    splits : parts of K, of which each is a block's, 1, 2, 4 or 8; None for as many as keep the machine busy.
    stages : slots of a block's ring of tiles; None for as many as let all blocks run at once.
    height : rows of the weight in a tile, 64 or 128; see `weight_rows`.

    Returns
    -------
    kernel of ``A[M, K]``, ``B[N, K]`` and ``C[M, N]``.

    Raises
    ------
    TooManyRows : `rows` is more than 64.
    InvalidSplits : `splits` is no size of a cluster.
    """
    if rows > FEW_ROWS:
        raise TooManyRows(rows)
    if splits not in (None, *SPLITS):
        raise InvalidSplits(splits)
    room = next(size for size in (8, 16, 32, 64) if size >= rows)
    block_N = height or weight_rows(N, rows)
    parts = splits or choose_splits(N, K, dtype, rows)
    sums, result = sum_type(dtype), out or sum_type(dtype)
    block_K = ROW_BYTES // tilewright.dtype(dtype).storage_bytes
    whole = -(-K // block_K)
    steps = -(-whole // parts)
    slots = stages or choose_stages(-(-N // block_N) * parts, (block_N + room) * ROW_BYTES)
    M = T.dynamic("M")

    @T.prim_func
    def few_rows_matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), result)):
        with T.Kernel(T.ceildiv(N, block_N), parts, threads=2 * block_N, cluster_dims=(1, parts)) as (bn, part):
            a = T.alloc_shared((room, block_K), dtype)
            b = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_N, room), sums)
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=slots):
                T.copy(B[bn * block_N, (part * steps + k) * block_K], b)
                T.copy(A[0, (part * steps + k) * block_K], a)
                T.gemm(b, a, total, transpose_B=True)
            if parts == 1:
                for n, m in T.Parallel(block_N, room):
                    C[m, bn * block_N + n] = T.cast(total[n, m], result)
            else:
                found = T.alloc_shared((room, block_N + PADDING), sums)
                for n, m in T.Parallel(block_N, room):
                    found[m, n] = total[n, m]
                share = room // parts
                mine = T.alloc_fragment((share, block_N), sums)
                add_shares(found, mine, part, parts)
                for m, n in T.Parallel(share, block_N):
                    C[part * share + m, bn * block_N + n] = T.cast(mine[m, n], result)
                T.sync_cluster()

    return few_rows_matmul
