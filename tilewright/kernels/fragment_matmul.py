"""``C = A W^T`` with W in low-bit records on machines whose matrix instructions are a warp's: codes become its left
operand.

The problem is transposed: rows of W are what the instruction calls rows, rows of A its columns. Records and the columns
of A that meet them come through one ring of asynchronous copies; each warp decodes the records of its rows in
registers. Where there are too few tiles for the machine, K is divided, and a second kernel adds the parts in order.
"""

from __future__ import annotations

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels import PLAIN, Epilogue, Number, Speed, Tile, Work, ceil_div, stored
from tilewright.kernels.repertoire import Candidates
from tilewright.language.trace import PrimFunc
from tilewright.machine import COLUMNS, FragmentRecords

HALF = 64
"""Columns that are decoded at once: half a record."""

PIECE = 256
"""Elements of a row of C that one block of the second kernel adds."""

PADDING = 8
"""Elements between rows of finished sums, so that writing columns meets different banks."""

DECODED, STEP, END, ADDING = 1.5, 20, 200, 2000
"""Operations on integers that make an operand of a code; cycles of a step that nothing hides, of a further block, and
of the second kernel (the text for sm_80 on an H200, 11 products: none 2% slower than two blocks a multiprocessor)."""


@tilewright.jit
def fragment_matmul(
    N: int,
    K: int,
    form: FragmentRecords,
    tokens: int = 16,
    out: str = "float16",
    offset: int = 8,
    zeros_mode: str | None = None,
    epilogue: Epilogue = PLAIN,
    tiles: int = 1,
    splits: int = 1,
    stages: int = 3,
) -> PrimFunc:
    """Product of any number of rows with ``(codes - offset) * scales``, with zeros where the form holds them.

    Parameters
    ----------
    form : order of W (`FragmentRecords`), with scales (and zeros) of its operand's type.
    tokens : rows of A that a block multiplies, 16, 32 or 64.
    out : type of C.
    offset, zeros_mode, epilogue : as in `wgmma_quant_matmul`.
    tiles : times 16 rows of W for each of the block's four warps.
    splits : parts of K.
    stages : slots of the ring.

    Returns
    -------
    kernel of ``W`` (uint32, ``form.shape(N, K)``), ``A[M, K]`` of the form's operand type, ``factor[1]`` (float32),
    ``bias[N]``, ``residual[M, N]``, one element each where they are not used, and ``C[M, N]``. Rows of A start at
    multiples of 16 bytes.
    """
    M = T.dynamic("M")
    dtype = str(form.operand)
    down, across, words = form.shape(N, K)
    rows = 64 * tiles
    parts = rows // form.rows
    whole = -(-K // COLUMNS)
    steps = -(-whole // splits)
    direct = splits == 1

    @T.macro
    def multiply(W: Tile, A: Tile, factor: Tile, bias: Tile, residual: Tile, C: Tile, partial: Tile) -> None:
        with T.Kernel(T.ceildiv(N, rows), splits, T.ceildiv(M, tokens), threads=128) as (bn, part, bm):
            records = T.alloc_shared((parts, 1, words), "uint32")
            a = [T.alloc_shared((tokens, HALF), dtype) for _ in range(2)]
            codes = T.alloc_fragment((rows, HALF), dtype)
            total = T.alloc_fragment((rows, tokens), "float32")
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(W[bn * parts, T.min(part * steps + k, across - 1), 0], records)
                for half in list(range(2)):
                    T.copy(A[bm * tokens, (part * steps + k) * COLUMNS + half * HALF], a[half])
                for half in list(range(2)):
                    T.unpack(
                        records[:, 0, :],
                        form,
                        codes,
                        first=half * HALF,
                        offset=offset,
                        scaled=True,
                        zeros_mode=zeros_mode,
                    )
                    T.gemm(codes, a[half], total, transpose_B=True, policy="full_row")
            kept = out if direct and not epilogue.residual and dtype_of(out).bits <= 16 else "float32"
            sums = T.alloc_shared((tokens, rows + PADDING), kept)
            shift = T.alloc_fragment((rows,), "float32")
            if direct and epilogue.bias:
                T.copy(bias[bn * rows], shift)
            for i, j in T.Parallel(rows, tokens):
                finished = epilogue.before_residual(total[i, j], factor[0], shift[i]) if direct else total[i, j]
                sums[j, i] = stored(finished, kept)
            for j, i in T.Parallel(tokens, rows):
                row, n = bm * tokens + j, bn * rows + i
                if (row < M) & (n < N):
                    if not direct:
                        partial[part, row, n] = sums[j, i]
                    elif epilogue.residual:
                        C[row, n] = stored(sums[j, i] + T.cast(residual[row, n], "float32"), out)
                    else:
                        C[row, n] = T.cast(sums[j, i], out) if kept == out else stored(sums[j, i], out)

    @T.macro
    def add(partial: Tile, factor: Tile, bias: Tile, residual: Tile, C: Tile) -> None:
        with T.Kernel(T.ceildiv(N, PIECE), M, threads=128) as (bn, m):
            total = T.alloc_fragment((PIECE,), "float32")
            T.clear(total)
            for part in T.unroll(splits):
                for n in T.Parallel(PIECE):
                    total[n] += partial[part, m, bn * PIECE + n]
            for n in T.Parallel(PIECE):
                column = bn * PIECE + n
                if column < N:
                    shift = T.cast(bias[column], "float32") if epilogue.bias else None
                    value = epilogue.before_residual(total[n], factor[0], shift)
                    if epilogue.residual:
                        value = value + T.cast(residual[m, column], "float32")
                    C[m, column] = stored(value, out)

    @T.prim_func
    def fragment_matmul(
        W: T.Tensor((down, across, words), "uint32"),
        A: T.Tensor((M, K), dtype),
        factor: T.Tensor((1,), "float32"),
        bias: T.Tensor((N if epilogue.bias else 1,), epilogue.bias or "float32"),
        residual: T.Tensor((M, N) if epilogue.residual else (1, 1), out),
        C: T.Tensor((M, N), out),
    ):
        if splits == 1:
            multiply(W, A, factor, bias, residual, C, None)
        else:
            partial = T.alloc_global((splits, M, N), "float32")
            multiply(W, A, factor, bias, residual, C, partial)
            add(partial, factor, bias, residual, C)

    return fragment_matmul


class FragmentCandidates(Candidates):
    """Candidates for the product of a weight on a machine with so much shared memory."""

    def __init__(self, N: int, K: int, form: FragmentRecords, speed: Speed, shared_bytes: int) -> None:
        self.N, self.K, self.form, self.shared_bytes = N, K, form, shared_bytes
        super().__init__(
            [
                {"tokens": tokens, "tiles": tiles, "splits": splits, "stages": stages}
                for tokens in (16, 32, 64)
                for tiles in (1, 2)
                for splits in (1, 2, 4, 8)
                for stages in (4, 3, 2)
                if (splits == 1 or 4 * splits * COLUMNS <= K) and stages * self._slot(tokens, tiles) < shared_bytes
            ],
            speed,
        )

    def _slot(self, tokens: Number, tiles: Number) -> Number:
        """Bytes of records and of activations that a step brings."""
        return 256 * tiles * self.form.words // self.form.rows + 2 * COLUMNS * tokens

    def fits(self, M: int) -> np.ndarray:
        """See `Candidates`: rows that are not there cost as much as others."""
        return self.columns["tokens"] == next((tokens for tokens in (16, 32) if tokens >= M), 64)

    def work(self, M: int) -> Work:
        """See `Candidates`; blocks that share a multiprocessor count as one after the other."""
        tokens, tiles, splits, stages = (self.columns[name] for name in ("tokens", "tiles", "splits", "stages"))
        slot, codes, speed = self._slot(tokens, tiles), 64 * tiles * COLUMNS, self.speed
        blocks = ceil_div(self.N, 64 * tiles) * ceil_div(M, tokens) * splits
        added = 8.0 * splits * M * self.N / (speed.cache * speed.cores)  # written and read again
        return Work(
            size=2,
            blocks=blocks,
            resident=speed.cores * np.maximum(self.shared_bytes // (stages * slot), 1),
            waves=ceil_div(blocks, speed.cores),
            steps=ceil_div(ceil_div(self.K, COLUMNS), splits),
            products=codes * tokens,
            loads=slot,
            shared=2 * slot + 3 * 2 * COLUMNS * tokens,
            fixed=STEP,
            ends=END,
            lanes=codes * DECODED * speed.rates.lanes / speed.rates.shifts,
            in_flight=(stages - 1) * slot,
            memory=self.N * self.K / COLUMNS * self.form.words * 4 / self.form.rows + 2 * M * (self.K + self.N),
            exchange=np.where(splits > 1, ADDING + added, 0.0),
        )
