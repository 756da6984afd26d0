"""``C = A W^T`` for more rows of A than a few on Hopper, W in low-bit records: weights are the register operand of wgmma.

The problem is transposed: rows of W are the instruction's rows, rows of A its columns.  Two producers run ahead in rings of
their own, because weights want long copies and activations little memory.  Consumers decode 64 columns of their rows into
one of two sets of registers while the tensor cores still work on the other.  Clusters may divide K; their sums meet in
shared memory, in order, so that results repeat bit by bit.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels.code_table import ROWS, fill_pairs, table_bytes, table_of_pairs
from tilewright.kernels.epilogue import PLAIN, Epilogue, stored
from tilewright.kernels.grouped_matmul import list_tiles
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords

HALF = 64
"""Columns that are decoded at once: half a record."""

SHARED_BYTES = 227 << 10

TURNS = 5
"""The first of three named barriers by which warpgroups take turns and meet."""

PADDING = 16
"""Bytes between rows of sums, so that writing columns meets different banks."""


@tilewright.jit
def medium_quant_matmul(
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
    cluster: int = 1,
    sharing: int = 1,
    promoted: bool = False,
    experts: int = 0,
) -> Any:
    """Product of any number of rows with ``(codes - offset) * scales``, or with the zeros of groups instead of the offset.

    Parameters
    ----------
    form : order of W (`FragmentRecords`), with scales (and zeros) of its operand's type.
    tokens : rows of A that a block multiplies, a multiple of 8 up to 256.
    offset : what all codes are too large by.
    zeros_mode : with zeros: ``"original"``, ``(codes - offset - zeros) * scales``, or ``"rescale"``,
        ``(codes - offset) * scales - zeros``.
    epilogue : what becomes of sums before they are stored.
    warpgroups, tiles : a block has ``64 * warpgroups * tiles`` rows of W; each warpgroup decodes `tiles` times 64.
    records : groups of 128 columns in one copy of weights, at most 4; longer copies are faster.
    weight_stages, stages : copies of weights, and of columns of A, on their way.
    halves : times 64 columns of A in one slot: 1 or 2.
    cluster : blocks that divide K among them.
    sharing : blocks that send one another the columns of A, where K is not divided.
    promoted : scales are applied to float32 sums of groups of 128 instead of codes: less work for few rows, more for many.
    experts : weights that runs of A's rows are multiplied by, one after the other (see `grouped_matmul`); 0 for one weight and
        all rows.  K is not divided then.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``), ``A[M, K]`` of the form's operand type, and ``C[M, N]`` of `out`.  Rows of A
    start at multiples of 16 bytes.  With an epilogue there stand before C ``factor[1]`` (float32), ``bias[N]`` and
    ``residual[M, N]``, one element each where they are not used.  With experts W has their records one below the other, ``factor``
    is ``[experts]``, and ``sizes[experts]`` (int32) before C says how many rows of A are whose.
    """
    assert not experts or (cluster == 1 and epilogue.bias is None and not epilogue.residual)
    M = T.dynamic("M")
    dtype = str(form.operand)
    down, across, words = form.shape(N, K)
    rows = 64 * warpgroups * tiles
    own = 64 * tiles
    parts, all_parts = own // form.rows, rows // form.rows
    blocks = -(-down // (all_parts * sharing)) * sharing
    chunks, slots = across // records, 2 * records // halves
    count = -(-chunks // cluster)  # behind the last chunk A reads as zero, whatever the weights
    share = own // cluster
    a_bytes, w_bytes = 2 * stages * halves * tokens * HALF, 4 * weight_stages * all_parts * records * words
    kept = out if staged_bytes(out, cluster, epilogue) < 4 else "float32"
    in_turns = warpgroups == 2 and not promoted and tokens >= 64
    row_of_sums = rows + PADDING * 8 // dtype_of(kept).bits

    @T.macro
    def multiply(which: int, rings: Any, codes: Any, total: Any) -> None:
        """Codes are scaled in registers; one accumulator takes all products."""
        a_ring, w_ring, activations, weights, table = rings
        if in_turns and which == 1:
            end_turn(which)
        for chunk in T.serial(count):
            w_slot = weights.receive(chunk)
            for half in list(range(2 * records)):
                number = chunk * slots + half // halves
                operand = codes[half % 2]
                T.unpack(
                    w_ring[w_slot, which * parts : (which + 1) * parts, half // 2, :], form, operand,
                    first=HALF * (half % 2), offset=offset, scaled=True, zeros_mode=zeros_mode, table=table,
                )  # fmt: skip
                if half % halves == 0:
                    activations.receive(number)
                begin_turn(which)
                T.wgmma_gemm(operand, a_ring[number % stages, half % halves, :, :], total, transpose_B=True)
                end_turn(which)
                T.wait_wgmma(1)
                if half % halves == 0 and number > 0:
                    activations.release(number - 1)
            weights.release(chunk)
        T.wait_wgmma(0)
        activations.release(count * slots - 1)

    @T.macro
    def multiply_by_groups(which: int, rings: Any, codes: Any, total: Any) -> None:
        """An accumulator takes a group's products, and the next codes are decoded meanwhile; then its sum is scaled."""
        a_ring, w_ring, activations, weights, table = rings
        sums = T.alloc_fragment((own, tokens), "float32")
        scale = T.alloc_fragment((own,), "float32")
        for chunk in T.serial(count):
            w_slot = weights.receive(chunk)
            T.unpack(
                w_ring[w_slot, which * parts : (which + 1) * parts, 0, :], form, codes[0], offset=offset, table=table
            )
            for record in list(range(records)):
                number = chunk * records + record
                activations.receive(number)
                a_slot = number % stages
                T.wgmma_gemm(codes[0], a_ring[a_slot, 0, :, :], sums, transpose_B=True, clear_accum=True)
                T.unpack(
                    w_ring[w_slot, which * parts : (which + 1) * parts, record, :], form, codes[1], scale,
                    first=HALF, offset=offset, table=table,
                )  # fmt: skip
                T.wgmma_gemm(codes[1], a_ring[a_slot, 1, :, :], sums, transpose_B=True)
                if record < records - 1:
                    T.wait_wgmma(1)
                    T.unpack(
                        w_ring[w_slot, which * parts : (which + 1) * parts, record + 1, :],
                        form,
                        codes[0],
                        offset=offset,
                    )
                else:
                    weights.release(chunk)
                T.wait_wgmma(0)
                activations.release(number)
                for i, j in T.Parallel(own, tokens):
                    total[i, j] += sums[i, j] * scale[i]

    @T.macro
    def begin_turn(which: int) -> None:
        """Wait until the other warpgroup has started its products: while one multiplies, the other decodes."""
        if in_turns:
            T.sync_threads(TURNS + which, 256)

    @T.macro
    def end_turn(which: int) -> None:
        """Let the other warpgroup start its products."""
        if in_turns:
            T.named_barrier_arrive(TURNS + 1 - which, 256)

    @T.macro
    def meet(which: int) -> None:
        """All warpgroups have done all their products."""
        if in_turns and which == 0:
            T.sync_threads(TURNS, 256)  # the other's last turn
        T.sync_threads(TURNS + 2, 128 * warpgroups)

    @T.macro
    def finish(total: Any, factor: Any, expert: Any, bias: Any, first: Any, sums: Any, column: int) -> None:
        """Sums of the rows of W from `first` on, in registers, into the tile that they leave through."""
        if epilogue.is_plain or cluster > 1:
            for i, j in T.Parallel(own, tokens):
                sums[j, column + i] = stored(total[i, j], kept)
        else:
            shift = T.alloc_fragment((own,), "float32")
            if epilogue.bias:
                T.copy(bias[first], shift)
            for i, j in T.Parallel(own, tokens):
                sums[j, column + i] = stored(epilogue.before_residual(total[i, j], factor[expert], shift[i]), kept)

    @T.macro
    def add_shares(
        sums: Any, factor: Any, bias: Any, residual: Any, C: Any, column: Any, first_token: Any, first: Any
    ) -> None:
        """Add what the blocks of the cluster found for rows that are this one's to store, one after the other."""
        result = T.alloc_fragment((tokens, share), "float32")
        other = T.alloc_fragment((tokens, share), "float32")
        T.copy(sums[0:tokens, column : column + share], result, rank=0)
        for peer in list(range(1, cluster)):
            T.copy(sums[0:tokens, column : column + share], other, rank=peer)
            for i, j in T.Parallel(tokens, share):
                result[i, j] += other[i, j]
        if epilogue.is_plain:
            T.copy(result, C[first_token, first + column])
        else:
            shift = T.alloc_fragment((share,), "float32")
            if epilogue.bias:
                T.copy(bias[first + column], shift)
            for i, j in T.Parallel(tokens, share):
                value = epilogue.before_residual(result[i, j], factor[0], shift[j])
                if epilogue.residual:
                    value = value + T.cast(residual[first_token + i, first + column + j], "float32")
                C[first_token + i, first + column + j] = stored(value, out)

    @T.macro
    def store(sums: Any, residual: Any, C: Any, column: int, first_token: Any, end: Any, first: Any) -> None:
        """A warpgroup's rows of the finished tile, into C."""
        if experts:
            for j, i in T.Parallel(tokens, own):
                if first_token + j < end:
                    C[first_token + j, first + column + i] = sums[j, column + i]
        elif epilogue.residual:
            for j, i in T.Parallel(tokens, own):
                row, n = first_token + j, first + column + i
                C[row, n] = stored(sums[j, column + i] + T.cast(residual[row, n], "float32"), out)
        else:
            T.copy(sums[0:tokens, column : column + own], C[first_token, first + column])

    @T.macro
    def consume(
        which: int, rings: Any, sums: Any, others: Any, C: Any, tile: Any, rank: Any, first_token: Any, end: Any
    ) -> None:
        """What a warpgroup does."""
        table = rings[-1]
        factor, expert, bias, residual = others
        total = T.alloc_fragment((own, tokens), "float32")
        codes = [T.alloc_fragment((own, HALF), dtype) for _ in range(2)]
        T.clear(total)
        if form.is_looked_up:
            fill_pairs(form, table, which * (ROWS // warpgroups), ROWS // warpgroups)
            T.sync_threads(TURNS + 2, 128 * warpgroups)
        if promoted:
            multiply_by_groups(which, rings, codes, total)
        else:
            multiply(which, rings, codes, total)
        T.pdl_sync()
        meet(which)
        finish(total, factor, expert, bias, tile * rows + which * own, sums, which * own)
        if cluster > 1:
            T.sync_cluster()
            column = rank * (rows // cluster) + which * share
            add_shares(sums, factor, bias, residual, C, column, first_token, tile * rows)
            T.sync_cluster()
        else:
            T.sync_threads()
            store(sums, residual, C, which * own, first_token, end, tile * rows)

    @T.macro
    def bring_weights(W: Any, w_ring: Any, weights: Any, above: Any, tile: Any, first: Any) -> None:
        """A block's records, `above` rows of records below W's beginning."""
        for chunk in T.serial(count):
            slot = weights.acquire(chunk)
            start = T.min(first + chunk, chunks - 1) * records
            for part in T.serial(all_parts):
                row = above + T.min(tile * all_parts + part, down - 1)
                T.copy(W[row, start : start + records, :], w_ring[slot, part, :, :], eviction_policy="evict_first")
            weights.publish(chunk)

    @T.macro
    def bring_activations(A: Any, a_ring: Any, activations: Any, first_token: Any, first: Any) -> None:
        """The columns of a block's rows of A, half a record's at a time."""
        for number in T.serial(count * slots):
            slot = activations.acquire(number)
            column = first * records * COLUMNS + number * halves * HALF
            for half in list(range(halves)):
                T.copy(A[first_token, column + half * HALF], a_ring[slot, half, :, :], multicast=sharing > 1)
            activations.publish(number)

    @T.macro
    def product(W: Any, A: Any, factor: Any, bias: Any, residual: Any, runs: Any, C: Any) -> None:
        grid = (blocks * cluster, T.ceildiv(M, tokens) if runs is None else runs[0].shape[0])
        with T.Kernel(*grid, threads=128 * (warpgroups + 1), cluster_dims=(cluster * sharing, 1, 1)) as (
            block,
            of_tokens,
        ):
            tile, rank = block // cluster, block % cluster
            first = rank * count
            expert, first_token, end = 0, of_tokens * tokens, M
            if experts:
                T.pdl_sync()  # the list was made by the kernel before
                expert, first_token, end = runs[0][of_tokens], runs[1][of_tokens], runs[2][of_tokens]
                T.assume(expert >= 0)
                T.assume(expert < experts)
                T.assume(first_token >= 0)
            a_ring = T.alloc_shared((stages, halves, tokens, HALF), dtype)
            w_ring = T.alloc_shared((weight_stages, all_parts, records, words), "uint32")
            scope = "cluster" if sharing > 1 else "block"
            names = ["consumers", "others"][:warpgroups]
            activations = T.channel(a_ring, writers="activations", readers=names, scope=scope)
            weights = T.channel(w_ring, writers="weights", readers=names)
            table = table_of_pairs(form)
            rings = a_ring, w_ring, activations, weights, table
            sums = T.alias(a_ring if a_bytes > w_bytes else w_ring, (tokens, row_of_sums), kept)
            with T.roles():
                for which in list(range(warpgroups)):
                    with T.role(names[which], warps=4, registers=consumer_registers(warpgroups)):
                        if experts:
                            if first_token < end:
                                consume(
                                    which,
                                    rings,
                                    sums,
                                    (factor, expert, bias, residual),
                                    C,
                                    tile,
                                    rank,
                                    first_token,
                                    end,
                                )
                        else:
                            consume(which, rings, sums, (factor, 0, bias, residual), C, tile, rank, first_token, end)
                with T.role("weights", warps=1, registers=40):
                    if experts:
                        if first_token < end:
                            bring_weights(W, w_ring, weights, expert * down, tile, first)
                    else:
                        bring_weights(W, w_ring, weights, 0, tile, first)
                    if cluster > 1:
                        T.sync_cluster()
                        T.sync_cluster()
                with T.role("activations", warps=3, registers=40):
                    T.pdl_sync()
                    T.pdl_trigger()
                    if experts:
                        if first_token < end:
                            bring_activations(A, a_ring, activations, first_token, first)
                    else:
                        bring_activations(A, a_ring, activations, first_token, first)
                    if cluster > 1:
                        T.sync_cluster()
                        T.sync_cluster()

    Weight, Activations, Result = (
        T.Tensor((max(1, experts) * down, across, words), "uint32"),
        T.Tensor((M, K), dtype),
        T.Tensor((M, N), out),
    )
    if experts:
        Factor, Sizes = T.Tensor((experts,), "float32"), T.Tensor((experts,), "int32")
        length = M // tokens + experts

        @T.prim_func
        def rows_of_experts(W: Weight, A: Activations, factor: Factor, sizes: Sizes, C: Result):
            listed = T.alloc_global((1,), "int32")
            of = T.alloc_global((length,), "int32")
            firsts = T.alloc_global((length,), "int32")
            ends = T.alloc_global((length,), "int32")
            list_tiles(sizes, listed, of, firsts, ends, tokens)
            product(W, A, factor, None, None, (of, firsts, ends), C)

        return rows_of_experts

    if epilogue.is_plain:

        @T.prim_func
        def some_rows(W: Weight, A: Activations, C: Result):
            product(W, A, None, None, None, None, C)

        return some_rows

    @T.prim_func
    def some_rows_and_more(
        W: Weight,
        A: Activations,
        factor: T.Tensor((1,), "float32"),
        bias: T.Tensor((N if epilogue.bias else 1,), epilogue.bias or "float32"),
        residual: T.Tensor((M, N) if epilogue.residual else (1, 1), out),
        C: Result,
    ):
        product(W, A, factor, bias, residual, None, C)

    return some_rows_and_more


def staged_bytes(out: str, cluster: int, epilogue: Epilogue) -> int:
    """Bytes of a sum in the tile that sums leave through: those that are not final yet are float32."""
    return 4 if cluster > 1 or epilogue.residual else min(4, dtype_of(out).bits // 8)


def consumer_registers(warpgroups: int) -> int:
    """Registers of a consumer's thread: what is left of a multiprocessor's 65536 where the producers keep 40."""
    even = 65536 // (128 * (warpgroups + 1)) // 8 * 8
    return min(232, (even * (warpgroups + 1) - 40) // warpgroups // 8 * 8)


def medium_quant_choice(
    N: int, K: int, M: int, form: FragmentRecords, out: str = "float16", epilogue: Epilogue = PLAIN
) -> dict[str, int]:
    """The sizes that `medium_quant_matmul` is called with for a problem, found on an H200."""
    tokens, tiles, cluster = _tiles(N, K, M)
    wide = cluster == 1
    promoted = tokens <= 32 and form.group == COLUMNS and form.zero is None
    short = tokens == 256 or (promoted or tokens == 64 if wide else tokens == 128)
    halves = 1 if tokens >= 128 else 2
    room = SHARED_BYTES - 1024 - table_bytes(form)
    activations = 2 * HALF * halves * tokens
    sums = (128 * tiles + PADDING) * tokens * staged_bytes(out, cluster, epilogue)
    for records in (2, 1) if short else (4, 2, 1):
        weights = 128 * tiles // form.rows * records * form.words * 4
        fewest = 2 if tokens == 256 else max(2, sums // weights + 1)
        stages = min(8 // halves + 2 * (tokens <= 32), (room - fewest * weights) // activations)
        if stages >= 2:
            break
    weight_stages = min(5, (room - stages * activations) // weights)
    return {
        "tokens": tokens, "tiles": tiles, "records": records, "cluster": cluster, "stages": stages, "halves": halves,
        "weight_stages": weight_stages, "sharing": 2 if tokens == 256 and wide else 1, "promoted": promoted,
    }  # fmt: skip


CYCLES = {
    (16, 1): 230, (16, 2): 430, (32, 1): 290, (32, 2): 543, (64, 1): 400, (64, 2): 750, (128, 1): 620, (128, 2): 1180,
    (256, 1): 1130,
}  # fmt: skip
"""Of a multiprocessor for 64 columns, by rows of A and times 128 rows of W, as measured: 0.9 times what the products take, and one for
each instruction of a scheduler."""

START, EXCHANGE, RESIDENT = 8000, 5000, 132
"""Cycles until a block multiplies and after it has, those of a cluster's sums, and blocks that run at once."""


def _tiles(N: int, K: int, M: int) -> tuple[int, int, int]:
    """Rows of A of a block, times 128 rows of W, and blocks that divide K: what takes the fewest cycles in all waves of blocks."""
    room = next((n for n in (16, 32, 64, 128) if n >= M), 0)
    sizes = [(tokens, tiles) for tokens, tiles in reversed(CYCLES) if tokens == room or (tokens >= 128 and not room)]

    def cycles(choice: tuple[int, int, int]) -> int:
        tokens, tiles, cluster = choice
        blocks = -(-N // (128 * tiles)) * -(-M // tokens) * cluster
        block = -(-K // (HALF * cluster)) * CYCLES[tokens, tiles] + START + EXCHANGE * (cluster - 1)
        return -(-blocks // RESIDENT) * block

    return min([(*size, cluster) for cluster in (1, 2) for size in sizes], key=cycles)
