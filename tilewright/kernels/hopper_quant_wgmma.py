"""``C = A W^T`` for more rows of A than a few on Hopper, W in low-bit records: weights are the register operand of
wgmma.

The problem is transposed: rows of W are the instruction's rows, rows of A its columns. Two producers run ahead in rings
of their own, because weights want long copies and activations little memory. Consumers decode 64 columns of their rows
into one of two sets of registers while the tensor cores still work on the other. Blocks stay, and share what makes no
whole wave of tiles evenly (`stream_k`).
"""

from __future__ import annotations

from typing import TypeAlias

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels import PLAIN, Epilogue, Tile, Value, consumer_registers, in_pieces, paired, speed_of, stored
from tilewright.kernels.code_table import ROWS, fill_pairs, table_of_pairs
from tilewright.kernels.grouped_matmul import list_tiles
from tilewright.kernels.skinny_tiles import entry_point
from tilewright.kernels.stream_k import (
    StreamK,
    add_partial,
    flag_partial,
    in_panels,
    range_of,
    store_partial,
    workspaces,
)
from tilewright.language.roles import Channel
from tilewright.language.trace import PrimFunc
from tilewright.machine import COLUMNS, FragmentRecords

Runs: TypeAlias = tuple[Tile, ...] | None
"""Of experts: the tiles' experts, and where their rows begin and end; None for one weight."""

Others: TypeAlias = tuple[Tile, Tile, Tile | None]
"""What is added to sums or multiplied by them."""

Place: TypeAlias = tuple[Value, Value, Value]

Segment: TypeAlias = tuple[Value, Value, Value]
"""Copies of weights that a block takes of a tile: the first one, how many, and how many it has taken before."""

Slot: TypeAlias = tuple[Value, int]
Ring: TypeAlias = tuple[Tile, Channel]
Heights: TypeAlias = tuple[int, ...]

Rings: TypeAlias = tuple[Tile, Tile, Channel, Channel, Tile | None]
"""Slots of activations and weights, the channels that announce them, and the table of values of codes."""

HALF = 64
"""Columns that are decoded at once: half a record."""

SLAB = 64
"""Rows of W, and rows of A, that leave a warpgroup at once."""

FILLED, LEFT = 7, 8
"""Named barriers: behind one the table of pairs is filled, behind the other sums have left for memory."""

BOXED = 144
"""Rows of A of a tile from which on sums leave in boxes: blocks have several such tiles, and go on beside them.
Launches whose blocks have one small tile would wait for the engine longer than for their threads (H200, up to 5%)."""

PADDING = 16
"""Bytes between rows of sums, so that writing columns meets different banks."""


@tilewright.jit
def wgmma_quant_matmul(
    N: int,
    K: int,
    form: FragmentRecords,
    tokens: int = 32,
    out: str = "float16",
    offset: int = 8,
    zeros_mode: str | None = None,
    epilogue: Epilogue = PLAIN,
    warpgroups: int = 2,
    tiles: int = 2,
    records: int = 4,
    weight_stages: int = 2,
    stages: int = 6,
    halves: int = 2,
    sharing: int = 1,
    band: int = 1,
    blocks: int | None = None,
    promoted: bool = False,
    lifted: bool = False,
    experts: int = 0,
    lower: tuple[int, ...] = (),
) -> PrimFunc:
    """Product of any number of rows with ``(codes - offset) * scales``, or with the zeros of groups instead of the
    offset.

    Parameters
    ----------
    form : order of W (`FragmentRecords`), with scales (and zeros) of its operand's type.
    tokens : rows of A that a tile takes, a multiple of 8 up to 256.
    offset : what all codes are too large by.
    zeros_mode : with zeros: ``"original"``, ``(codes - offset - zeros) * scales``, or ``"rescale"``,
        ``(codes - offset) * scales - zeros``.
    epilogue : what becomes of sums before they are stored.
    warpgroups, tiles : a tile has ``64 * warpgroups * tiles`` rows of W; each warpgroup decodes `tiles` times 64.
    records : groups of 128 columns in one copy of weights, at most 4; longer copies are faster.
    weight_stages, stages : copies of weights, and of columns of A, on their way.
    halves : times 64 columns of A in one slot: 1, or an even number of which those of a copy of weights are a multiple.
    sharing : blocks that send one another the activations, each with rows of W of its own.
    band : tiles of A's rows that are walked before the next rows of W.
    blocks : that run at once, None for one a multiprocessor; they share the tiles evenly.
    promoted : scales are applied to float32 sums of groups of 128 instead of codes: less work for few rows, more for
        many.
    lifted : codes are scaled by one operation instead of two (`T.unpack`), for scales near one another; not with zeros.
    experts : weights that runs of A's rows are multiplied by, one after the other (see `grouped_matmul`); 0 for one
        weight and all rows.
    lower : heights below `tokens`, the greatest first, that tiles of experts have where a run's last rows need no more:
        products of few rows take less time.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``), ``A[M, K]`` of the form's operand type, and ``C[M, N]`` of `out`.
    Rows of A start at multiples of 16 bytes. With an epilogue there stand before C ``factor[1]`` (float32), ``bias[N]``
    and ``residual[M, N]``, one element each where they are not used. With experts W has their records one below the
    other, ``factor`` is ``[experts]``, ``bias`` ``[experts, N]``, and ``sizes[experts]`` (int32) before C says how many
    rows of A are whose. Functions of pairs leave ``C[M, N / 2]``.
    """
    assert not experts or not epilogue.residual
    assert not lower or (experts and not promoted)
    M = T.dynamic("M")
    dtype = str(form.operand)
    down, across, words = form.shape(N, K)
    rows, own = 64 * warpgroups * tiles, 64 * tiles
    parts, all_parts = own // form.rows, rows // form.rows
    wide = -(-down // (all_parts * sharing))  # tiles that cover W's rows
    # A row of records is padded in memory; copies end where K does.
    chunks, slots = -(-K // (COLUMNS * records)), 2 * records // halves
    groups = (blocks or speed_of(T.machine()).cores) // sharing
    kept = out if staged_bytes(out, epilogue) < 4 else "float32"
    pieces = in_pieces(tokens, SLAB)
    heights = (tokens, *lower)
    written = max(2, halves)  # times 64 columns that stand in the text: compilers take longer over more
    ping_pong = warpgroups == 2 and not promoted and tokens >= 64
    unit = form.lifted_unit if lifted and not promoted else 1.0
    decodes_ahead = tokens >= BOXED and not promoted
    boxed = tokens >= BOXED and not experts and leaves_in_boxes(N, out, epilogue)

    @T.macro
    def decode(which: Value, rings: Rings, operand: Tile, chunk: Value, part: Value, first: int) -> None:
        """64 columns of a copy of weights as an operand, scaled."""
        T.unpack(
            rings[1][chunk % weight_stages, which * parts : (which + 1) * parts, part, :],
            form,
            operand,
            first=first,
            offset=offset,
            scaled=True,
            zeros_mode=zeros_mode,
            table=rings[4],
            lifted=lifted,
        )

    @T.macro
    def multiply(
        which: Value, rings: Rings, codes: list[Tile], total: Tile, segment: Segment, left: Value | None, steps: Value
    ) -> None:
        """Codes are scaled in registers; one accumulator takes all products, of as many rows of A as are left.

        Who has started a product decodes the next 64 columns. Where tiles are high the first ones of the next tile are
        decoded beside the last product of this one, if the block's `steps` copies go on.
        """
        (a_ring, _, activations, weights, _), (_, count, before) = rings, segment
        ends = before + count
        T.clear(total)
        for step in T.serial(count):
            chunk = before + step
            if step > 0 if decodes_ahead else True:
                weights.receive(chunk)
            for batch in T.serial(2 * records // written):
                if (step > 0) | (batch > 0) if decodes_ahead else True:
                    decode(which, rings, codes[0], chunk, batch * (written // 2), 0)
                for half in list(range(written)):
                    number = chunk * slots + batch * (written // halves) + half // halves
                    if half % halves == 0:
                        activations.receive(number)
                    begins = (chunk == 0) & (batch == 0) if half == 0 else False
                    multiply_rows(
                        codes[half % 2], a_ring, (number % stages, half % halves), total, left, heights, begins
                    )
                    T.wait_wgmma(1)
                    if half % halves == 0 and (half > 0 or (step > 0) | (batch > 0)):
                        activations.release(number - 1)
                    if half + 1 < written:
                        part = batch * (written // 2) + (half + 1) // 2
                        decode(which, rings, codes[(half + 1) % 2], chunk, part, HALF * ((half + 1) % 2))
            weights.release(chunk)
        if decodes_ahead and ends < steps:
            decode_first(which, rings, codes[0], ends)
        T.wait_wgmma(0)
        activations.release(ends * slots - 1)

    @T.macro
    def decode_first(which: Value, rings: Rings, operand: Tile, chunk: Value) -> None:
        """The first columns of a copy of weights, as soon as it is there."""
        rings[3].receive(chunk)
        decode(which, rings, operand, chunk, 0, 0)

    @T.macro
    def multiply_rows(
        operand: Tile, a_ring: Tile, slot: Slot, total: Tile, left: Value | None, among: Heights, begins: Value
    ) -> None:
        """A product with the rows of A in one slot: as many as the lowest of some heights that holds what is left."""
        if len(among) == 1 or left > among[1]:
            multiply_slot(operand, a_ring, slot, total, among[0], begins)
        else:
            multiply_rows(operand, a_ring, slot, total, left, among[1:], begins)

    @T.macro
    def multiply_slot(operand: Tile, a_ring: Tile, slot: Slot, total: Tile, height: int, begins: Value) -> None:
        """A product with so many rows of A, in this warpgroup's turn."""
        if ping_pong:
            T.take_turn(begins)
        T.wgmma_gemm(operand, a_ring[slot[0], slot[1], 0:height, :], total[0:own, 0:height], transpose_B=True)
        if ping_pong:
            T.pass_turn()

    def decode_unscaled(
        record: object, operand: Tile, table: Tile | None, scale: Tile | None = None, first: int = 0
    ) -> None:
        """64 columns of a record as an operand, and their scale beside it."""
        T.unpack(record, form, operand, scale, first=first, offset=offset, table=table)

    @T.macro
    def multiply_by_groups(which: Value, rings: Rings, codes: list[Tile], total: Tile, segment: Segment) -> None:
        """An accumulator takes a group's products, and the next codes are decoded meanwhile; then its sum is scaled."""
        (a_ring, w_ring, activations, weights, table), (_, count, before) = rings, segment
        sums = T.alloc_fragment((own, tokens), "float32")
        scale = T.alloc_fragment((own,), "float32")
        T.clear(total)
        for step in T.serial(count):
            chunk = before + step
            w_slot = weights.receive(chunk)
            own_parts = slice(which * parts, (which + 1) * parts)
            decode_unscaled(w_ring[w_slot, own_parts, 0, :], codes[0], table)
            for record in list(range(records)):
                number, place = chunk * slots + 2 * record // halves, 2 * record % halves
                if place == 0:
                    activations.receive(number)
                a_slot = number % stages
                T.wgmma_gemm(codes[0], a_ring[a_slot, place, :, :], sums, transpose_B=True, clear_accum=True)
                decode_unscaled(w_ring[w_slot, own_parts, record, :], codes[1], table, scale, HALF)
                T.wgmma_gemm(codes[1], a_ring[a_slot, place + 1, :, :], sums, transpose_B=True)
                if record < records - 1:
                    T.wait_wgmma(1)
                    decode_unscaled(w_ring[w_slot, own_parts, record + 1, :], codes[0], table)
                else:
                    weights.release(chunk)
                T.wait_wgmma(0)
                if place == halves - 2:
                    activations.release(number)
                for i, j in T.Parallel(own, tokens):
                    total[i, j] = T.fma(sums[i, j], scale[i], total[i, j])

    @T.macro
    def store(which: Value, total: Tile, staged: Tile, others: Others, C: Tile, place: Place, first: Value) -> None:
        """Sums of the rows of W from `first` on, in registers, into C: in boxes of the copy engine where it can."""
        if boxed:
            store_boxes(total, others, C, place[1], first)
        else:
            store_pieces(which, total, staged, others, C, place, first)

    @T.macro
    def store_boxes(total: Tile, others: Others, C: Tile, first_token: Value, first: Value) -> None:
        """Finished sums are transposed on their way into boxes, which leave beside what follows."""
        factor, bias, _ = others
        if epilogue.is_plain and unit == 1.0:
            result = total
        else:
            shift = T.alloc_fragment((own,), "float32")
            if epilogue.bias:
                T.copy(bias[first], shift)
            result = T.alloc_fragment((own, tokens), out)
            for i, j in T.Parallel(own, tokens):
                value = total[i, j] * (1 / unit) if unit != 1.0 else total[i, j]
                if not epilogue.is_plain:
                    value = epilogue.before_residual(value, factor[0], shift[i])
                result[i, j] = stored(value, out)
        T.assume(first >= 0)
        T.assume(first_token >= 0)
        T.transpose(result, C[first_token : first_token + tokens, first : first + own])

    @T.macro
    def store_pieces(
        which: Value, total: Tile, staged: Tile, others: Others, C: Tile, place: Place, first: Value
    ) -> None:
        """Sums go through shared memory a piece at a time; threads store them."""
        factor, bias, residual = others
        expert, first_token, end = place
        shift = T.alloc_fragment((own,), "float32")
        if epilogue.bias and experts:
            T.copy(bias[expert, first], shift)
        elif epilogue.bias:
            T.copy(bias[first], shift)
        for t in list(range(tiles)):
            for begin, height in list(pieces):
                if first_token + begin < end if lower else True:
                    T.sync_threads()
                    for i, j in T.Parallel(own, tokens):
                        if (i // SLAB == t) & (j >= begin) & (j < begin + height):
                            value = total[i, j] * (1 / unit) if unit != 1.0 else total[i, j]
                            if not epilogue.is_plain:
                                value = epilogue.before_residual(value, factor[expert], shift[i])
                            staged[which, j - begin, i - t * SLAB] = stored(value, kept)
                    T.sync_threads()
                    put(which, staged, residual, C, (first_token + begin, height, end), first + t * SLAB)

    @T.macro
    def put(which: Value, staged: Tile, residual: Tile, C: Tile, rows: tuple[Value, int, Value], first: Value) -> None:
        """Finished sums of some rows into C."""
        first_token, height, end = rows
        if epilogue.pairs:
            for j, i in T.Parallel(height, SLAB // 2):
                if first_token + j < end:
                    value = paired(staged[which, j, 2 * i], staged[which, j, 2 * i + 1], epilogue.function)
                    C[first_token + j, first // 2 + i] = stored(value, out)
        elif experts:
            for j, i in T.Parallel(height, SLAB):
                if first_token + j < end:
                    C[first_token + j, first + i] = staged[which, j, i]
        elif epilogue.residual:
            for j, i in T.Parallel(height, SLAB):
                row, n = first_token + j, first + i
                C[row, n] = stored(staged[which, j, i] + T.cast(residual[row, n], "float32"), out)
        else:
            T.copy(staged[which, 0:height, 0:SLAB], C[first_token, first])

    @T.macro
    def consume(
        which: Value,
        rings: Rings,
        staged: Tile,
        others: Others,
        space: tuple[Tile, Tile],
        runs: Runs,
        C: Tile,
        work: StreamK,
        rank: Value,
    ) -> None:
        """What a warpgroup does."""
        table = rings[-1]
        partial, done = space
        total = T.alloc_fragment((own, tokens), "float32")
        codes = [T.alloc_fragment((own, HALF), dtype) for _ in range(2)]
        if form.is_looked_up:
            fill_pairs(form, table, which * (ROWS // warpgroups), ROWS // warpgroups)
            T.sync_threads(FILLED, 128 * warpgroups)
        if decodes_ahead and work.steps > 0:
            decode_first(which, rings, codes[0], 0)
        worked: Value = T.alloc_var("int32", 0)
        for turn in T.serial(work.segments):
            tile, begin, count, before = work.segment(turn)
            worked = worked + count
            if count > 0:
                if promoted:
                    multiply_by_groups(which, rings, codes, total, (begin, count, before))
                else:
                    left = left_of(tile, work, runs, rank)
                    multiply(which, rings, codes, total, (begin, count, before), left, work.steps)
                T.pdl_sync()
                if begin > 0:
                    place = (work.own * sharing + rank) * warpgroups + which
                    store_partial([total], partial, place, LEFT, 128 * warpgroups)
                else:
                    if begin + count < chunks:
                        following, behind = work.peers(tile)
                        first = (following * sharing + rank) * warpgroups + which
                        add_partial([total], partial, done, first, behind - following, sharing * warpgroups)
                    row, expert, first_token, end = place_of(tile, work.tiles, runs, rank)
                    T.assume(row >= 0)
                    T.assume(expert >= 0)
                    T.assume(first_token >= 0)
                    store(which, total, staged, others, C, (expert, first_token, end), row * rows + which * own)
        if ping_pong and worked > 0:
            T.end_turns()

    def left_of(tile: Value, work: StreamK, runs: Runs, rank: Value) -> Value | None:
        """Rows of A from a tile's first to its run's end, where that makes a difference."""
        if not lower:
            return None
        _, _, first_token, end = place_of(tile, work.tiles, runs, rank)
        return end - first_token

    def place_of(tile: Value, listed: Value, runs: Runs, rank: Value) -> tuple[Value, Value, Value, Value]:
        """A tile's number of rows of W, its expert, its first row of A, and the end of that expert's."""
        entry, across_w = in_panels(tile, listed // wide, wide, band)
        row = across_w * sharing + rank
        if runs is None:
            return row, 0, entry * tokens, M
        return row, runs[0][entry], runs[1][entry], runs[2][entry]

    @T.macro
    def load_weights(W: Tile, w_ring: Tile, weights: Channel, runs: Runs, work: StreamK, rank: Value) -> None:
        """The records of a block's segments."""
        for turn in T.serial(work.segments):
            tile, begin, count, before = work.segment(turn)
            if count > 0:
                row, expert, _, _ = place_of(tile, work.tiles, runs, rank)
                T.assume(row >= 0)
                T.assume(expert >= 0)
                T.assume(expert < max(1, experts))
                for step in T.serial(count):
                    slot = weights.acquire(before + step)
                    start = T.max(T.min(begin + step, chunks - 1), 0) * records
                    for part in T.serial(all_parts):
                        at = expert * down + T.min(row * all_parts + part, down - 1)
                        T.copy(
                            W[at, start : start + records, :], w_ring[slot, part, :, :], eviction_policy="evict_first"
                        )
                    weights.publish(before + step)

    @T.macro
    def load_activations(A: Tile, ring: Ring, runs: Runs, work: StreamK, rank: Value) -> None:
        """The columns of the rows of A of a block's segments."""
        for turn in T.serial(work.segments):
            tile, begin, count, before = work.segment(turn)
            if count > 0:
                _, _, first_token, _ = place_of(tile, work.tiles, runs, rank)
                T.assume(first_token >= 0)
                left = left_of(tile, work, runs, rank)
                load_rows(A, ring, first_token, left, heights, (begin, count, before))

    @T.macro
    def load_rows(
        A: Tile, ring: Ring, first_token: Value, left: Value | None, among: Heights, segment: Segment
    ) -> None:
        """The columns of a segment's rows of A: as many rows as the lowest of some heights that holds what is left."""
        if len(among) == 1 or left > among[1]:
            load_columns(A, ring, first_token, among[0], segment)
        else:
            load_rows(A, ring, first_token, left, among[1:], segment)

    @T.macro
    def load_columns(A: Tile, ring: Ring, first_token: Value, height: int, segment: Segment) -> None:
        """The columns of a segment, of so many rows of A."""
        (a_ring, activations), (begin, count, before) = ring, segment
        for step in T.serial(count * slots):
            slot = activations.acquire(before * slots + step)
            column = begin * records * COLUMNS + step * halves * HALF
            for half in list(range(halves)):
                T.copy(A[first_token, column + half * HALF], a_ring[slot, half, 0:height, :], multicast=sharing > 1)
            activations.publish(before * slots + step)

    @T.macro
    def product(W: Tile, A: Tile, factor: Tile, bias: Tile, residual: Tile | None, runs: Runs, C: Tile) -> None:
        partial, done = workspaces(groups * sharing * warpgroups, 1, own, tokens, "float32")
        with T.Kernel(groups * sharing, threads=128 * (warpgroups + 1), cluster_dims=sharing) as block:
            if experts:
                T.pdl_sync()  # the list was made by the kernel before
            entries = T.ceildiv(M, tokens) if runs is None else runs[-1][0]
            tiles = entries * wide
            first, held, head = range_of(tiles, chunks, groups, block // sharing)
            work = StreamK(tiles, chunks, groups, block // sharing, first, held, head)
            rank = block % sharing if sharing > 1 else 0
            a_ring = T.alloc_shared((stages, halves, tokens, HALF), dtype)
            w_ring = T.alloc_shared((weight_stages, all_parts, records, words), "uint32")
            scope = "cluster" if sharing > 1 else "block"
            activations = T.channel(a_ring, writers="activations", readers="consumers", scope=scope)
            weights = T.channel(w_ring, writers="weights", readers="consumers")
            table = table_of_pairs(form)
            rings = a_ring, w_ring, activations, weights, table
            padded = SLAB + PADDING * 8 // dtype_of(kept).bits
            staged = None if boxed else T.alloc_shared((warpgroups, pieces[0][1], padded), kept)
            registers = consumer_registers(warpgroups)
            with T.roles():
                with T.role("consumers", warps=4, instances=warpgroups, registers=registers) as which:
                    others, space = (factor, bias, residual), (partial, done)
                    consume(which, rings, staged, others, space, runs, C, work, rank)
                with T.role("weights", warps=1, registers=40):
                    load_weights(W, w_ring, weights, runs, work, rank)
                with T.role("activations", warps=2, registers=40):
                    T.pdl_sync()
                    T.pdl_trigger()
                    load_activations(A, (a_ring, activations), runs, work, rank)
                with T.role("messenger", warps=1, registers=40):
                    flag_partial(
                        work, done, (work.own * sharing + rank) * warpgroups, LEFT, warpgroups, 128 * warpgroups
                    )

    Weight, Activations = T.Tensor((max(1, experts) * down, across, words), "uint32"), T.Tensor((M, K), dtype)
    Result = T.Tensor((M, N // 2 if epilogue.pairs else N), out)
    if experts:
        Factor, Sizes = T.Tensor((experts,), "float32"), T.Tensor((experts,), "int32")
        Shift = T.Tensor((experts, N) if epilogue.bias else (1, 1), epilogue.bias or "float32")
        length = M // tokens + experts

        @T.prim_func
        def rows_of_experts(W: Weight, A: Activations, factor: Factor, bias: Shift, sizes: Sizes, C: Result):
            listed = T.alloc_global((1,), "int32")
            of = T.alloc_global((length,), "int32")
            firsts = T.alloc_global((length,), "int32")
            ends = T.alloc_global((length,), "int32")
            list_tiles(sizes, listed, of, firsts, ends, tokens, lower)
            product(W, A, factor, bias, None, (of, firsts, ends, listed), C)

        return rows_of_experts

    def of_one_weight(W: Tile, A: Tile, others: Others, C: Tile) -> None:
        product(W, A, *others, None, C)

    return entry_point("some_rows", of_one_weight, (Weight, Activations, Result), (M, N), epilogue)


def staged_bytes(out: str, epilogue: Epilogue) -> int:
    """Bytes of a sum in the tile that sums leave through: those that are not final yet are float32."""
    return 4 if epilogue.residual or epilogue.pairs else min(4, dtype_of(out).bits // 8)


def leaves_in_boxes(N: int, out: str, epilogue: Epilogue) -> bool:
    """Whether the copy engine can store sums, transposed on their way: rows of C are whole units of 16 bytes, and sums
    are final when they are halves."""
    return out in ("float16", "bfloat16") and N % 8 == 0 and not (epilogue.residual or epilogue.pairs)
