"""Layouts over the threads of a block: distributing tiles, repeating atoms over warps, and how two of them relate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.layout.constructors import CHUNK_BYTES, PATTERN_ROWS, row_major, swizzled
from tilewright.layout.digits import REGISTER, THREAD, Digit, digit, extent_of
from tilewright.layout.layout import Layout


def first_free(layout: Layout, place: str) -> int:
    """The first position of `place` behind all that `layout` uses."""
    found = [one for dimension in (*layout.digits, layout.replicas) for one in dimension if one.place == place]
    return max((one.stride * one.extent for one in found), default=1)


def repeat(layout: Layout, axis: int, count: int, place: str, stride: int | None = None) -> Layout:
    """`count` tiles side by side along `axis`, one after the other in `place` (`stride` apart where given)."""
    if count == 1:
        return layout
    step = first_free(layout, place) if stride is None else stride
    digits = list(layout.digits)
    digits[axis] = (*digits[axis], digit(count, place, step))
    return replace(layout, digits=tuple(digits))


def spread(shape: Sequence[int], threads: int, width: int, least: int = 1) -> Layout:
    """A tile distributed for coalesced access: `width` contiguous elements a thread, the next ones to the next thread.

    The last dimension goes to threads first, then the ones before it; what is left becomes registers.  Where the
    outermost dimension does not divide, or the last one leaves most threads without work, the layout covers more than
    the tile. `least` elements stay with one thread where others are left without work.
    """
    columns = shape[-1]
    if len(shape) == 1:
        width = math.gcd(width, max(least, columns // threads))
        count = -(-columns // (width * threads))
        return Layout.of([(width, REGISTER, 1), (threads, THREAD, 1), (count, REGISTER, width)])
    width = math.gcd(width, columns)
    pieces = (*shape[:-1], columns // width)
    shares = _shares(pieces, threads)
    dimensions: list[list[tuple[int, str, int]]] = []
    register, stride = width, 1
    for extent, share in zip(reversed(pieces), reversed(shares), strict=True):
        count = -(-extent // share)
        dimensions.append([(share, THREAD, stride), (count, REGISTER, register)])
        register, stride = register * count, stride * share
    dimensions[0].insert(0, (width, REGISTER, 1))
    return Layout.of(*reversed(dimensions))


def _shares(pieces: Sequence[int], threads: int) -> list[int]:
    """Threads along each dimension of a tile of pieces: divisors of the extents, and the rest along the outermost.

    Where a thread would have many pieces and over half of all threads none, because the divisors of inner dimensions
    are small, these get more threads, the last dimension first.
    """
    shares = [_across(pieces[-1], math.prod(pieces[:-1]), threads)]
    left = threads // shares[0]
    for extent in reversed(pieces[1:-1]):
        shares.insert(0, math.gcd(left, extent))
        left //= shares[0]
    shares.insert(0, left)
    for axis in reversed(range(1, len(pieces))):
        while shares[0] >= 2 * pieces[0] and shares[0] % 2 == 0 and shares[axis] < pieces[axis]:
            if math.prod(-(-extent // share) for extent, share in zip(pieces, shares, strict=True)) <= FEW_PIECES:
                return shares
            shares[0] //= 2
            shares[axis] *= 2
    return shares


FEW_PIECES = 8
"""Pieces of a row that one thread may have while others are idle: they need few registers."""


def _across(pieces: int, rows: int, threads: int) -> int:
    """Threads that share a row of so many pieces: a divisor, or more where a thread would have many and over half of
    all none."""
    dividing = math.gcd(pieces, threads)
    if pieces // dividing <= FEW_PIECES:
        return dividing
    share = 1
    while share * 2 <= pieces and threads % (share * 2) == 0 and share * 2 * rows <= threads:
        share *= 2
    return share if dividing * rows * 2 < threads and share > dividing else dividing


def shared_rows(shape: Sequence[int], bits: int, span_bytes: int | None = None) -> Layout:
    """A tile in shared memory: row-major, or swizzled in spans of 128, 64 or 32 bytes.

    Swizzled tiles are cut into columns of one span, one column after the other, whose 16-byte chunks are permuted
    by the row: what TMA writes and wgmma reads, and what eight rows of a matrix read without bank conflicts.

    Source: NVIDIA's manual of PTX, on tensors' swizzling modes and on the layouts of wgmma's operands in shared memory.
    """
    whole = row_major(shape)
    if span_bytes is None:
        return whole
    tile = swizzled(shape[-2:], bits, span_bytes)
    return replace(tile, digits=(*whole.digits[:-2], *tile.digits))


def widest_span(shape: Sequence[int], bits: int, spans: Iterable[int]) -> int | None:
    """The first of a machine's swizzle spans, in bytes, that divides the rows of a tile; None where none does.

    The height of a tile must be a multiple of the pattern, or the next tile would begin in the middle of one.
    """
    if len(shape) < 2 or CHUNK_BYTES * 8 % bits or shape[-2] % PATTERN_ROWS:
        return None
    row_bytes = shape[-1] * bits // 8
    return next((span for span in spans if row_bytes % span == 0 and shape[-1] * bits % 8 == 0), None)


@dataclass(frozen=True, slots=True)
class Pair:
    """A common digit of two layouts of one dimension: how each of them counts it."""

    extent: int
    source: Digit
    target: Digit


def relate(source: Sequence[Digit], target: Sequence[Digit]) -> list[Pair] | None:
    """The common refinement of two ways to split a dimension, least significant first; None where there is none.

    One of them may count further than the other.
    """
    pairs: list[Pair] = []
    left, right = list(reversed(source)), list(reversed(target))
    while left and right:
        a, b = left.pop(), right.pop()
        common = math.gcd(a.extent, b.extent)
        if common != min(a.extent, b.extent):
            return None
        for one, rest in ((a, left), (b, right)):
            if one.extent > common:
                rest.append(replace(one, extent=one.extent // common, stride=one.stride * common))
        pairs.append(Pair(common, replace(a, extent=common), replace(b, extent=common)))
    return pairs


def holds(owner: Layout, reader: Layout, axes: Sequence[int | None]) -> bool:
    """Whether every thread that `reader` gives an element to holds that element in `owner`.

    Parameters
    ----------
    owner : layout of a fragment.
    reader : layout of a loop.
    axes : for each dimension of `owner` the dimension of `reader` that indexes it, None for a constant 0.
    """
    for dimension, axis in enumerate(axes):
        if axis is None:
            if any(one.place == THREAD for one in owner.digits[dimension]):
                return False
            continue
        pairs = relate(reader.digits[axis], owner.digits[dimension])
        if pairs is None:
            return False
        for pair in pairs:
            threads = (pair.source.place == THREAD, pair.target.place == THREAD)
            if threads == (True, True) and pair.source.stride != pair.target.stride:
                return False
            if threads == (False, True):
                return False
            if threads == (True, False):
                return False
        covered = extent_of(pair.source for pair in pairs)
        if any(one.place == THREAD for one in _above(reader.digits[axis], covered)) or any(
            one.place == THREAD for one in _above(owner.digits[dimension], covered)
        ):
            return False
    free = [
        one for axis, digits in enumerate(reader.digits) if axis not in axes for one in digits if one.place == THREAD
    ]
    used = [one for one in (*free, *reader.replicas) if one.place == THREAD]
    held = [one for one in owner.replicas if one.place == THREAD]
    return not used or used == held or _reached(used) <= _reached(held)


def _above(digits: Sequence[Digit], covered: int) -> list[Digit]:
    """What is left of `digits` above the first `covered` values."""
    left = []
    reached = 1
    for one in digits:
        if reached >= covered:
            left.append(one)
        elif reached * one.extent > covered:
            left.append(replace(one, extent=reached * one.extent // covered))
        reached *= one.extent
    return left


def _reached(digits: Sequence[Digit]) -> set[int]:
    """All values of the digits."""
    found = {0}
    for one in digits:
        found = {value + step * one.stride for value in found for step in range(one.extent)}
    return found


def register_of(owner: Layout, reader: Layout, axes: Sequence[int | None]) -> list[tuple[int, int, int]]:
    """The register of `owner` that a register of `reader` reads: terms ``(divisor, modulus, stride)`` to add.

    With register number r of `reader`, the result is the sum of ``r // divisor % modulus * stride``.  Only where
    `holds` is true.
    """
    terms: list[tuple[int, int, int]] = []
    for dimension, axis in enumerate(axes):
        if axis is None:
            continue
        for pair in relate(reader.digits[axis], owner.digits[dimension]) or []:
            if pair.target.place == REGISTER and pair.source.place == REGISTER and pair.extent > 1:
                terms.append((pair.source.stride, pair.extent, pair.target.stride))
    return _joined(terms)


def _joined(terms: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Neighbouring digits that step alike become one term."""
    result: list[tuple[int, int, int]] = []
    for divisor, modulus, stride in sorted(terms):
        if result:
            before = result[-1]
            if before[0] * before[1] == divisor and before[2] * before[1] == stride:
                result[-1] = (before[0], before[1] * modulus, before[2])
                continue
        result.append((divisor, modulus, stride))
    return result
