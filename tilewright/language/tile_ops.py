"""Tile operators as authors call them: each records one statement of `ops/`, after its own check."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Any

from tilewright import ops
from tilewright.errors import near
from tilewright.ir import nodes as ir
from tilewright.ir.structure import conjunction
from tilewright.language.branches import is_symbolic
from tilewright.language.buffers import region_of
from tilewright.language.mistakes import NumberExpected, OperatorMismatch, SymbolicExtent
from tilewright.language.pairs import pair
from tilewright.language.proxies import Element, Variable, as_expr, check_scope, condition, constant, describe
from tilewright.language.recording import (
    check_tile_place,
    in_kernel,
    record,
    record_operator,
    settled,
    statement_here,
    word,
)
from tilewright.language.vectors import VectorVariable
from tilewright.ops.base import element, parallel, static_extents, store_element

EVICTIONS = ("evict_first", "evict_last", "evict_normal")
"""Hints to the L2 cache."""


class GemmWarpPolicy(str, enum.Enum):
    """How the warps of a block share the result of `gemm`."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"

    def is_square(self) -> bool:
        """Whether warps share rows and columns."""
        return self is GemmWarpPolicy.Square

    def is_full_row(self) -> bool:
        """Whether each warp has rows of its own."""
        return self is GemmWarpPolicy.FullRow

    def is_full_col(self) -> bool:
        """Whether each warp has columns of its own."""
        return self is GemmWarpPolicy.FullCol

    @classmethod
    def from_warp_partition(cls, m_warp: int, n_warp: int) -> GemmWarpPolicy:
        """The policy by which `m_warp` times `n_warp` warps share a result."""
        if m_warp == n_warp or min(m_warp, n_warp) > 1:
            return cls.Square
        return cls.FullCol if m_warp == 1 else cls.FullRow


def record_tiles(operator: ir.TileOperator, what: str, **regions: ir.Region | None) -> None:
    """Record an operator whose tiles must have known extents; what sets or moves any number of elements of tensors and
    shared tiles is a loop of `T.Parallel`."""
    open_ended = next((one for one in regions.items() if one[1] is not None and static_extents(one[1]) is None), None)
    if open_ended is None:
        record_operator(operator, what)
        return
    name, region = open_ended
    assert region is not None
    memory = all(one is None or one.buffer.scope in ("global", "shared") for one in regions.values())
    plain = isinstance(operator, ops.Copy) and operator.rank is None and not operator.by_hand and operator.token is None
    if not memory or not (plain or isinstance(operator, ops.Fill)):
        raise SymbolicExtent(what, name, region.buffer.name)
    for problem in operator.check():
        raise OperatorMismatch(what, problem)
    check_tile_place(in_kernel(what), what)
    record(settled(operator, what).lower())


def choice(value: object, known: tuple[str, ...], what: str) -> Any:
    """A word that must be one of a few, or None."""
    if value is not None and value not in known:
        hint = near(str(value), known)
        raise NumberExpected(
            what, "one of " + ", ".join(map(repr, known)) + (f" ({hint})" if hint else ""), repr(value)
        )
    return value


def hints(
    what: str, prefer: str | None, eviction_policy: object, coalesced_width: object = None, l2_prefetch: object = None
) -> ops.CopySchedule:
    """What the author of a copy says of how it is made, checked."""
    eviction = choice(eviction_policy, EVICTIONS, f"eviction_policy of {what}")
    width = None if coalesced_width is None else constant(coalesced_width, f"coalesced_width of {what}")
    count = None if l2_prefetch is None else constant(l2_prefetch, f"l2_prefetch of {what}")
    if count is not None and (count not in (64, 128, 256) or eviction is not None):
        raise NumberExpected(f"l2_prefetch of {what}", "64, 128 or 256, without eviction_policy", str(count))
    return ops.CopySchedule(width, prefer, eviction, prefetch=count)


@word
def copy(
    src: object,
    dst: object,
    *,
    coalesced_width: object = None,
    disable_tma: bool = False,
    eviction_policy: object = None,
    prefer_instruction: object = None,
    multicast: bool = False,
    rank: object = None,
    l2_prefetch: object = None,
    annotations: object = None,
    loop_layout: object = None,
) -> None:
    """Copy a tile from any memory to any other, converting its dtype.

    Parameters
    ----------
    annotations : accepted for TileLang's sake.
    src, dst : a buffer (all of it), a slice ``A[i:i + 64, 0:32]``, or an element ``A[i, j]``: the head of a region
        as large as the other operand, whose missing leading extents are 1.  Of two elements, one assignment.  Of a
        slice that is larger than a whole tile, as much as the tile has, from the slice's start on.  A slice that ends
        at a number of the program, ``A[i : T.min(i + 64, n)]``, or at the tensor's end, ``A[i, :]``, against a tile:
        behind its end the tile gets zeros, and the tensor is left as it is.
    coalesced_width : elements that a thread moves at once.
    disable_tma : threads move the tile, not the copy engine.
    eviction_policy : ``"evict_first"``, ``"evict_last"`` or ``"evict_normal"``, a hint to the L2 cache.
    prefer_instruction : ``"tma"``, ``"cp_async"`` or ``"sync"``.
    l2_prefetch : 64, 128 or 256 bytes that the L2 cache is advised to fetch around what cp.async copies; no policy with
        it.
    multicast : all blocks of the cluster execute the same copy into a channel of scope ``"cluster"``; each loads a part
        of it and multicasts it to all.
    rank : the block of the cluster whose shared tile `src` is; between `sync_cluster` before and after.
    loop_layout : a `T.Fragment` that says which thread moves which element, by plain loads and stores.

    Examples
    --------
    >>> T.copy(A[0, 0], shared)
    >>> T.copy(shared, tile)
    >>> T.copy(tile, C[0, 0])
    """
    builder = in_kernel("T.copy")
    if isinstance(src, (Element, Variable)) and isinstance(dst, (Element, Variable)) and rank is None:
        _assign(src, dst)
        return
    source, destination = pair(src, dst, "T.copy")
    prefer = choice(prefer_instruction, ("tma", "cp_async", "sync"), "prefer_instruction of T.copy")
    by = prefer or (ops.THREADS if disable_tma else None)
    schedule = hints("T.copy", by, eviction_policy, coalesced_width, l2_prefetch)
    block = None if rank is None else as_expr(rank, ir.dtypes.INT32, "the rank of T.copy")
    schedule = replace(schedule, multicast=bool(multicast))
    operator = settled(ops.Copy(source, destination, schedule, block, span=statement_here()), "T.copy")
    source, destination = operator.source, operator.destination
    cut = None if rank is not None or multicast else _cut(source, destination)
    if cut is not None:
        builder.append(cut)
        return
    record_tiles(operator, "T.copy", source=source, destination=destination)
    if loop_layout is not None:
        builder.frame.statements[-1] = _by_layout(operator, loop_layout)


def _cut(source: ir.Region, destination: ir.Region) -> ir.Parallel | None:
    """A copy between a tile and a slice whose end is a number of the program, as a loop over the tile: elements behind
    the slice's end are 0 in the tile, and stay what they are in the tensor."""
    reads = not ir.known(source.extents)
    part, tile = (source, destination) if reads else (destination, source)
    ends, shape = part.tile_shape, tile.tile_shape
    if ir.known(part.extents) or not ir.known(shape) or len(ends) != len(shape):
        return None
    if any(isinstance(end, int) and end != size for end, size in zip(ends, shape)):
        return None
    sizes = iter(shape)
    whole = replace(part, extents=tuple(1 if ir.is_literal(size, 1) else next(sizes) for size in part.extents))

    def move(*at: ir.Expr) -> ir.Statement:
        inside = conjunction([ir.binary("lt", index, end) for index, end in zip(at, ends) if isinstance(end, ir.Expr)])
        if not reads:
            moved = store_element(whole, at, element(source, at))
            return ir.If(inside, ir.Seq((moved,)), span=statement_here())
        behind = ir.const(0, source.dtype)
        return store_element(destination, at, ir.Select(source.dtype, inside, element(whole, at), behind))

    return parallel(shape, move, span=statement_here())


def _assign(source: Element | Variable, destination: Element | Variable) -> None:
    """``destination = source`` for single elements, by every thread that comes there."""
    buffer = destination.buffer
    check_scope(destination.frame)
    value = ir.cast(as_expr(source), buffer.dtype)
    record(ir.Store(buffer, destination.indices, value, span=statement_here()))


def _by_layout(operator: ops.Copy, layout: object) -> ir.Statement:
    """The copy as the loop that its author distributes over threads."""
    loop, given = operator.lower(), getattr(layout, "layout", layout)
    shape = getattr(given, "shape", None)
    if not isinstance(loop, ir.Parallel) or shape is None or tuple(shape) != loop.extents or operator.rank is not None:
        extents, found = getattr(loop, "extents", ()), describe(layout) if shape is None else f"one of {tuple(shape)}"
        raise NumberExpected("loop_layout of T.copy", f"a T.Fragment of shape {extents}", found)
    return replace(loop, layout=given, coalesced_width=operator.schedule.coalesced_width)


@word
def fill(buffer: object, value: object, annotations: object = None) -> None:
    """Set every element of a tile or a slice, or a `T.alloc_var`, to one value.

    Parameters
    ----------
    buffer : a tile, a slice of one, a tensor or a variable.
    value : a scalar, converted to the tile's dtype.
    annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> T.fill(tile, 1.5)
    """
    _set(buffer, value, "T.fill")


@word
def clear(buffer: object, annotations: object = None) -> None:
    """Set every element of a tile or a slice, or a `T.alloc_var`, to zero.

    Parameters
    ----------
    buffer : a tile, a slice of one, a tensor or a variable.
    annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> T.clear(tile)
    """
    _set(buffer, 0, "T.clear")


def _set(buffer: object, value: object, what: str) -> None:
    in_kernel(what)
    if isinstance(buffer, Variable):
        buffer[0] = value
        return
    if isinstance(buffer, VectorVariable):
        buffer.store(value)
        return
    destination = region_of(buffer, f"what {what} sets")
    operator = ops.Fill(destination, as_expr(value, destination.dtype, f"the value of {what}"), span=statement_here())
    record_tiles(operator, what, destination=destination)


@word
def gemm(
    A: object,
    B: object,
    C: object,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: object = GemmWarpPolicy.Square,
    clear_accum: object = False,
    mbar: object = None,
    annotations: object = None,
    *,
    k_pack: int = 1,
    wg_wait: int = 0,
    scale_A: object = None,
    scale_B: object = None,
    shift: object = None,
    groups: object = None,
    promote_every: object = None,
    shift_B: object = None,
) -> None:
    """``C += A @ B`` on tiles.

    Parameters
    ----------
    transpose_A, transpose_B : whether the operand is stored transposed.
    annotations : accepted for TileLang's sake.
    A : ``(M, K)``, or ``(K, M)`` with `transpose_A`; shared or fragment.
    B : ``(K, N)``, or ``(N, K)`` with `transpose_B`.
    C : ``(M, N)``, the accumulator, a fragment.
    policy : how the warps share C.
    clear_accum : drop the old C: a bool, or a condition.
    scale_A, scale_B : scales of blocks of A and B.
    shift : one element for each row of A: ``C += (A @ B + shift) * scales``, with scales that are the same for all of
        K.
    groups : into how many equal parts K is cut; scales and the shift have a line for each then, ``[groups, N]`` or
        ``[groups, M]``.
    shift_B : one factor of the shift for each column of B, such as zero points:
        ``C += (A @ B + shift * shift_B) * scales``.
    promote_every : elements of K after which the matrix unit's sum is added to C in full precision.
    k_pack, wg_wait : accepted for TileLang's sake; the compiler decides.
    mbar : must be None: only products in tensor memory (tcgen05) signal barriers.

    Examples
    --------
    >>> T.copy(A, shared)
    >>> T.copy(B, other)
    >>> T.clear(tile)
    >>> T.gemm(shared, other, tile)
    """
    in_kernel("T.gemm")
    if mbar is not None:
        raise NumberExpected("mbar of T.gemm", "None: the compiler waits for products", describe(mbar))
    a, b, c = (region_of(tile, f"operand {name} of T.gemm") for name, tile in (("A", A), ("B", B), ("C", C)))
    scale_a = None if scale_A is None else region_of(scale_A, "scale_A of T.gemm")
    scale_b = None if scale_B is None else region_of(scale_B, "scale_B of T.gemm")
    added = None if shift is None else region_of(shift, "shift of T.gemm")
    added_b = None if shift_B is None else region_of(shift_B, "shift_B of T.gemm")
    every = None if promote_every is None else constant(promote_every, "promote_every of T.gemm")
    parts = None if groups is None else constant(groups, "groups of T.gemm")
    drop = condition(clear_accum) if is_symbolic(clear_accum) else bool(clear_accum)
    chosen = choice(getattr(policy, "value", policy), tuple(p.value for p in GemmWarpPolicy), "policy of T.gemm")
    how = bool(transpose_A), bool(transpose_B), drop, chosen
    operator = ops.Gemm(a, b, c, *how, scale_a, scale_b, every, added, parts, added_b, span=statement_here())
    record_tiles(operator, "T.gemm", A=a, B=b, C=c)


@word
def transpose(src: object, dst: object, annotations: object = None) -> None:
    """``dst[..., j, i] = src[..., i, j]``: the last two dimensions change places.

    Parameters
    ----------
    src, dst : tiles; the last two extents of one are those of the other, swapped.
    annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> T.copy(A, shared)
    >>> T.transpose(shared, tile)
    """
    builder = in_kernel("T.transpose")
    source, destination = region_of(src, "the source of T.transpose"), region_of(dst, "the destination of T.transpose")
    shape, transposed = tuple(destination.extents), (*source.extents[:-2], *source.extents[:-3:-1])
    if _is_batch(source) and len(shape) == len(transposed):
        if shape != transposed:
            raise NumberExpected("the destination of T.transpose", f"shape {transposed}", str(shape))
        builder.append(
            parallel(
                shape,
                lambda *at: store_element(destination, at, element(source, (*at[:-2], at[-1], at[-2]))),
                span=statement_here(),
            )
        )
        return
    operator = ops.Transpose(source, destination, span=statement_here())
    record_tiles(operator, "T.transpose", source=source, destination=destination)


def _is_batch(tile: ir.Region) -> bool:
    """Whether there is more than one matrix in a tile."""
    return all(isinstance(one, int) for one in tile.extents) and any(one != 1 for one in tile.extents[:-2])


@word
def evaluate(value: object) -> None:
    """An expression as a statement: nothing happens unless it calls something for its effect.

    Parameters
    ----------
    value : an expression.

    Examples
    --------
    >>> T.evaluate(n + 1)
    """
    if value is not None:
        as_expr(value, what="the argument of T.evaluate")
