"""Layouts from index maps: digits found by probing, or a table where there are none.

An author describes a layout by functions of the coordinates.  Most are sums of digits, perhaps swizzled; those
become a `Layout`.  What is left stays a `TableLayout`, which answers the same questions by looking them up.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir import Extent, register_literal
from tilewright.layout.digits import MEMORY, PLACES, REGISTER, THREAD, Digit, Swizzle, digit, parse_digits, text_of
from tilewright.layout.layout import Layout


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A layout that is no sum of digits: the locations of all elements, in row-major order.

    Attributes
    ----------
    shape : of the tile.
    tables : ``(place, locations)`` pairs, in the order of `PLACES`.
    replicas : digits of places over whose values every element is repeated.
    """

    shape: tuple[int, ...]
    tables: tuple[tuple[str, tuple[int, ...]], ...]
    replicas: tuple[Digit, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements of the tile."""
        return math.prod(self.shape)

    @property
    def places(self) -> tuple[str, ...]:
        """The places in use."""
        return tuple(place for place, _ in self.tables)

    def extent(self, place: str) -> int:
        """One more than the highest location used."""
        free = sum((one.extent - 1) * one.stride for one in self.replicas if one.place == place)
        return 1 + int(self.table(place).max()) + free if place in self.places else 1 + free

    def table(self, place: str) -> np.ndarray:
        """Location of every element: an int64 array of the tile's shape."""
        return _array(self, place)

    def offset(self, place: str, *coordinates: object) -> Any:  # an int, or an array of them
        """The location of an element, for ints or integer arrays."""
        found = self.table(place)[tuple(np.asarray(c) for c in coordinates)]
        return int(found) if np.ndim(found) == 0 else found

    def expression(self, place: str, coordinates: Sequence[Extent]) -> NoReturn:
        """Never possible: raises InvalidLayout, since no arithmetic gives the locations."""
        raise InvalidLayout(
            f"the {place} locations of this layout of shape {self.shape} are not sums of digits of the coordinates",
            hint="describe the layout with //, % and one exclusive-or, or access the tile by constant indices only",
        )

    def permutation(self) -> np.ndarray:
        """Memory offset of every element: ``packed[layout.permutation()] = array`` packs."""
        return self.table(MEMORY)

    @property
    def is_injective(self) -> bool:
        """Whether no two elements share a location."""
        return len(_distinct(self)) == self.size

    @property
    def is_bijective(self) -> bool:
        """Whether every location up to its extents holds exactly one element."""
        return self.is_injective and self.size == math.prod(self.extent(place) for place in self.places)

    def __str__(self) -> str:
        """One line of Python that `parse` reads back."""
        parts = [f"shape={self.shape}", *(f"{place}={values}" for place, values in self.tables)]
        if self.replicas:
            parts.append(f"replicas={text_of(self.replicas)!r}")
        return f"table_layout({', '.join(parts)})"


AnyLayout: TypeAlias = "Layout | TableLayout"
"""Either kind answers `table`, `offset`, `extent` and the questions of `access`."""


@functools.lru_cache(maxsize=64)
def _array(layout: TableLayout, place: str) -> np.ndarray:
    values = dict(layout.tables).get(place)
    array = np.zeros(layout.shape, np.int64) if values is None else np.array(values, np.int64).reshape(layout.shape)
    array.flags.writeable = False
    return array


def _distinct(layout: TableLayout) -> np.ndarray:
    combined = np.zeros(layout.shape, np.int64)
    for place in layout.places:
        combined = combined * layout.extent(place) + layout.table(place)
    return np.unique(combined)


def from_tables(
    shape: Sequence[int],
    tables: Mapping[str, np.ndarray],
    replicas: Sequence[Digit] = (),
    partials: Sequence[Digit] = (),
) -> Layout | TableLayout:
    """The layout that puts element ``i`` of a tile at ``tables[place][i]``: digits where they can be found.

    Parameters
    ----------
    shape : of the tile.
    tables : for each place an integer array of that shape, or of as many elements.

    Raises
    ------
    InvalidLayout : a place that does not exist, a table of the wrong size, negative locations.
    """
    arrays = {place: _checked(shape, place, table) for place, table in tables.items()}
    for swizzle in _candidates(arrays.get(MEMORY)):
        found = _layout_of(tuple(shape), arrays, swizzle)
        if found is not None:
            return replace(found, replicas=tuple(replicas), partials=tuple(partials))
    if partials:
        raise InvalidLayout("a layout of partial sums must be a sum of digits")
    kept = tuple((p, tuple(arrays[p].reshape(-1).tolist())) for p in PLACES if p in arrays)
    return TableLayout(tuple(shape), kept, tuple(replicas))


def _checked(shape: Sequence[int], place: str, table: np.ndarray) -> np.ndarray:
    array = np.asarray(table)
    if place not in PLACES:
        raise InvalidLayout(f"a layout has no place {place!r}", hint=f"places are {', '.join(PLACES)}")
    if array.size != math.prod(shape) or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise InvalidLayout(
            f"the {place} map of a layout of shape {tuple(shape)}",
            hint="it needs one non-negative integer for every element",
        )
    return array.astype(np.int64).reshape(tuple(shape))


def _candidates(memory: np.ndarray | None) -> Iterator[Swizzle | None]:
    """Swizzles to try: none first, then every one that could have made the table."""
    yield None
    if memory is None or memory.size < 4:
        return
    width = int(memory.max()).bit_length()
    for bits in range(1, 6):
        for base in range(width):
            for shift in range(bits, width - base):
                yield Swizzle(bits, base, shift)


def _layout_of(shape: tuple[int, ...], arrays: Mapping[str, np.ndarray], swizzle: Swizzle | None) -> Layout | None:
    """The layout with this swizzle whose tables these are; None where there is none."""
    origin = (0,) * len(shape)
    if any(array[origin] for array in arrays.values()):
        return None
    dimensions = []
    for axis, extent in enumerate(shape):
        lines = {place: np.moveaxis(array, axis, -1)[origin[1:]] for place, array in arrays.items()}
        if swizzle is not None:
            lines[MEMORY] = swizzle(lines[MEMORY])
        found = _digits_of_line(extent, lines)
        if found is None:
            return None
        dimensions.append(found)
    layout = Layout(tuple(dimensions), swizzle=swizzle)
    return layout if all((layout.table(place) == array).all() for place, array in arrays.items()) else None


def _digits_of_line(extent: int, lines: Mapping[str, np.ndarray]) -> tuple[Digit, ...] | None:
    """The digits of one dimension: each is the longest run of equal steps that divides what is left."""
    digits: list[Digit] = []
    weight = 1
    while weight < extent:
        steps = {place: int(line[weight]) for place, line in lines.items() if line[weight]}
        if len(steps) > 1:
            return None
        place, stride = next(iter(steps.items()), (MEMORY, 0))
        run = _run_length(
            extent // weight, [(line[::weight], stride if p == place else 0) for p, line in lines.items()]
        )
        digits.append(digit(run, place, stride))
        if run == 1:
            return None
        weight *= run
    return tuple(digits)


def _run_length(limit: int, lines: Sequence[tuple[np.ndarray, int]]) -> int:
    """The longest run of equal steps from the start, of a length that divides `limit`."""
    longest = limit
    for line, stride in lines:
        expected = np.arange(min(len(line), limit)) * stride
        wrong = np.nonzero(line[: len(expected)] != expected)[0]
        longest = min(longest, int(wrong[0]) if len(wrong) else limit)
    return next(run for run in range(longest, 0, -1) if limit % run == 0)


def from_function(shape: Sequence[int], function: Callable[..., object], place: str = MEMORY) -> Layout | TableLayout:
    """A layout of a memory tile from a function of its coordinates.

    Parameters
    ----------
    function : called once with integer arrays (or with ints, where it does not take arrays); gives the offset, or
        several indices, which are taken as row-major in their own ranges.
    """
    if math.prod(shape) > CHUNK and place == MEMORY:
        sums = _of_lines(tuple(shape), function)
        if sums is not None:
            return sums
    found = _evaluated(shape, function)
    total = np.zeros(tuple(shape), np.int64)
    for part in found:
        total = total * (int(part.max()) + 1) + part
    return from_tables(shape, {place: total})


def ranges_of(shape: Sequence[int], function: Callable[..., object]) -> tuple[int, ...]:
    """The extents of the indices that a function of `from_function` gives: their largest values, and one."""
    return tuple(int(part.max()) + 1 if part.size else 0 for part in _evaluated(shape, function))


CHUNK = 1 << 18
"""Elements of a tensor whose places are worked out at once."""


def _of_lines(shape: tuple[int, ...], function: Callable[..., object]) -> Layout | None:
    """A layout of digits that gives every element the place that `function` does; None where there is none.

    Each dimension alone says which digits it must be; then each element is asked, some at a time, since a tensor may be
    large.
    """
    rank = len(shape)
    origin = [np.zeros((1,) * rank, np.int64)] * rank
    axes = [np.arange(n).reshape([n if at == axis else 1 for at in range(rank)]) for axis, n in enumerate(shape)]
    try:
        lines = [_parts_of(function(*origin[:axis], axes[axis], *origin[axis + 1 :])) for axis in range(rank)]
    except (TypeError, ValueError):  # it takes ints only
        return None
    ranges = [1 + sum(int(line[number].max()) for line in lines) for number in range(len(lines[0]))]
    digits = []
    for extent, line in zip(shape, lines, strict=True):
        found = _digits_of_line(extent, {MEMORY: np.broadcast_to(_row_major(line, ranges).reshape(-1), (extent,))})
        if found is None or any(part.flat[0] for part in line):
            return None
        digits.append(found)
    layout = Layout(tuple(digits))
    reached = [1] * len(ranges)
    for places in _slabs(shape, axes):
        parts = _parts_of(function(*places))
        reached = [max(so_far, 1 + int(part.max())) for so_far, part in zip(reached, parts, strict=True)]
        if (layout.offset(MEMORY, *places) != _row_major(parts, ranges)).any():
            return None
    return layout if reached == ranges else None


def _slabs(shape: tuple[int, ...], axes: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Coordinates of parts of a tensor, of about `CHUNK` elements each, as arrays that broadcast."""
    longest = max(range(len(shape)), key=lambda axis: shape[axis])
    step = max(CHUNK * shape[longest] // math.prod(shape), 1)
    for first in range(0, shape[longest], step):
        yield [
            axis if at != longest else np.moveaxis(np.moveaxis(axis, at, 0)[first : first + step], 0, at)
            for at, axis in enumerate(axes)
        ]


def _parts_of(found: object) -> list[np.ndarray]:
    return [np.asarray(part) for part in (found if isinstance(found, (tuple, list)) else (found,))]


def _row_major(parts: Sequence[np.ndarray], ranges: Sequence[int]) -> np.ndarray:
    """One index for several, each in its own range."""
    total = np.zeros((), np.int64)
    for part, extent in zip(parts, ranges, strict=True):
        total = total * extent + part
    return total


def from_thread_and_index(
    shape: Sequence[int], thread: Callable[..., object], index: Callable[..., object] | None = None, replicate: int = 1
) -> Layout | TableLayout:
    """A fragment from an author's functions of the coordinates.

    Parameters
    ----------
    thread : the thread that holds an element.
    index : its register there; None numbers each thread's elements in their order.
    replicate : copies of the whole fragment, held by the threads that follow.
    """
    (threads,) = _evaluated(shape, thread)
    registers = _evaluated(shape, index)[0] if index is not None else _ranks(threads)
    replicas = (Digit(replicate, THREAD, int(threads.max()) + 1),) if replicate > 1 else ()
    return from_tables(shape, {THREAD: threads, REGISTER: registers}, replicas)


def _evaluated(shape: Sequence[int], function: Callable[..., object]) -> list[np.ndarray]:
    axes = np.indices(tuple(shape), dtype=np.int64)
    try:
        found = function(*axes)
    except (TypeError, ValueError):  # a function that branches on its arguments takes ints only
        points = [function(*map(int, point)) for point in axes.reshape(len(axes), -1).T]
        found = tuple(np.array(points).T) if isinstance(points[0], tuple) else np.array(points)
    parts = found if isinstance(found, (tuple, list)) else (found,)
    return [np.broadcast_to(np.asarray(p).reshape(-1), math.prod(shape)).reshape(tuple(shape)) for p in parts]


def _ranks(threads: np.ndarray) -> np.ndarray:
    """The number of each element among those of its thread."""
    flat = threads.reshape(-1)
    order = np.argsort(flat, kind="stable")
    starts = np.searchsorted(flat[order], flat[order], side="left")
    ranks = np.empty_like(flat)
    ranks[order] = np.arange(len(flat)) - starts
    return ranks.reshape(threads.shape)


def _parse_table(text: str) -> TableLayout:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        fields = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in getattr(call, "keywords", ())}
        shape = fields.pop("shape")
        tables = tuple((place, tuple(fields[place])) for place in PLACES if place in fields)
        return TableLayout(tuple(shape), tables, parse_digits(fields.get("replicas", "")))
    except (SyntaxError, ValueError, KeyError) as error:
        raise InvalidLayout(f"not a layout: {text[:60]}") from error


register_literal("table_layout", _parse_table)
