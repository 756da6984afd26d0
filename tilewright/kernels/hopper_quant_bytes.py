"""``C = A W^T`` on Hopper for activations of 8 bits, W in low-bit records: weights are the register operand of wgmma.

As in `hopper_quant_medium` the problem is transposed, two producers run ahead in rings of their own, and consumers decode a
record's columns while the tensor cores work on the ones before.  Codes become int8 or 8-bit floats.  Scales of groups cannot
enter those: sums of a group are exact in an accumulator of their own and are scaled on their way into the total.  With
scales of channels alone, or int8 scales of groups that are multiplied into the codes, one sum runs over all of K.
"""

from __future__ import annotations

import math
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.kernels.epilogue import PLAIN, Epilogue, stored
from tilewright.kernels.even_shares import (
    EvenShares,
    OneTile,
    announce,
    hand_over,
    in_panels,
    own_stretch,
    take_over,
    workspaces,
)
from tilewright.kernels.hopper_quant_medium import consumer_registers
from tilewright.kernels.running_sums import RUN, UNIT, can_run, end_run, enter, start_of_run
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords

PADDING = 4
"""Elements between rows of staged sums, so that writing columns meets different banks."""

PIECE = 32
"""Rows of A whose sums leave at once, where a block has more tiles to come."""

LEFT = 6
"""Named barrier behind which sums have left for memory."""

LONGEST = 1 << 17
"""Columns whose products certainly fit an int32."""


@tilewright.jit
def byte_quant_matmul(
    N: int,
    K: int,
    form: FragmentRecords,
    activations: str = "int8",
    out: str = "float16",
    zeros: str | None = None,
    offset: int = 0,
    of_rows: str | None = "token",
    by_channel: bool = False,
    scale_type: str = "float32",
    epilogue: Epilogue = PLAIN,
    tokens: int = 64,
    part: int = 64,
    warpgroups: int = 2,
    tiles: int = 1,
    records: int = 4,
    weight_stages: int = 2,
    stages: int = 4,
    cluster: int = 1,
    sharing: int = 1,
    ahead: int = 1,
    turns: bool = False,
    by_tokens: bool = False,
    blocks: int = 0,
    band: int = 4,
    running: bool = False,
) -> Any:
    """``function((A scales_A) ((numbers - offset - zeros) scales scales_W)^T + bias) + residual`` for any number of rows.

    Parameters
    ----------
    form : order of W.  Scales of a float type are those of groups; int8 ones are multiplied into the codes.
    activations : ``"int8"`` or ``"uint8"`` where the form's operand is int8, else ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    out : type of C.  int32 is exact where nothing is scaled.
    zeros : ``"codes"``: int8 zeros of the form are taken from codes; ``"original"``, ``"rescale"``: float32 ones, in units of
        codes or of scaled weights, are taken from sums, with the sums of the activations.
    offset : a whole number that is taken from codes of int8.
    of_rows : scales of A: ``"token"``, one a row, ``"tensor"``, one for all, or None.
    by_channel, scale_type : whether W's rows have scales, and of what type.
    epilogue : what becomes of scaled sums; it has no factor.
    tokens, part : rows of A that a block multiplies, and those that one product takes.
    warpgroups, tiles : a block has ``64 * warpgroups * tiles`` rows of W.
    records : groups of 128 columns in one copy of weights, at most 4.
    weight_stages, stages : copies of weights, and of 128 columns of A, on their way.
    cluster : blocks that divide K among them.
    sharing : blocks that send one another the columns of A, where K is not divided.
    ahead : sums of groups that a thread holds: with 2 it scales one while the tensor cores work on the other.
    turns : whether warpgroups start products of groups one after the other, so that the others scale sums meanwhile.
    by_tokens : whether blocks that run at once have the same rows of W, and all rows of A, rather than the other way around.
    blocks : that stay and share the tiles evenly (`even_shares`); 0 for a block a tile.
    running : whether int32 sums run on from group to group (`running_sums`).
    band : with blocks that stay, tiles of A's rows that are walked before the next rows of W.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``), ``A[M, K]``, ``scales_A[M]`` (float32), ``scales_W[N]``, ``bias[N]``,
    ``residual[M, N]`` of C's type and ``C[M, N]``; what is not used has extents of 1.  Rows of A start at multiples of 16 bytes.
    """
    M = T.dynamic("M")
    operand = str(form.operand)
    down, across, words = form.shape(N, K)
    integer = form.operand.is_integer
    multiplied = form.scale is not None and form.scale.is_integer
    promoted = (form.scale is not None and not multiplied) or zeros in ("original", "rescale")
    slab = 64 * warpgroups
    rows, parts = slab * tiles, slab // form.rows
    halves = tokens // part
    wide = -(-down // (parts * tiles * sharing))  # tiles, or groups of them, that cover W's rows
    chunks = across // records
    count = -(-chunks // cluster)  # behind the last chunk A reads as zero, whatever the weights
    share = slab // cluster
    groups = blocks // sharing
    piece = math.gcd(part, PIECE) if cluster == 1 else part
    meetings = 2 * tiles * halves if cluster > 1 else 0
    assert not blocks or (cluster == 1 and records * tiles % 2 == 0 and not by_tokens)
    sum_type = "int32" if integer else "float32"
    kept = "float32" if promoted else sum_type
    in_codes = zeros == "codes" or multiplied or offset != 0 or running
    unit = UNIT if running else 1.0 if in_codes else form.raw_unit(0)
    scaled = of_rows is not None or by_channel or promoted or not epilogue.is_plain
    by_token = of_rows == "token"
    of_sums = zeros in ("original", "rescale")
    sets = form.sets if promoted else 1
    start_of_sums = start_of_run(form, offset, activations)
    assert not running or (
        can_run(form, offset, activations) and promoted and halves == tiles == ahead == 1 and not of_sums
    )
    columns = COLUMNS // sets
    a_bytes, w_bytes = stages * tokens * COLUMNS, 4 * weight_stages * parts * tiles * records * words

    @T.macro
    def decode(source: Any, codes: Any, first: int) -> None:
        """Columns of a record as operands."""
        if in_codes:
            zeros_mode = "original" if zeros == "codes" else None
            T.unpack(source, form, codes, first=first, offset=offset, scaled=multiplied, zeros_mode=zeros_mode)
        else:
            T.unpack(source, form, codes, first=first)

    @T.macro
    def multiply_chunk(
        rings: Any, weights: Any, activations: Any, codes: Any, totals: Any, chunk: Any, done: Any, before: int
    ) -> None:
        """The products of a copy of weights, of which `done` went before in the tile, `before` products since the first set of registers."""
        w_ring, a_ring = rings
        w_slot = weights.receive(chunk)
        for step in list(range(records * tiles)):
            record, tile = step // tiles, step % tiles
            number = chunk * records + record
            own = codes[(before + step) % 2]
            decode(w_ring[w_slot, tile * parts : (tile + 1) * parts, record, :], own, 0)
            if tile == 0:
                activations.receive(number)
            for half in list(range(halves)):
                T.wgmma_gemm(own, a_ring[number % stages, half, 0, :, :], totals[tile][half], transpose_B=True)
            T.wait_wgmma(halves)
            if tile == 0 and (record > 0 or done > 0):
                activations.release(number - 1)
        weights.release(chunk)

    @T.macro
    def multiply(rings: Any, weights: Any, activations: Any, codes: Any, totals: Any, before: Any, count: Any) -> None:
        """One sum for all products of `count` copies of weights, the first of which is this block's copy `before`."""
        steps = records * tiles
        copies = 1 + steps % 2  # after which both sets of registers have been used alike
        for turn in T.serial(count // copies):
            for i in list(range(copies)):
                done = turn * copies + i
                multiply_chunk(rings, weights, activations, codes, totals, before + done, done, i * steps)
        if copies > 1 and count % copies:
            # Else ptxas finds registers defined beside products in flight, and has every product waited for.
            T.wait_wgmma(0)
            multiply_chunk(rings, weights, activations, codes, totals, count - 1, count - 1, 0)
        T.wait_wgmma(0)
        activations.release((before + count) * records - 1)

    @T.macro
    def promote(sums: Any, scale: Any, zero: Any, of_a: Any, total: Any) -> None:
        """A group's sum, scaled, goes into the total."""
        for i, j in T.Parallel(slab, part):
            value = T.cast(sums[i, j], "float32")
            if zeros == "original":
                value = T.fma(zero[i] * -unit, of_a[j], value)
            if zeros == "rescale":
                less = T.fma(zero[i] * -unit, of_a[j], total[i, j])
                total[i, j] = T.fma(value, scale[i], less)
            else:
                total[i, j] = T.fma(value, scale[i], total[i, j])

    @T.macro
    def decode_step(rings: Any, codes: Any, chunk: Any, step: int) -> None:
        """The operand of a product."""
        record, tile, group, _ = products[step]
        source = rings[0][chunk % weight_stages, tile * parts : (tile + 1) * parts, record, :]
        decode(source, codes[step // halves % 2], group * columns)

    @T.macro
    def start(rings: Any, of_a: Any, operands: Any, S: Any, at: Any, chunk: Any, step: int) -> None:
        """Start a product, and load the scales of its sum."""
        record, tile, group, half = products[step]
        w_ring, a_ring = rings
        codes, sums, scale, zero, of_columns = operands
        number, own = chunk * records + record, step % ahead
        if tile == group == half == 0:
            of_a.receive(number)
        operand_of_w, columns_of_a = codes[step // halves % 2], a_ring[number % stages, half, group, :, :]
        if turns:
            T.take_turn(chunk == 0 if step == 0 else False)
        T.wgmma_gemm(operand_of_w, columns_of_a, sums[own], transpose_B=True, clear_accum=True)
        if turns:
            T.pass_turn()
        source = w_ring[chunk % weight_stages, tile * parts : (tile + 1) * parts, record, :]
        T.unpack(source, form, None, scale[own], zero[own], first=group * columns)
        if of_sums:
            T.copy(S[(at[0] + number) * sets + group, at[1] + half * part], of_columns[own])

    @T.macro
    def settle(of_a: Any, operands: Any, totals: Any, chunk: Any, step: int) -> None:
        """A finished product's sum goes into the total."""
        record, tile, group, half = products[step]
        _, sums, scale, zero, of_columns = operands
        own = step % ahead
        promote(sums[own], scale[own], zero[own], of_columns[own], totals[tile][half])
        if tile == tiles - 1 and group == sets - 1 and half == halves - 1:
            of_a.release(chunk * records + record)

    @T.macro
    def one_by_one(
        rings: Any, of_w: Any, of_a: Any, operands: Any, totals: Any, S: Any, at: Any, before: Any, count: Any
    ) -> None:
        """The next codes are decoded while a product runs; other warpgroups' products run while its sum is scaled."""
        for done in T.serial(count):
            chunk = before + done
            of_w.receive(chunk)
            decode_step(rings, operands[0], chunk, 0)
            for step in list(range(last + 1)):
                start(rings, of_a, operands, S, at, chunk, step)
                if step < last and products[step][-1] == halves - 1:
                    decode_step(rings, operands[0], chunk, step + 1)
                T.wait_wgmma(0)
                settle(of_a, operands, totals, chunk, step)
            of_w.release(chunk)

    @T.macro
    def overlapped(
        rings: Any, of_w: Any, of_a: Any, operands: Any, totals: Any, S: Any, at: Any, before: Any, count: Any
    ) -> None:
        """A product runs while the sum of the one before is scaled; none runs from one copy of weights to the next."""
        for done in T.serial(count):
            chunk = before + done
            of_w.receive(chunk)
            decode_step(rings, operands[0], chunk, 0)
            start(rings, of_a, operands, S, at, chunk, 0)
            for step in list(range(last)):
                follow(rings, of_a, operands, totals, S, at, chunk, step)
            of_w.release(chunk)
            T.wait_wgmma(0)
            settle(of_a, operands, totals, chunk, last)

    @T.macro
    def follow(rings: Any, of_a: Any, operands: Any, totals: Any, S: Any, at: Any, chunk: Any, step: int) -> None:
        """Start the product behind one of the same copy of weights, then take that one's sum."""
        if products[step][-1] == halves - 1:
            decode_step(rings, operands[0], chunk, step + 1)
        start(rings, of_a, operands, S, at, chunk, step + 1)
        T.wait_wgmma(1, operands[1][step % ahead])
        settle(of_a, operands, totals, chunk, step)

    @T.macro
    def multiply_running(rings: Any, of_w: Any, of_a: Any, operands: Any, total: Any, before: Any, count: Any) -> None:
        """A product runs while the next codes are decoded; then sums so far enter the total (`running_sums`)."""
        w_ring, a_ring = rings
        codes, sums, scale, last, first = operands
        T.fill(sums, start_of_sums)
        for done in T.serial(count):
            chunk = before + done
            of_w.receive(chunk)
            for record in list(range(records)):
                number = chunk * records + record
                source = w_ring[chunk % weight_stages, 0:parts, record, :]
                decode(source, codes[record % 2], 0)
                T.unpack(source, form, None, scale, None)
                if record == 0 and done == 0:
                    T.copy(scale, last)
                    T.copy(scale, first)
                if record == records - 1:
                    of_w.release(chunk)
                T.wait_wgmma(0)
                if record > 0 or done > 0:
                    of_a.release(number - 1)
                if record == 0 and done % (RUN // records) == 0:
                    end_run(sums, last, first, total, start_of_sums)
                    T.copy(scale, first)
                else:
                    enter(sums, last, scale, total)
                T.copy(scale, last)
                of_a.receive(number)
                if turns:
                    T.take_turn(chunk == 0 if record == 0 else False)
                T.wgmma_gemm(codes[record % 2], a_ring[number % stages, 0, 0, :, :], sums, transpose_B=True)
                if turns:
                    T.pass_turn()
        T.wait_wgmma(0)
        of_a.release((before + count) * records - 1)
        end_run(sums, last, first, total, start_of_sums)

    @T.macro
    def operands_of_runs(codes: Any) -> Any:
        """Registers for sums that run on, and the scales of three groups: this one, the one before, the first of the run."""
        sums = T.alloc_fragment((slab, part), sum_type)
        scale = [T.alloc_fragment((slab,), "float32") for _ in range(3)]
        return (codes, sums, *scale)

    @T.macro
    def multiply_by_groups(
        rings: Any, of_w: Any, of_a: Any, operands: Any, totals: Any, S: Any, at: Any, before: Any, count: Any
    ) -> None:
        """A sum for each group, scaled on its way into the total."""
        if ahead == 1:
            one_by_one(rings, of_w, of_a, operands, totals, S, at, before, count)
        else:
            overlapped(rings, of_w, of_a, operands, totals, S, at, before, count)

    @T.macro
    def operands_of_groups(codes: Any) -> Any:
        """Registers for the sums of groups and what they are scaled by."""
        sums = [T.alloc_fragment((slab, part), sum_type) for _ in range(ahead)]
        scale = [T.alloc_fragment((slab,), "float32") for _ in range(ahead)]
        zero = [T.alloc_fragment((slab,), "float32") if of_sums else None for _ in range(ahead)]
        of_columns = [T.alloc_fragment((part,), "float32") if of_sums else None for _ in range(ahead)]
        return (codes, sums, scale, zero, of_columns)

    @T.macro
    def finish(value: Any, m: Any, n: Any, scales_A: Any, scales_W: Any, shift: Any, C: Any, added: Any) -> None:
        """An element of the result out of its sum."""
        if scaled:
            value = T.cast(value, "float32") * (1.0 / unit)
            if of_rows is not None:
                value = value * scales_A[T.min(m, M - 1) if by_token else 0]
            if by_channel:
                value = value * T.cast(scales_W[T.min(n, N - 1)], "float32")
            bias = None if epilogue.bias is None else T.cast(shift[T.min(n, N - 1)], "float32")
            value = epilogue.before_residual(value, None, bias)
            if epilogue.residual:
                value = value + T.cast(added[T.min(m, M - 1), T.min(n, N - 1)], "float32")
        elif unit != 1.0 and integer:
            value = value >> (8 - form.bits)
        elif unit != 1.0:
            value = value * (1.0 / unit)
        C[m, n] = stored(value, out)

    @T.macro
    def consume(
        rings: Any, of_w: Any, of_a: Any, S: Any, shares: Any, rank: Any, space: Any, staged: Any, others: Any, C: Any
    ) -> None:
        """What a role does that multiplies: its rows of the block's tiles."""
        partial, done = space
        totals = [[T.alloc_fragment((slab, part), kept) for _ in range(halves)] for _ in range(tiles)]
        codes = [T.alloc_fragment((slab, columns), operand) for _ in range(2)]
        if running:
            operands: Any = operands_of_runs(codes)
        elif promoted:
            operands = operands_of_groups(codes)
        if of_sums:
            T.pdl_sync()
        for turn in T.serial(shares.turns):
            tile, begin, count, before = shares.stretch(turn)
            if count > 0:
                of_tokens, of_rows = place_of(tile, shares)
                T.assume(before >= 0)
                T.assume(of_rows >= 0)
                T.assume(of_tokens >= 0)
                for some in totals:
                    for total in some:
                        T.clear(total)
                if running:
                    multiply_running(rings, of_w, of_a, operands, totals[0][0], before, count)
                elif promoted:
                    at = ((begin - before) * records, of_tokens * tokens)
                    multiply_by_groups(rings, of_w, of_a, operands, totals, S, at, before, count)
                else:
                    multiply(rings, of_w, of_a, codes, totals, before, count)
                T.pdl_sync()
                if blocks:
                    every = [total for some in totals for total in some]
                    if begin > 0:
                        hand_over(every, partial, shares.own * sharing + rank, LEFT, 2 * slab)
                    else:
                        if begin + count < chunks:
                            following, behind = shares.peers(tile)
                            first = following * sharing + rank
                            take_over(every, partial, done, first, behind - following, sharing)
                        store(totals, staged, of_tokens, of_rows * sharing + rank, others, C)
                elif cluster > 1:
                    store_parts(totals, staged, of_tokens, of_rows, rank, others, C)
                else:
                    store(totals, staged, of_tokens, of_rows * sharing + rank, others, C)
        if turns:
            T.end_turns()

    @T.macro
    def store(totals: Any, staged: Any, of_tokens: Any, block: Any, others: Any, C: Any) -> None:
        """Sums of a tile into C, by way of shared memory so that threads write whole lines."""
        scales_A, scales_W, shift, added = others
        for t in list(range(tiles)):
            for half in list(range(halves)):
                for p in list(range(part // piece)):
                    T.sync_threads()
                    for i, j in T.Parallel(slab, part):
                        if j // piece == p:
                            staged[j - p * piece, i] = totals[t][half][i, j]
                    T.sync_threads()
                    row, column = of_tokens * tokens + half * part + p * piece, block * rows + t * slab
                    for i, j in T.Parallel(piece, slab):
                        finish(staged[i, j], row + i, column + j, scales_A, scales_W, shift, C, added)

    @T.macro
    def store_parts(totals: Any, staged: Any, of_tokens: Any, block: Any, rank: Any, others: Any, C: Any) -> None:
        """The same where the blocks of a cluster divide K: each adds some of the columns of all."""
        scales_A, scales_W, shift, added = others
        for t in list(range(tiles)):
            for half in list(range(halves)):
                T.sync_threads()
                for i, j in T.Parallel(slab, part):
                    staged[j, i] = totals[t][half][i, j]
                row = of_tokens * tokens + half * part
                column = block * rows + t * slab + rank * share
                T.sync_cluster()
                result = T.alloc_fragment((part, share), kept)
                other = T.alloc_fragment((part, share), kept)
                T.copy(staged[0:part, rank * share : (rank + 1) * share], result, rank=0)
                for peer in list(range(1, cluster)):
                    T.copy(staged[0:part, rank * share : (rank + 1) * share], other, rank=peer)
                    for i, j in T.Parallel(part, share):
                        result[i, j] += other[i, j]
                for i, j in T.Parallel(part, share):
                    finish(result[i, j], row + i, column + j, scales_A, scales_W, shift, C, added)
                T.sync_cluster()

    def place_of(tile: Any, shares: Any) -> tuple[Any, Any]:
        """A tile's number among those of A's rows, and among those of W's."""
        return in_panels(tile, shares.tiles // wide, wide, band) if blocks else tile

    @T.macro
    def bring_weights(W: Any, w_ring: Any, of_w: Any, shares: Any, rank: Any) -> None:
        """The records of a block's stretches."""
        for turn in T.serial(shares.turns):
            tile, begin, count, before = shares.stretch(turn)
            if count > 0:
                _, of_rows = place_of(tile, shares)
                T.assume(of_rows >= 0)
                block = of_rows if cluster > 1 else of_rows * sharing + rank
                for step in T.serial(count):
                    slot = of_w.acquire(before + step)
                    start = T.max(T.min(begin + step, chunks - 1), 0) * records
                    for number in T.serial(parts * tiles):
                        row = T.min(block * (parts * tiles) + number, down - 1)
                        T.copy(
                            W[row, start : start + records, :], w_ring[slot, number, :, :],
                            eviction_policy="evict_first",
                        )  # fmt: skip
                    of_w.publish(before + step)

    @T.macro
    def bring_activations(A: Any, a_ring: Any, of_a: Any, shares: Any) -> None:
        """The columns of the rows of A of a block's stretches."""
        for turn in T.serial(shares.turns):
            tile, begin, count, before = shares.stretch(turn)
            if count > 0:
                of_tokens, _ = place_of(tile, shares)
                T.assume(of_tokens >= 0)
                for step in T.serial(count * records):
                    slot = of_a.acquire(before * records + step)
                    for half in list(range(halves)):
                        for group in list(range(sets)):
                            column = (begin * records + step) * COLUMNS + group * columns
                            T.copy(
                                A[of_tokens * tokens + half * part, column], a_ring[slot, half, group, :, :],
                                multicast=sharing > 1,
                            )  # fmt: skip
                    of_a.publish(before * records + step)

    @T.macro
    def sum_groups(A: Any, S: Any) -> None:
        """Sums of each group of A's columns."""
        with T.Kernel(K_groups, T.ceildiv(M, 64), threads=128) as (group, block):
            tile = T.alloc_fragment((64, columns), "float32")
            total = T.alloc_fragment((64,), "float32")
            for i, j in T.Parallel(64, columns):
                m, k = block * 64 + i, group * columns + j
                inside = (m < M) & (k < K)
                tile[i, j] = T.if_then_else(inside, T.cast(A[T.min(m, M - 1), T.min(k, K - 1)], "float32"), 0.0)
            T.reduce_sum(tile, total, dim=1)
            T.copy(total, S[group, block * 64])

    products = [
        (record, tile, group, half)
        for record in range(records)
        for tile in range(tiles)
        for group in range(sets)
        for half in range(halves)
    ]
    last = len(products) - 1
    K_groups = across * sets
    Shift = T.Tensor((N,) if epilogue.bias else (1,), epilogue.bias or "float32")
    Added = T.Tensor((M, N) if epilogue.residual else (1, 1), out)

    @T.prim_func
    def rows_of_bytes(
        W: T.Tensor((down, across, words), "uint32"), A: T.Tensor((M, K), activations),
        scales_A: T.Tensor((M,) if by_token else (1,), "float32"), scales_W: T.Tensor((N,) if by_channel else (1,), scale_type),
        shift: Shift, added: Added, C: T.Tensor((M, N), out),
    ):  # fmt: skip
        S = None
        if of_sums:
            S = T.alloc_global((K_groups, M), "float32")
            sum_groups(A, S)
        together, of_A = cluster * sharing, T.ceildiv(M, tokens)
        grid: Any = (together * wide, of_A)
        if by_tokens:
            grid = together, of_A, wide
        partial, done = None, None
        if blocks:
            grid = (blocks,)
            partial, done = workspaces(blocks, tiles * halves, slab, part, kept)
        with T.Kernel(*grid, threads=128 * (warpgroups + 1), cluster_dims=(together, 1, 1)) as place:
            if blocks:
                block = place
                group = block // together
                all_tiles = of_A * wide
                shares: Any = EvenShares(
                    all_tiles, chunks, groups, group, *own_stretch(all_tiles, chunks, groups, group)
                )
            else:
                block = place[2] * together + place[0] if by_tokens else place[0]
                shares = OneTile((place[1], block // together), (block % together) * count if cluster > 1 else 0, count)
            rank = block % together
            a_ring = T.alloc_shared((stages, halves, sets, part, columns), activations)
            w_ring = T.alloc_shared((weight_stages, parts * tiles, records, words), "uint32")
            scope = "cluster" if sharing > 1 else "block"
            of_a = T.channel(a_ring, writers="activations", readers="consumers", scope=scope)
            of_w = T.channel(w_ring, writers="weights", readers="consumers")
            if blocks:
                staged = T.alloc_shared((piece, slab + PADDING), kept)
            else:
                staged = T.alias(a_ring if a_bytes > w_bytes else w_ring, (piece, slab + PADDING), kept)
            others, space = (scales_A, scales_W, shift, added), (partial, done)
            with T.roles():
                with T.role("consumers", warps=4 * warpgroups, registers=consumer_registers(warpgroups)):
                    consume((w_ring, a_ring), of_w, of_a, S, shares, rank, space, staged, others, C)
                with T.role("weights", warps=1, registers=40):
                    if of_sums or form.ladder:  # bytes of the caller's, which the kernel before may have written
                        T.pdl_sync()
                    bring_weights(W, w_ring, of_w, shares, rank)
                    for _ in list(range(meetings)):
                        T.sync_cluster()
                with T.role("activations", warps=2 if blocks else 3, registers=40):
                    T.pdl_sync()
                    T.pdl_trigger()
                    bring_activations(A, a_ring, of_a, shares)
                    for _ in list(range(meetings)):
                        T.sync_cluster()
                if blocks:
                    with T.role("messenger", warps=1, registers=40):
                        announce(shares, done, shares.own * sharing + rank, LEFT, 1, 2 * slab)

    return rows_of_bytes
