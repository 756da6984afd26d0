"""How sums of `byte_quant_matmul` become results: scaled, ended, and stored by way of shared memory so that threads
write whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tilewright.language as T
from tilewright.kernels import Tile, Value, stored
from tilewright.kernels.hopper_quant_bytes_plan import BytePlan

PADDING = 4
"""Elements between rows of staged sums, so that writing columns meets different banks."""


@dataclass(frozen=True, slots=True)
class Output:
    """Tensors that results are made of, and the one they go to.

    Attributes
    ----------
    scales_A, scales_W, shift, added : scales of rows of A and of W, the bias and the residual.
    C : results.
    """

    scales_A: Tile
    scales_W: Tile
    shift: Tile
    added: Tile
    C: Tile


def row_scale(plan: BytePlan, output: Output, m: Value) -> Value | None:
    """What the sums of a row of A are multiplied by, or None."""
    if plan.of_rows is None:
        return None
    return output.scales_A[T.min(m, output.C.shape[0] - 1) if plan.of_rows == "token" else 0]


def column_scale(plan: BytePlan, output: Output, n: Value) -> Value | None:
    """What the sums of a row of W are multiplied by, or None."""
    return T.cast(output.scales_W[T.min(n, output.C.shape[1] - 1)], "float32") if plan.by_channel else None


def finished(
    plan: BytePlan, value: Value, m: Value, n: Value, factors: Sequence[Value | None], output: Output
) -> Value:
    """An element of the result out of its sum, multiplied by `factors` of its row and its column."""
    M, N = output.C.shape
    epilogue, unit = plan.epilogue, plan.unit
    if plan.scaled:
        value = T.cast(value, "float32") * (1.0 / unit)
        for factor in factors:
            if factor is not None:
                value = value * factor
        bias = None if epilogue.bias is None else T.cast(output.shift[T.min(n, N - 1)], "float32")
        value = epilogue.before_residual(value, None, bias)
        if epilogue.residual:
            value = value + T.cast(output.added[T.min(m, M - 1), T.min(n, N - 1)], "float32")
    elif unit != 1.0 and plan.form.operand.is_integer:
        value = value >> (8 - plan.form.bits)
    elif unit != 1.0:
        value = value * (1.0 / unit)
    return stored(value, plan.out)


@dataclass(frozen=True, slots=True)
class Factors:
    """Registers for what a tile's sums are multiplied by.

    Attributes
    ----------
    of_rows : scales of rows of A, for each half and each piece of it.
    of_columns : scales of rows of W, for each slab.
    """

    of_rows: list[list[Tile]]
    of_columns: list[Tile]


def alloc_factors(plan: BytePlan) -> Factors:
    """Registers, still empty."""
    rows = [[T.alloc_fragment((height,), "float32") for _, height in plan.pieces] for _ in range(plan.halves)]
    return Factors(rows, [T.alloc_fragment((plan.slab,), "float32") for _ in range(plan.tiles)])


@T.macro
def load_factors(plan: BytePlan, factors: Factors, of_tokens: Value, block: Value, output: Output) -> None:
    """Load a tile's factors, behind the wait for the kernel ahead: they arrive while others work."""
    if plan.by_channel:
        for t in list(range(plan.tiles)):
            for j in T.Parallel(plan.slab):
                factors.of_columns[t][j] = column_scale(plan, output, block * plan.rows + t * plan.slab + j)
    if plan.of_rows is not None:
        for half in list(range(plan.halves)):
            for p, (begin, height) in list(enumerate(plan.pieces)):
                row = of_tokens * plan.tokens + half * plan.part + begin
                for i in T.Parallel(height):
                    factors.of_rows[half][p][i] = row_scale(plan, output, row + i)


@T.macro
def store(
    plan: BytePlan,
    totals: list[list[Tile]],
    staged: Tile,
    of_tokens: Value,
    block: Value,
    factors: Factors,
    output: Output,
) -> None:
    """Sums of a tile into C, multiplied by factors that were asked for."""
    slab, part = plan.slab, plan.part
    for t in list(range(plan.tiles)):
        column = block * plan.rows + t * slab
        for half in list(range(plan.halves)):
            row = of_tokens * plan.tokens + half * part
            for p, (begin, height) in list(enumerate(plan.pieces)):
                T.sync_threads()
                for i, j in T.Parallel(slab, part):
                    if (j >= begin) & (j < begin + height):
                        staged[j - begin, i] = totals[t][half][i, j]
                T.sync_threads()
                for i, j in T.Parallel(height, slab):
                    of_both = (
                        None if plan.of_rows is None else factors.of_rows[half][p][i],
                        factors.of_columns[t][j] if plan.by_channel else None,
                    )
                    m, n = row + begin + i, column + j
                    output.C[m, n] = finished(plan, staged[i, j], m, n, of_both, output)


@T.macro
def store_boxes(plan: BytePlan, totals: list[list[Tile]], of_tokens: Value, block: Value, output: Output) -> None:
    """The same in boxes of the copy engine, which sums are transposed into and which leave beside the next tile's
    products: no warpgroup waits for another. The factors of a part are asked for before the part ahead of it leaves."""
    slab, part = plan.slab, plan.part
    ready: list[tuple[Tile, Value, Value]] = []
    for t in list(range(plan.tiles)):
        column = block * plan.rows + t * slab
        of_columns = T.alloc_fragment((slab,), "float32")
        if plan.by_channel:
            for i in T.Parallel(slab):
                of_columns[i] = column_scale(plan, output, column + i)
        for half in list(range(plan.halves)):
            row = of_tokens * plan.tokens + half * part
            of_rows = T.alloc_fragment((part,), "float32")
            if plan.of_rows == "token":
                T.copy(output.scales_A[row], of_rows)
            elif plan.of_rows is not None:
                T.fill(of_rows, output.scales_A[0])
            if len(ready) > 0:
                store_rows(plan, ready.pop(), output)
            result = T.alloc_fragment((slab, part), plan.out)
            for i, j in T.Parallel(slab, part):
                of_both = (None if plan.of_rows is None else of_rows[j], of_columns[i] if plan.by_channel else None)
                result[i, j] = finished(plan, totals[t][half][i, j], row + j, column + i, of_both, output)
            ready.append((result, row, column))
    store_rows(plan, ready.pop(), output)


@T.macro
def store_rows(plan: BytePlan, ready: tuple[Tile, Value, Value], output: Output) -> None:
    """Results of some rows of W (lines) and of A (columns), which begin at a row and a column of C."""
    result, row, column = ready
    T.transpose(result, output.C[row : row + plan.part, column : column + plan.slab])


@T.macro
def store_split_k(
    plan: BytePlan, totals: list[list[Tile]], staged: Tile, of_tokens: Value, block: Value, rank: Value, output: Output
) -> None:
    """The same where the blocks of a cluster divide K: each adds some of the columns of all."""
    slab, part, share = plan.slab, plan.part, plan.slab // plan.cluster
    for t in list(range(plan.tiles)):
        for half in list(range(plan.halves)):
            T.sync_threads()
            for i, j in T.Parallel(slab, part):
                staged[j, i] = totals[t][half][i, j]
            row = of_tokens * plan.tokens + half * part
            column = block * plan.rows + t * slab + rank * share
            T.sync_cluster()
            result = T.alloc_fragment((part, share), plan.kept)
            other = T.alloc_fragment((part, share), plan.kept)
            T.copy(staged[0:part, rank * share : (rank + 1) * share], result, rank=0)
            for peer in list(range(1, plan.cluster)):
                T.copy(staged[0:part, rank * share : (rank + 1) * share], other, rank=peer)
                for i, j in T.Parallel(part, share):
                    result[i, j] += other[i, j]
            for i, j in T.Parallel(part, share):
                m, n = row + i, column + j
                factors = row_scale(plan, output, m), column_scale(plan, output, n)
                output.C[m, n] = finished(plan, result[i, j], m, n, factors, output)
            T.sync_cluster()
