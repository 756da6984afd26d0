"""Operands that lie across k, on machines whose lanes read neighbours along k: they are transposed on their way to
shared memory.

Before, in a loop whose copies go through registers::

    copy(source=B[k * 64 : +64, :], destination=b_registers)
    copy(source=b_registers, destination=b)
    gemm(a=a, b=b, c=c)

After, with a tile ``[N, K]`` in place of ``[K, N]``::

    copy(source=B[k * 64 : +64, :], destination=b_registers)
    transpose(source=b_registers, destination=b_registers_transposed)
    copy(source=b_registers_transposed, destination=b)
    gemm(a=a, b=b, c=c, transpose_b=True)

A thread loads a few rows of up to 16 bytes and stores each column of that as one access; in between it moves
registers. The tile lies in runs of k, column after column, under a swizzle that keeps the stores of neighbouring
threads, and the reads of neighbouring columns, in different banks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.ir import Buffer, Kernel, Pipelined, Statement, changed, uses, whole
from tilewright.layout import MEMORY, REGISTER, Layout, Swizzle, spread
from tilewright.ops import Copy, Gemm

RUN_BYTES = 8
"""Of a run of k, which lies together in shared memory, and which a thread has of each column where it can."""

BLOCKS = ((8, 16), (8, 8), (4, 16), (4, 8), (8, 4), (4, 4))
"""What a thread may have, best first: bytes of a column, which it stores at once, and of a row, which it loads at
once."""


@dataclass(frozen=True, slots=True)
class TransposedTile:
    """How a tile is transposed: what takes its place, and the layouts of the registers that are loaded, of those that
    are stored, and of the tile."""

    tile: Buffer
    loaded: Layout
    stored: Layout
    memory: Layout


Transposed: TypeAlias = dict[Copy, TransposedTile]


def transposed_copies(kernel: Kernel, loop: Pipelined, kept: Collection[Buffer], bits: Collection[int]) -> Transposed:
    """Copies of a loop whose tiles are only read by gemms of the loop, all along their first dimension.

    Parameters
    ----------
    kept : tiles that stay as they are.
    bits : sizes of the elements of others.
    """
    copies = [one for one in loop.body.statements if isinstance(one, Copy) and one.source.buffer.scope == "global"]
    gemms = [one for one in loop.body.statements if isinstance(one, Gemm)]
    given = {buffer for buffer, _ in kernel.layouts}
    found: Transposed = {}
    for copy in copies:
        tile = copy.destination.buffer
        readers = [gemm for gemm in gemms if _reads_across(gemm, tile)]
        users = [copy, *readers]
        alone = _mentions(kernel.body, tile) == sum(_mentions(one, tile) for one in users)
        if tile in kept or tile in given or not readers or not alone or tile.dtype.bits not in bits:
            continue
        way = _transposed_tile(copy, kernel.num_threads)
        if way is not None:
            found[copy] = way
    return found


def _mentions(statement: Statement, tile: Buffer) -> int:
    return sum(node is tile for node in uses(statement))


def _reads_across(gemm: Gemm, tile: Buffer) -> bool:
    """Whether a gemm reads a tile, and only along its first dimension."""
    sides = ((gemm.a, gemm.transpose_a), (gemm.b, not gemm.transpose_b))
    read = [(region, across) for region, across in sides if region.buffer is tile]
    return bool(read) and all(region.is_whole and across for region, across in read) and gemm.c.buffer is not tile


def _transposed_tile(copy: Copy, threads: int) -> TransposedTile | None:
    """How the threads of a block transpose what a copy brings; None where its sizes do not divide."""
    tile, dtype = copy.destination.buffer, copy.destination.dtype
    if tile.scope != "shared" or tile.source is not None or not copy.destination.is_whole or tile.rank != 2:
        return None
    if dtype.bits not in (8, 16) or copy.source.dtype != dtype:
        return None
    K, N = tile.static_shape
    run = RUN_BYTES * 8 // dtype.bits
    for rows, columns in ((high * 8 // dtype.bits, wide * 8 // dtype.bits) for high, wide in BLOCKS):
        pieces = (K // rows, N // columns)
        if K % run == N % columns == 0 and pieces[0] * pieces[1] % threads == 0:
            dealt = spread(pieces, threads, 1)
            if dealt.shape == pieces:
                loaded, stored = _blocks(dealt, rows, columns)
                return TransposedTile(replace(tile, shape=(N, K)), loaded, stored, _memory(K, N, run, dtype.bits))
    return None


def _blocks(dealt: Layout, rows: int, columns: int) -> tuple[Layout, Layout]:
    """Threads with blocks of rows and columns in place of single pieces: neighbouring registers have neighbours of a
    row, and, the tile transposed, neighbours of a column."""
    outer = [
        [(one.extent, one.place, one.stride * (rows * columns if one.place == REGISTER else 1)) for one in digits]
        for digits in dealt.digits
    ]
    loaded = Layout.of([(rows, REGISTER, columns), *outer[0]], [(columns, REGISTER, 1), *outer[1]])
    stored = Layout.of([(columns, REGISTER, rows), *outer[1]], [(rows, REGISTER, 1), *outer[0]])
    return loaded, stored


def _memory(K: int, N: int, run: int, bits: int) -> Layout:
    """Runs of k, column after column."""
    plain = Layout.of([(N, MEMORY, run)], [(run, MEMORY, 1), (K // run, MEMORY, run * N)])
    swizzle = Swizzle(4, run.bit_length() - 1, 4)
    return replace(plain, swizzle=swizzle) if K * N % swizzle.period == 0 else plain


def transpose_gemms(statement: Statement, tiles: Mapping[Buffer, Buffer]) -> Statement:
    """A statement whose gemms read transposed tiles along k."""

    def transposed(gemm: Gemm) -> Gemm:
        a, b = tiles.get(gemm.a.buffer), tiles.get(gemm.b.buffer)
        if a is not None:
            gemm = replace(gemm, a=whole(a), transpose_a=False)
        return gemm if b is None else replace(gemm, b=whole(b), transpose_b=True)

    return changed(statement, Gemm, by=transposed)
