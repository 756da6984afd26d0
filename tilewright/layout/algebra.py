"""The algebra of layouts: invert, expand by stages, divide by an atom, multiply, replicate, reduce."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.layout.digits import MEMORY, NOTHING, REGISTER, THREAD, Digit, extent_of, merged, split_at, weighted
from tilewright.layout.layout import Layout
from tilewright.layout.tables import AnyLayout, TableLayout, from_tables


def product(outer: Layout, atom: Layout) -> Layout:
    """`atom` repeated as `outer` says: element ``i`` lies in atom ``outer(i // atom.shape)``, at
    ``atom(i % atom.shape)``.

    The places of `outer` count whole atoms.  This is how an instruction's fragment tiles a warp's tile, and a
    warp's tile the block's.
    """
    if outer.rank != atom.rank:
        raise InvalidLayout(f"a product of layouts of rank {outer.rank} and {atom.rank}")
    if outer.swizzle is not None:
        raise InvalidLayout("the outer layout of a product is swizzled", hint="swizzle the product")
    steps = {place: atom.extent(place) for place in (THREAD, REGISTER, MEMORY)}

    def scaled(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(replace(one, stride=one.stride * steps.get(one.place, 0)) for one in digits)

    return Layout(
        tuple((*low, *scaled(high)) for low, high in zip(atom.digits, outer.digits)),
        (*atom.replicas, *scaled(outer.replicas)),
        (*atom.partials, *scaled(outer.partials)),
        atom.swizzle,
    )


def divide(layout: Layout, atom: Layout) -> Layout | None:
    """The outer layout for which ``product(outer, atom) == layout``, or None where `layout` does not consist of
    atoms."""
    if layout.rank != atom.rank or layout.swizzle != atom.swizzle:
        return None
    steps = {place: atom.extent(place) for place in (THREAD, REGISTER, MEMORY)}
    dimensions = []
    for whole, part in zip(layout.digits, atom.digits):
        parts = split_at(whole, extent_of(part))
        if parts is None or parts[0] != part:
            return None
        dimensions.append(parts[1])
    rests = [_without(layout.replicas, atom.replicas), _without(layout.partials, atom.partials)]
    if any(rest is None for rest in rests):
        return None
    outer = []
    for digits in (*dimensions, *rests):
        if digits is None or any(one.place != NOTHING and one.stride % steps[one.place] for one in digits):
            return None
        outer.append(tuple(replace(one, stride=one.stride // steps.get(one.place, 1)) for one in digits))
    found = Layout(tuple(outer[:-2]), outer[-2], outer[-1])
    return found if product(found, atom) == layout else None


def _without(whole: Sequence[Digit], part: Sequence[Digit]) -> tuple[Digit, ...] | None:
    """The digits of `whole` beyond those of `part`, of which an atom's may be the low part of a longer one."""
    rest = list(whole)
    for one in part:
        for index, candidate in enumerate(rest):
            same_start = candidate.place == one.place and candidate.stride == one.stride
            if same_start and candidate.extent % one.extent == 0:
                above = Digit(candidate.extent // one.extent, one.place, one.stride * one.extent)
                rest[index : index + 1] = [above] if above.extent > 1 else []
                break
        else:
            return None
    return tuple(rest)


def expand(layout: AnyLayout, stages: int, alignment: int = 1) -> AnyLayout:
    """`layout` with a leading dimension of `stages` copies, one after another in memory (or in registers).

    Parameters
    ----------
    alignment : elements that each stage starts at a multiple of.  Swizzled stages start at a multiple of the
        swizzle's period in any case, so that the pattern is the same in each.
    """
    place = MEMORY if MEMORY in layout.places or not layout.places else REGISTER
    if isinstance(layout, TableLayout):
        stride = -(-layout.extent(place) // alignment) * alignment
        staged = {at: np.repeat(layout.table(at)[None], stages, axis=0) for at in layout.places}
        steps = np.arange(stages).reshape(-1, *(1,) * layout.rank) * stride
        staged[place] = staged.get(place, np.zeros((stages, *layout.shape), np.int64)) + steps
        return from_tables((stages, *layout.shape), staged, layout.replicas)
    if place == MEMORY and layout.swizzle is not None:
        alignment = math.lcm(alignment, layout.swizzle.period)
    stride = -(-layout.extent(place) // alignment) * alignment
    return replace(layout, digits=((Digit(stages, place, stride),), *layout.digits))


def viewed(layout: Layout, bits: int, shape: Sequence[int], view_bits: int) -> Layout | None:
    """Where the elements of a view lie whose row-major order is that of `layout`'s tile; None where no digits say so.

    Parameters
    ----------
    bits, view_bits : of an element of the tile, and of the view.
    shape : of the view, which may end before the tile does.
    """
    wider, narrower = max(view_bits // bits, 1), max(bits // view_bits, 1)
    digits = [one for dimension in reversed(layout.digits) for one in dimension]
    if bits * wider != view_bits * narrower or any(one.place != MEMORY for one in digits):
        return None
    parts = split_at(digits, wider)
    if parts is None or (extent_of(parts[0]) > 1 and parts[0] != (Digit(wider, MEMORY, 1),)):
        return None
    if any(one.stride % wider for one in parts[1]):
        return None
    above = [Digit(one.extent, MEMORY, one.stride // wider * narrower) for one in parts[1]]
    rest: tuple[Digit, ...] = merged([Digit(narrower, MEMORY, 1), *above])
    dimensions: list[tuple[Digit, ...]] = []
    for extent in reversed(shape):
        cut = split_at(rest, extent)
        if cut is None:
            return None
        dimensions.insert(0, cut[0])
        rest = cut[1]
    swizzle = layout.swizzle
    if swizzle is not None:
        base = swizzle.base + (narrower.bit_length() - 1) - (wider.bit_length() - 1)
        ratio = wider * narrower
        if base < 0 or ratio & (ratio - 1):
            return None
        swizzle = replace(swizzle, base=base)
    return Layout(tuple(dimensions), swizzle=swizzle)


def replicate(layout: Layout, count: int, place: str = THREAD, stride: int | None = None) -> Layout:
    """`layout` held `count` times; by default by the threads (or registers) that follow those in use."""
    step = layout.extent(place) if stride is None else stride
    return replace(layout, replicas=(*layout.replicas, Digit(count, place, step)))


def partial(layout: Layout, count: int, place: str = THREAD, stride: int | None = None) -> Layout:
    """`layout` of which `count` places (by default threads that follow those in use) hold summands each."""
    step = layout.extent(place) if stride is None else stride
    return replace(layout, partials=(*layout.partials, Digit(count, place, step)))


def summed(layout: Layout) -> Layout:
    """What a layout of partial sums becomes once they are added: every thread that held a part holds the sum."""
    return replace(layout, replicas=(*layout.replicas, *layout.partials), partials=())


def reduced(layout: Layout, dimension: int, keep: bool = False) -> Layout:
    """The fragment of a tile reduced along a dimension: the threads that shared the work all hold the result.

    Registers are numbered anew without holes.  With `keep` the dimension stays, of extent one.
    """
    threads = [one for one in layout.digits[dimension] if one.place == THREAD]
    kept = [() if at == dimension else digits for at, digits in enumerate(layout.digits)]
    if not keep:
        del kept[dimension]
    return compacted(replace(layout, digits=tuple(kept), replicas=(*layout.replicas, *threads)), REGISTER)


def broadcast(layout: Layout, dimension: int, extent: int) -> Layout:
    """`layout` with one more dimension at `dimension` that does not matter: its elements share their locations."""
    digits = list(layout.digits)
    digits.insert(dimension, (Digit(extent, NOTHING, 0),))
    return replace(layout, digits=tuple(digits))


def permuted(layout: Layout, order: Sequence[int | None]) -> Layout:
    """Dimensions in another order, as `numpy.transpose` orders them; None stands for a new one of extent 1."""
    return replace(layout, digits=tuple(() if axis is None else layout.digits[axis] for axis in order))


def compacted(layout: Layout, place: str = REGISTER) -> Layout:
    """`layout` with the steps of a place renumbered in their order, so that no number is skipped."""
    used = sorted({one.stride for one in layout._all_digits() if one.place == place})
    extents = {one.stride: one.extent for one in layout._all_digits() if one.place == place}
    strides, reached = {}, 1
    for stride in used:
        strides[stride] = reached
        reached *= extents[stride]

    def renumbered(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(replace(one, stride=strides[one.stride]) if one.place == place else one for one in digits)

    return replace(
        layout,
        digits=tuple(map(renumbered, layout.digits)),
        replicas=renumbered(layout.replicas),
        partials=renumbered(layout.partials),
    )


def invert(layout: Layout) -> Layout:
    """From locations to elements: a layout of shape (extents of the places) whose memory is the row-major element.

    Only for bijective layouts without replicas, partials or a swizzle; dimensions come in the order of
    its ``places``.
    """
    if layout.replicas or layout.partials or layout.swizzle is not None or not layout.is_bijective:
        raise InvalidLayout(f"{layout} has no inverse layout", hint="ask `coordinates` for the element at a location")
    by_place: dict[str, list[tuple[int, Digit]]] = {place: [] for place in layout.places}
    stride = 1
    for dimension in reversed(layout.digits):
        for one, weight in weighted(dimension):
            by_place[one.place].append((one.stride, Digit(one.extent, MEMORY, weight * stride)))
        stride *= extent_of(dimension)
    ordered = (sorted(found, key=lambda pair: pair[0]) for found in by_place.values())
    return Layout(tuple(tuple(one for _, one in found) for found in ordered))
