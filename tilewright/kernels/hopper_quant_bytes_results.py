"""How sums of `byte_quant_matmul` become results: scaled, ended, and stored by way of shared memory so that threads write whole lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as T
from tilewright.kernels.epilogue import stored
from tilewright.kernels.hopper_quant_bytes_plan import BytePlan

PADDING = 4
"""Elements between rows of staged sums, so that writing columns meets different banks."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Tensors that results are made of, and the one they go to.

    Attributes
    ----------
    scales_A, scales_W, shift, added : scales of rows of A and of W, the bias and the residual.
    C : results.
    """

    scales_A: Any
    scales_W: Any
    shift: Any
    added: Any
    C: Any


@T.macro
def finish(plan: BytePlan, value: Any, m: Any, n: Any, ending: Ending) -> None:
    """An element of the result out of its sum."""
    M, N = ending.C.shape
    epilogue, unit = plan.epilogue, plan.unit
    if plan.scaled:
        value = T.cast(value, "float32") * (1.0 / unit)
        if plan.of_rows is not None:
            value = value * ending.scales_A[T.min(m, M - 1) if plan.of_rows == "token" else 0]
        if plan.by_channel:
            value = value * T.cast(ending.scales_W[T.min(n, N - 1)], "float32")
        bias = None if epilogue.bias is None else T.cast(ending.shift[T.min(n, N - 1)], "float32")
        value = epilogue.before_residual(value, None, bias)
        if epilogue.residual:
            value = value + T.cast(ending.added[T.min(m, M - 1), T.min(n, N - 1)], "float32")
    elif unit != 1.0 and plan.form.operand.is_integer:
        value = value >> (8 - plan.form.bits)
    elif unit != 1.0:
        value = value * (1.0 / unit)
    ending.C[m, n] = stored(value, plan.out)


@T.macro
def store(plan: BytePlan, totals: Any, staged: Any, of_tokens: Any, block: Any, ending: Ending) -> None:
    """Sums of a tile into C."""
    slab, part, piece = plan.slab, plan.part, plan.piece
    for t in list(range(plan.tiles)):
        for half in list(range(plan.halves)):
            for p in list(range(part // piece)):
                T.sync_threads()
                for i, j in T.Parallel(slab, part):
                    if j // piece == p:
                        staged[j - p * piece, i] = totals[t][half][i, j]
                T.sync_threads()
                row = of_tokens * plan.tokens + half * part + p * piece
                column = block * plan.rows + t * slab
                for i, j in T.Parallel(piece, slab):
                    finish(plan, staged[i, j], row + i, column + j, ending)


@T.macro
def store_parts(
    plan: BytePlan, totals: Any, staged: Any, of_tokens: Any, block: Any, rank: Any, ending: Ending
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
                finish(plan, result[i, j], row + i, column + j, ending)
            T.sync_cluster()
