"""What `byte_quant_matmul` reads on its way into a block: records of W, columns of A, and the sums of groups of A."""

from __future__ import annotations

from dataclasses import dataclass

import tilewright.language as T
from tilewright.kernels.hopper_quant_bytes_plan import BytePlan
from tilewright.kernels.stream_k import StreamK
from tilewright.kernels.values import Tile, Value
from tilewright.language.roles import Channel
from tilewright.machine.fragment_codes import COLUMNS


@dataclass(frozen=True, slots=True)
class Rings:
    """Ring buffers of a block, and their channels.

    Attributes
    ----------
    w, a : records of W, [stages, parts, records, words], and columns of A, [stages, halves, groups, rows, columns].
    of_w, of_a : who fills and reads them.
    """

    w: Tile
    a: Tile
    of_w: Channel
    of_a: Channel


@dataclass(frozen=True, slots=True)
class SumsOfA:
    """Sums of groups of A's columns, [groups, rows], from a segment's first group and its tile's first row on."""

    S: Tile
    group: Value
    row: Value


@T.macro
def load_weights(plan: BytePlan, W: Tile, rings: Rings, work: StreamK, rank: Value) -> None:
    """The records of a block's segments."""
    down, parts, records = W.shape[0], plan.parts * plan.tiles, plan.records
    for turn in T.serial(work.segments):
        tile, begin, count, before = work.segment(turn)
        if count > 0:
            _, of_rows = plan.place_of(tile, work)
            T.assume(of_rows >= 0)
            block = of_rows if plan.cluster > 1 else of_rows * plan.sharing + rank
            for step in T.serial(count):
                slot = rings.of_w.acquire(before + step)
                start = T.max(T.min(begin + step, plan.chunks - 1), 0) * records
                for number in T.serial(parts):
                    row = T.min(block * parts + number, down - 1)
                    T.copy(
                        W[row, start : start + records, :], rings.w[slot, number, :, :], eviction_policy="evict_first"
                    )
                rings.of_w.publish(before + step)


@T.macro
def load_activations(plan: BytePlan, A: Tile, rings: Rings, work: StreamK) -> None:
    """The columns of the rows of A of a block's segments."""
    for turn in T.serial(work.segments):
        tile, begin, count, before = work.segment(turn)
        if count > 0:
            of_tokens, _ = plan.place_of(tile, work)
            T.assume(of_tokens >= 0)
            for step in T.serial(count * plan.records):
                slot = rings.of_a.acquire(before * plan.records + step)
                for half in list(range(plan.halves)):
                    for group in list(range(plan.sets)):
                        column = (begin * plan.records + step) * COLUMNS + group * plan.columns
                        T.copy(
                            A[of_tokens * plan.tokens + half * plan.part, column],
                            rings.a[slot, half, group, :, :],
                            multicast=plan.sharing > 1,
                        )
                rings.of_a.publish(before * plan.records + step)


@T.macro
def sum_groups(A: Tile, S: Tile, columns: int) -> None:
    """Sums of each group of A's columns, a kernel of its own."""
    M, K = A.shape
    with T.Kernel(S.shape[0], T.ceildiv(M, 64), threads=128) as (group, block):
        tile = T.alloc_fragment((64, columns), "float32")
        total = T.alloc_fragment((64,), "float32")
        for i, j in T.Parallel(64, columns):
            m, k = block * 64 + i, group * columns + j
            inside = (m < M) & (k < K)
            tile[i, j] = T.if_then_else(inside, T.cast(A[T.min(m, M - 1), T.min(k, K - 1)], "float32"), 0.0)
        T.reduce_sum(tile, total, dim=1)
        T.copy(total, S[group, block * 64])
