"""`Layout`: where every element of a tile lives, as one small value.

Each dimension of the tile is split into digits, and each digit counts threads, registers, elements of a memory,
or nothing.  A location is the sum of what its digits count; locations in memory may be swizzled.  *Replicas* are
digits of the thread (or register) number that no coordinate decides: every value of them holds a copy.  *Partials*
are such digits whose values hold summands of the element instead, to be added before it is read.
"""

from __future__ import annotations

import ast
import functools
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir import Expr, Extent, const, expr, register_literal
from tilewright.layout.digits import (
    MEMORY,
    NOTHING,
    PLACES,
    REGISTER,
    THREAD,
    Digit,
    Swizzle,
    digit,
    extent_of,
    merged,
    parse_digits,
    sorted_by_stride,
    text_of,
    weighted,
)

_PRINTED = "as a layout prints itself: layout(shape=(16, 8), digits=('8:t4 2:r2', '2:r1 4:t1'))"


@dataclass(frozen=True, slots=True)
class Layout:
    """A tile's layout; equal layouts put every element in the same places.

    Attributes
    ----------
    digits : for each dimension its digits, least significant first, in canonical form.
    replicas : digits of places over whose values every element is repeated.
    partials : digits of places whose values hold parts of the sum that an element is.
    swizzle : of offsets in memory, or None.

    Raises
    ------
    InvalidLayout : digits that name no place or have no values.
    """

    digits: tuple[tuple[Digit, ...], ...]
    replicas: tuple[Digit, ...] = ()
    partials: tuple[Digit, ...] = ()
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "digits", tuple(_with_extent(dimension) for dimension in self.digits))
        object.__setattr__(self, "replicas", sorted_by_stride(self.replicas))
        object.__setattr__(self, "partials", sorted_by_stride(self.partials))
        for free in (*self.replicas, *self.partials):
            if free.place == NOTHING:
                raise InvalidLayout("a replica or partial digit counts nothing", hint="give it a place and a stride")
        swizzle = self.swizzle
        if swizzle is not None and (self._reach(MEMORY) - 1) >> (swizzle.base + swizzle.shift) == 0:
            object.__setattr__(self, "swizzle", None)  # no offset is high enough to be moved

    # What it is -------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return tuple(extent_of(dimension) for dimension in self.digits)

    @property
    def rank(self) -> int:
        return len(self.digits)

    @property
    def size(self) -> int:
        """Elements of the tile."""
        return math.prod(self.shape)

    @property
    def places(self) -> tuple[str, ...]:
        """The places that some digit counts, in the order of `PLACES`."""
        used = {one.place for one in self._all_digits()}
        return tuple(place for place in PLACES if place in used)

    def _all_digits(self) -> Iterable[Digit]:
        for dimension in self.digits:
            yield from dimension
        yield from self.replicas
        yield from self.partials

    def _reach(self, place: str) -> int:
        return 1 + sum((one.extent - 1) * one.stride for one in self._all_digits() if one.place == place)

    def extent(self, place: str) -> int:
        """How many threads, registers or memory elements it takes: one more than the highest used."""
        reach = self._reach(place)
        if place != MEMORY or self.swizzle is None:
            return reach
        span = 1 << (self.swizzle.base + self.swizzle.bits)  # swizzling permutes within such runs
        return -(-reach // span) * span

    @property
    def replication(self) -> int:
        """How many copies of each element there are."""
        return extent_of(self.replicas)

    # Where elements are -----------------------------------------------------------------------

    def offset(self, place: str, *coordinates: Any) -> Any:  # of the coordinates' kind
        """The thread, register or memory offset of an element (the first copy, the first part).

        Coordinates are ints or integer arrays that broadcast; the result is of their kind.
        """
        self._check_rank(coordinates)
        total: Any = 0
        for coordinate, dimension in zip(coordinates, self.digits):
            for one, weight in weighted(dimension):
                if one.place == place:
                    total = total + coordinate // weight % one.extent * one.stride
        return self.swizzle(total) if self.swizzle is not None and place == MEMORY else total

    def locate(self, *coordinates: object) -> dict[str, Any]:  # of the coordinates' kind
        """What `offset` gives for every place in use."""
        return {place: self.offset(place, *coordinates) for place in self.places}

    def table(self, place: str) -> np.ndarray:
        """`offset` at every coordinate: an int64 array of the tile's shape."""
        axes = np.indices(self.shape, dtype=np.int64, sparse=True)
        return np.array(np.broadcast_to(self.offset(place, *axes), self.shape), dtype=np.int64)

    def permutation(self) -> np.ndarray:
        """Memory offset of every element: ``packed[layout.permutation()] = array`` packs."""
        return self.table(MEMORY)

    def index(self, coordinates: Sequence[Extent]) -> dict[str, Expr]:
        """The places of the element at `coordinates`, as index expressions."""
        return {place: self.expression(place, coordinates) for place in self.places}

    def expression(self, place: str, coordinates: Sequence[Extent]) -> Expr:
        """The thread, register or memory offset of the element at `coordinates`, as an index expression."""
        self._check_rank(coordinates)
        total: Expr = const(0)
        for coordinate, dimension in zip(coordinates, self.digits):
            extent = extent_of(dimension)
            for one, weight in weighted(dimension):
                if one.place != place:
                    continue
                value = expr(coordinate) // weight
                if weight * one.extent < extent:
                    value = value % one.extent
                total = total + value * one.stride
        return self.swizzle.expression(total) if self.swizzle is not None and place == MEMORY else total

    def _check_rank(self, coordinates: Sequence[object]) -> None:
        if len(coordinates) != self.rank:
            raise InvalidLayout(f"{len(coordinates)} coordinates for a layout of rank {self.rank}")

    # What lies somewhere ----------------------------------------------------------------------

    @property
    def is_injective(self) -> bool:
        """Whether no two elements (or copies, or parts) share a location."""
        return _locations(self)[1]

    @property
    def is_bijective(self) -> bool:
        """Whether every location up to its extents holds exactly one element, one copy or one part."""
        count, injective = _locations(self)
        return injective and count == math.prod(self.extent(place) for place in self.places)

    def coordinates(self, **locations: object) -> tuple[Any, ...]:  # of the locations' kind
        """The element at a location, given for each place in use as ints or integer arrays.

        Only for injective layouts, and locations that hold an element.
        """
        return tuple(self._coordinates(locations, _IntegerMath))

    def coordinate_expressions(self, **locations: Extent) -> tuple[Expr, ...]:
        """`coordinates` as index expressions."""
        return tuple(self._coordinates({place: expr(value) for place, value in locations.items()}, _ExpressionMath))

    def held_at(self, thread: Extent, register: Extent) -> tuple[Expr, ...]:
        """The element that a thread holds in a register, where elements are in both, or in one of them alone."""
        locations = {THREAD: thread, REGISTER: register}
        return self.coordinate_expressions(**{place: locations[place] for place in self.places})

    def _coordinates(self, locations: Mapping[str, Any], math_of: Any) -> list[Any]:
        if set(locations) != set(self.places):
            raise InvalidLayout(f"a location in {self} needs {', '.join(self.places)}, not {', '.join(locations)}")
        if self.swizzle is not None:
            locations = {**locations, MEMORY: math_of.swizzled(self.swizzle, locations[MEMORY])}
        above = _next_strides(self)
        found = []
        for dimension in self.digits:
            total: Any = math_of.zero
            for one, weight in weighted(dimension):
                if one.place != NOTHING:
                    value = math_of.digit(locations[one.place], above[one.place, one.stride], one)
                    total = math_of.add(total, value, weight)
            found.append(total)
        return found

    # Text -------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """One line of Python that `parse` reads back: ``layout(shape=(16, 8), digits=('8:t4 2:r2', '2:r1 4:t1'))``."""
        parts = [f"shape={self.shape}", f"digits={tuple(map(text_of, self.digits))}"]
        for name, free in (("replicas", self.replicas), ("partials", self.partials)):
            if free:
                parts.append(f"{name}={text_of(free)!r}")
        if self.swizzle is not None:
            parts.append(f"swizzle={(self.swizzle.bits, self.swizzle.base, self.swizzle.shift)}")
        return f"layout({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """For notebooks: the text, and where the first 16 x 16 elements of the last two dimensions live."""
        rows, columns = (1, 1, *self.shape)[-2:]
        cells = ""
        for row in range(min(rows, 16)):
            places = [
                self.locate(*(*(0,) * self.rank, row, column)[-self.rank :]) for column in range(min(columns, 16))
            ]
            cells += "<tr>" + "".join(f"<td>{_place(place)}</td>" for place in places) + "</tr>"
        return f"<code>{html.escape(str(self))}</code><table>{cells}</table>"

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that a text of `str` denotes.

        Raises
        ------
        InvalidLayout : text that denotes none.
        """
        try:
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "layout" or call.args:
                raise ValueError(_PRINTED)
            fields = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            shape, digits = fields.pop("shape"), fields.pop("digits")
            swizzle = fields.pop("swizzle", None)
            free = {name: parse_digits(fields.pop(name, "")) for name in ("replicas", "partials")}
            made = Layout(tuple(map(parse_digits, digits)), **free, swizzle=Swizzle(*swizzle) if swizzle else None)
        except (SyntaxError, TypeError, KeyError):
            raise InvalidLayout(f"not a layout: {text}", hint=_PRINTED) from None
        except ValueError as error:
            raise InvalidLayout(f"not a layout: {text}", hint=str(error)) from None
        if fields or made.shape != tuple(shape):
            raise InvalidLayout(f"not a layout: {text}", hint=f"the digits cover {made.shape}")
        return made

    # Small changes ----------------------------------------------------------------------------

    @staticmethod
    def of(*dimensions: Iterable[tuple[int, str, int]], **others: Any) -> Layout:  # fields of the class
        """A layout from ``(extent, place, stride)`` of each digit, dimension by dimension, least significant first."""
        return Layout(tuple(tuple(digit(*one) for one in dimension) for dimension in dimensions), **others)


def _with_extent(dimension: Iterable[Digit]) -> tuple[Digit, ...]:
    return merged(digit(one.extent, one.place, one.stride) for one in dimension)


def _place(location: Mapping[str, object]) -> str:
    """``t3 r1``, as digits print themselves."""
    return html.escape(" ".join(f"{place}{number}" for place, number in location.items()))


class _IntegerMath:
    """`Layout.coordinates` on ints and arrays."""

    zero: int | Expr = 0

    @staticmethod
    def swizzled(swizzle: Swizzle, offset: object) -> Any:
        return swizzle(offset)

    @staticmethod
    def digit(location: Any, above: int | None, one: Digit) -> Any:
        return (location if above is None else location % above) // one.stride

    @staticmethod
    def add(total: Any, value: Any, weight: int) -> Any:
        return total + value * weight


class _ExpressionMath(_IntegerMath):
    """`Layout.coordinates` on index expressions."""

    zero = const(0)

    @staticmethod
    def swizzled(swizzle: Swizzle, offset: object) -> Expr:
        assert isinstance(offset, Expr)
        return swizzle.expression(offset)


@functools.lru_cache(maxsize=1024)
def _next_strides(layout: Layout) -> dict[tuple[str, int], int | None]:
    """For each place and stride the next larger stride there, None above the largest.

    Raises InvalidLayout where digits overlap, so that a location does not tell its digits.
    """
    found: dict[tuple[str, int], int | None] = {}
    for place in layout.places:
        digits = sorted((one for one in layout._all_digits() if one.place == place), key=lambda one: one.stride)
        reach = 0
        for one, following in zip(digits, [*digits[1:], None]):
            reach += (one.extent - 1) * one.stride
            if following is not None and following.stride <= reach:
                raise InvalidLayout(f"{place} digits of {layout} overlap, so it has no inverse")
            found[place, one.stride] = None if following is None else following.stride
    return found


@functools.lru_cache(maxsize=1024)
def _locations(layout: Layout) -> tuple[int, bool]:
    """How many locations the elements, their copies and parts take, and whether all of them differ."""
    whole = Layout((*layout.digits, layout.replicas, layout.partials), swizzle=layout.swizzle)
    try:
        apart = NOTHING not in {one.place for one in whole._all_digits() if one.extent > 1} and bool(
            _next_strides(whole)
        )
    except InvalidLayout:
        apart = False
    if apart:
        return whole.size, True
    combined = np.zeros(whole.shape, np.int64)
    for place in whole.places:
        combined = combined * whole.extent(place) + whole.table(place)
    count = len(np.unique(combined))
    return count, count == combined.size


register_literal("layout", Layout.parse)
