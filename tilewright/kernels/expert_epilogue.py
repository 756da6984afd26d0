"""What becomes of products of runs of rows whose kernel stores plain sums: a bias of each run's expert, then a
function."""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.epilogue import PAIRED, applied, paired, stored
from tilewright.kernels.grouped_matmul import list_tiles
from tilewright.language.trace import PrimFunc

ROWS, COLUMNS = 8, 256
"""Of a block's part of the result."""


@tilewright.jit
def expert_epilogue(experts: int, N: int, out: str, bias: str | None = None, function: str | None = None) -> PrimFunc:
    """``function(sums + bias of the row's expert)``, rounded once.

    Parameters
    ----------
    experts : how many there are.
    N : columns of the sums, even where pairs of neighbours become one.
    out : type of the result.
    bias : element type of ``bias[experts, N]``; None for none.
    function : one of `epilogue.FUNCTIONS` or `epilogue.PAIRED`; None for none.

    Returns
    -------
    kernel of ``sums[M, N]`` (float32), ``bias[experts, N]`` (``[1, 1]`` where there is none), ``sizes[experts]``
    (int32: rows of each expert's run, in their order; together at most M) and ``C[M, N]``, ``C[M, N / 2]`` for pairs;
    any M.
    """
    M = T.dynamic("M")
    each = 2 if function in PAIRED else 1
    columns, length = N // each, M // ROWS + experts

    @T.prim_func
    def expert_epilogue(
        sums: T.Tensor((M, N), "float32"),
        shift: T.Tensor((experts, N) if bias else (1, 1), bias or "float32"),
        sizes: T.Tensor((experts,), "int32"),
        C: T.Tensor((M, columns), out),
    ):
        count = T.alloc_global((1,), "int32")
        of = T.alloc_global((length,), "int32")
        firsts = T.alloc_global((length,), "int32")
        ends = T.alloc_global((length,), "int32")
        list_tiles(sizes, count, of, firsts, ends, ROWS)
        with T.Kernel(length, T.ceildiv(columns, COLUMNS), threads=256) as (tile, column):
            T.pdl_sync()
            T.pdl_trigger()
            expert, first, end = of[tile], firsts[tile], ends[tile]
            T.assume(expert >= 0)
            T.assume(expert < experts)
            T.assume(first >= 0)
            for i, j in T.Parallel(ROWS, COLUMNS):
                row, place = first + i, column * COLUMNS + j
                if (row < end) & (place < columns):
                    if each == 2:
                        gate, up = sums[row, 2 * place], sums[row, 2 * place + 1]
                        if bias is not None:
                            gate = gate + T.cast(shift[expert, 2 * place], "float32")
                            up = up + T.cast(shift[expert, 2 * place + 1], "float32")
                        C[row, place] = stored(paired(gate, up, function), out)
                    else:
                        value = sums[row, place]
                        if bias is not None:
                            value = value + T.cast(shift[expert, place], "float32")
                        C[row, place] = stored(applied(value, function), out)

    return expert_epilogue
