"""``C = A W^T`` on Hopper for activations of 8 bits, W in low-bit records: weights are the register operand of wgmma.

As in `hopper_quant_wgmma` the problem is transposed, two producers run ahead in rings of their own, and consumers
decode a record's columns while the tensor cores work on the ones before. Codes become int8 or 8-bit floats. Scales of
groups cannot enter those: sums of a group are exact in an accumulator of their own and are scaled on their way into the
total. With scales of channels alone, or int8 scales of groups that are multiplied into the codes, one sum runs over all
of K.

Beside this file: `hopper_quant_bytes_plan` (options and what follows from them), `_rings` (what comes in), `_sums`
(products), `_results` (what becomes of sums) and `_choice` (sizes for a problem).
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.kernels import Tile, Value, consumer_registers
from tilewright.kernels import hopper_quant_bytes_sums as products
from tilewright.kernels.hopper_quant_bytes_plan import BytePlan
from tilewright.kernels.hopper_quant_bytes_results import (
    PADDING,
    Factors,
    Output,
    alloc_factors,
    load_factors,
    store,
    store_boxes,
    store_split_k,
)
from tilewright.kernels.hopper_quant_bytes_rings import Rings, SumsOfA, load_activations, load_weights, sum_groups
from tilewright.kernels.stream_k import OneTile, StreamK, add_partial, flag_partial, range_of, store_partial, workspaces
from tilewright.language.trace import PrimFunc
from tilewright.machine import COLUMNS, FragmentRecords

LEFT = 6
"""Named barrier behind which sums have left for memory."""

LONGEST = 1 << 17
"""Columns whose products certainly fit an int32."""


@tilewright.jit
def byte_quant_matmul(N: int, K: int, form: FragmentRecords, **options: Any) -> PrimFunc:  # fields of `BytePlan`
    """``function((A scales_A) ((numbers - offset - zeros) scales scales_W)^T + bias) + residual`` for any number of
    rows.

    Parameters
    ----------
    form, options : see `BytePlan`.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``), ``A[M, K]``, ``scales_A[M]`` (float32), ``scales_W[N]``,
    ``bias[N]``, ``residual[M, N]`` of C's type and ``C[M, N]``; what is not used has extents of 1. Rows of A start at
    multiples of 16 bytes.
    """
    plan = BytePlan(N, K, form, **options)
    M = T.dynamic("M")
    down, across, words = form.shape(N, K)
    slab, halves, columns, count = plan.slab, plan.halves, plan.columns, plan.count
    groups, together = plan.blocks // plan.sharing, plan.together
    cluster_syncs = 2 * plan.tiles * halves if plan.cluster > 1 else 0
    a_bytes, w_bytes = (
        plan.stages * plan.tokens * COLUMNS,
        4 * plan.weight_stages * plan.parts * plan.tiles * plan.records * words,
    )
    Shift = T.Tensor((N,) if plan.epilogue.bias else (1,), plan.epilogue.bias or "float32")
    Added = T.Tensor((M, N) if plan.epilogue.residual else (1, 1), plan.out)

    @T.prim_func
    def rows_of_bytes(
        W: T.Tensor((down, across, words), "uint32"),
        A: T.Tensor((M, K), plan.activations),
        scales_A: T.Tensor((M,) if plan.of_rows == "token" else (1,), "float32"),
        scales_W: T.Tensor((N,) if plan.by_channel else (1,), plan.scale_type),
        shift: Shift,
        added: Added,
        C: T.Tensor((M, N), plan.out),
    ):
        S = None
        if plan.of_sums:
            S = T.alloc_global((across * plan.sets, M), "float32")
            sum_groups(A, S, columns)
        of_A, wide = T.ceildiv(M, plan.tokens), plan.wide
        grid: tuple[Value, ...] = (together * wide, of_A)
        if plan.by_tokens:
            grid = together, of_A, wide
        partial, done = None, None
        if plan.blocks:
            grid = (plan.blocks,)
            partial, done = workspaces(plan.blocks, plan.tiles * halves, slab, plan.part, plan.kept)
        with T.Kernel(*grid, threads=128 * (plan.warpgroups + 1), cluster_dims=(together, 1, 1)) as place:
            if plan.blocks:
                block = place
                group = block // together
                first, held, head = range_of(of_A * wide, plan.chunks, groups, group)
                work: Any = StreamK(of_A * wide, plan.chunks, groups, group, first, held, head)
            else:
                block = place[2] * together + place[0] if plan.by_tokens else place[0]
                work = OneTile(
                    (place[1], block // together), (block % together) * count if plan.cluster > 1 else 0, count
                )
            rank = block % together
            a_ring = T.alloc_shared((plan.stages, halves, plan.sets, plan.part, columns), plan.activations)
            w_ring = T.alloc_shared((plan.weight_stages, plan.parts * plan.tiles, plan.records, words), "uint32")
            scope = "cluster" if plan.sharing > 1 else "block"
            of_a = T.channel(a_ring, writers="activations", readers="consumers", scope=scope)
            of_w = T.channel(w_ring, writers="weights", readers="consumers")
            staged = None
            if plan.boxed:
                pass
            elif plan.blocks:
                staged = T.alloc_shared((plan.pieces[0][1], slab + PADDING), plan.kept)
            else:
                staged = T.alias(
                    a_ring if a_bytes > w_bytes else w_ring, (plan.pieces[0][1], slab + PADDING), plan.kept
                )
            rings, output = Rings(w_ring, a_ring, of_w, of_a), Output(scales_A, scales_W, shift, added, C)
            with T.roles():
                with T.role("consumers", warps=4 * plan.warpgroups, registers=consumer_registers(plan.warpgroups)):
                    consume(plan, rings, S, work, rank, (partial, done), staged, output)
                with T.role("weights", warps=1, registers=40):
                    if plan.of_sums or form.ladder:  # bytes of the caller's, which the kernel before may have written
                        T.pdl_sync()
                    load_weights(plan, W, rings, work, rank)
                    for _ in list(range(cluster_syncs)):
                        T.sync_cluster()
                with T.role("activations", warps=2 if plan.blocks else 3, registers=40):
                    T.pdl_sync()
                    T.pdl_trigger()
                    load_activations(plan, A, rings, work)
                    for _ in list(range(cluster_syncs)):
                        T.sync_cluster()
                if plan.blocks:
                    with T.role("messenger", warps=1, registers=40):
                        flag_partial(work, done, work.own * plan.sharing + rank, LEFT, 1, 2 * slab)

    return rows_of_bytes


@T.macro
def consume(
    plan: BytePlan, rings: Rings, S: Tile, work: StreamK, rank: Value, space: Any, staged: Tile, output: Output
) -> None:
    """The role that multiplies: its rows of the block's tiles."""
    shape = plan.slab, plan.part
    totals = [[T.alloc_fragment(shape, plan.kept) for _ in range(plan.halves)] for _ in range(plan.tiles)]
    codes = [T.alloc_fragment((plan.slab, plan.columns), str(plan.form.operand)) for _ in range(2)]
    if plan.of_sums:
        T.pdl_sync()
    if plan.decodes_ahead and work.steps > 0:
        products.decode_first(plan, rings, codes, 0)
    for turn in T.serial(work.segments):
        tile, begin, count, before = work.segment(turn)
        if count > 0:
            of_tokens, of_rows = plan.place_of(tile, work)
            T.assume(of_rows >= 0)
            T.assume(of_tokens >= 0)
            block = of_rows * plan.sharing + rank
            factors = None if plan.boxed else alloc_factors(plan)
            if plan.loads_factors_early:
                T.pdl_sync()
                load_factors(plan, factors, of_tokens, block, output)
            for some in totals:
                for total in some:
                    T.clear(total)
            if plan.running:
                products.multiply_running(plan, rings, products.run_registers(plan, codes), totals[0][0], before, count)
            elif plan.promoted:
                operands = products.group_registers(plan, codes)
                at = ((begin - before) * plan.records, of_tokens * plan.tokens)
                products.multiply_by_groups(plan, rings, operands, totals, SumsOfA(S, *at), before, count, work.steps)
            else:
                products.multiply(plan, rings, codes, totals, before, count)
            T.pdl_sync()
            segment, where = (tile, begin, count), (of_tokens, of_rows, block)
            end_segment(plan, segment, work, rank, space, totals, staged, where, factors, output)
    if plan.turns and work.has_work:
        T.end_turns()


@T.macro
def end_segment(
    plan: BytePlan,
    segment: Any,
    work: StreamK,
    rank: Value,
    space: Any,
    totals: list[list[Tile]],
    staged: Tile,
    place: Any,
    factors: Factors,
    output: Output,
) -> None:
    """Store a segment's sums as results, or as partial sums for the block that has the tile's first steps."""
    tile, begin, count = segment
    of_tokens, of_rows, block = place
    partial, done = space
    if plan.blocks:
        every = [total for some in totals for total in some]
        if begin > 0:
            store_partial(every, partial, work.own * plan.sharing + rank, LEFT, 2 * plan.slab)
        else:
            if begin + count < plan.chunks:
                following, behind = work.peers(tile)
                first = following * plan.sharing + rank
                add_partial(every, partial, done, first, behind - following, plan.sharing)
            finish_tile(plan, totals, staged, of_tokens, block, factors, output)
    elif plan.cluster > 1:
        store_split_k(plan, totals, staged, of_tokens, of_rows, rank, output)
    else:
        finish_tile(plan, totals, staged, of_tokens, block, factors, output)


@T.macro
def finish_tile(
    plan: BytePlan,
    totals: list[list[Tile]],
    staged: Tile,
    of_tokens: Value,
    block: Value,
    factors: Factors,
    output: Output,
) -> None:
    """A tile's results, with factors asked for now where registers had no room for them before."""
    if not plan.loads_factors_early and not plan.boxed:
        load_factors(plan, factors, of_tokens, block, output)
    if plan.boxed:
        store_boxes(plan, totals, of_tokens, block, output)
    else:
        store(plan, totals, staged, of_tokens, block, factors, output)
