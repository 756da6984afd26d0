"""`T.gemm_sp`: products of 2:4 sparse tiles, with metadata of any integer type, as rows or as columns."""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.ir.dtypes import UINT8
from tilewright.ir.nodes import Expr, Var
from tilewright.language.branches import is_symbolic
from tilewright.language.buffers import BufferProxy, region_of
from tilewright.language.builder import in_kernel
from tilewright.language.interface import word
from tilewright.language.memory import alloc_shared, view
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import condition, describe
from tilewright.language.source import statement_here
from tilewright.language.tile_ops import GemmWarpPolicy, choice, record_tiles, transpose
from tilewright.ops.base import element, matrix_shape, parallel, store_element


@word
def gemm_sp(
    A_sparse: object,
    E: object,
    B: object,
    C: object,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: object = GemmWarpPolicy.Square,
    clear_accum: object = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    annotations: object = None,
    order: str = "rows",
) -> None:
    """``C += A @ B`` where two of every four neighbours along the rows of A are zero, and left out.

    Parameters
    ----------
    transpose_B : as that of `gemm`.
    A_sparse : ``(M, K / 2)``, what was kept of A; shared.  ``(K / 2, M)`` with `transpose_A`.
    E : where it stood: of uint8 ``(M, K / 8)``, as `formats.sparse.compress` gives both; of a wider integer the same
        bytes as fewer columns. Float32 with one byte for four columns keeps one of every two neighbours.
    B : ``(K, N)``, or ``(N, K)`` with `transpose_B`.
    C, policy, clear_accum : as those of `gemm`.
    transpose_A, transpose_E : the tile is given with its dimensions swapped, and transposed into another one first.
    k_pack, wg_wait, annotations : accepted for TileLang's sake; the compiler decides.
    order : of E: ``"rows"``, or ``"lanes"`` as `formats.sparse.in_lanes` makes it, which a warp reads in one access.

    Examples
    --------
    >>> values, B2 = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 64), "float16")
    >>> places = T.alloc_shared((64, 8), "uint8")
    >>> T.fill(values, 1)
    >>> T.fill(B2, 1)
    >>> T.fill(places, 0x44)
    >>> T.clear(tile)
    >>> T.gemm_sp(values, places, B2, tile)
    """
    in_kernel("T.gemm_sp")
    names = ("A_sparse", "E", "B", "C")
    kept = _transposed(A_sparse) if transpose_A else A_sparse
    a, e, b, c = (
        region_of(tile, f"operand {name} of T.gemm_sp")
        for name, tile in zip(names, (kept, _bytes(E, bool(transpose_E)), B, C))
    )
    drop = condition(clear_accum) if is_symbolic(clear_accum) else bool(clear_accum)
    chosen = choice(getattr(policy, "value", policy), tuple(p.value for p in GemmWarpPolicy), "policy of T.gemm_sp")
    by = choice(order, ops.ORDERS, "order of T.gemm_sp")
    operator = ops.SparseGemm(a, e, b, c, bool(transpose_B), drop, chosen, by, span=statement_here())
    record_tiles(operator, "T.gemm_sp", A_sparse=a, E=e, B=b, C=c)


def _transposed(tile: object) -> BufferProxy:
    """A shared tile with the dimensions of another one swapped."""
    region = region_of(tile, "operand A_sparse of T.gemm_sp")
    rows, columns = matrix_shape(region)
    made: BufferProxy = alloc_shared((columns, rows), region.dtype)
    transpose(tile, made)
    return made


def _bytes(tile: object, swapped: bool) -> Any:
    """Metadata as bytes, a row of them for each row of A."""
    region = region_of(tile, "operand E of T.gemm_sp")
    size = region.dtype.bits // 8
    if region.dtype == UINT8 and not swapped:
        return tile
    if not region.dtype.is_integer or size == 0 or not isinstance(tile, BufferProxy):
        raise NumberExpected("operand E of T.gemm_sp", "a whole tile of 8, 16 or 32-bit integers", describe(tile))
    rows, columns = matrix_shape(region)
    seen: BufferProxy = view(tile, (rows, columns * size), UINT8)
    if not swapped:
        return seen
    made: BufferProxy = alloc_shared((columns, rows * size), UINT8)
    source, destination = region_of(seen, "E"), region_of(made, "E")

    def byte(row: Var, place: Var) -> list[Any]:
        word, inside = place // size, place % size
        column: Expr = row * size + inside
        return [store_element(destination, (row, place), element(source, (word, column)))]

    in_kernel("T.gemm_sp").append(parallel((columns, rows * size), byte, span=statement_here()))
    return made
