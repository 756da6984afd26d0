"""`T.Layout` and `T.Fragment`: index maps that authors write as functions, as values of the layout room."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir.nodes import Buffer
from tilewright.language.interface import author_facing
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import constant, describe
from tilewright.language.tensors import static_shape_of
from tilewright.layout import MEMORY, REGISTER, THREAD, Digit, invert
from tilewright.layout.algebra import replicate as replicated
from tilewright.layout.tables import from_function, from_tables, from_thread_and_index, ranges_of

Map = Callable[..., Any]


class Layout:
    """A layout of a shared or global tile.

    Parameters
    ----------
    shape : of the tile, ints.
    forward_fn : from the indices to the offset in memory, or to several indices, which count row-major within
        their own ranges.

    Raises
    ------
    InvalidLayout : offsets that are no integers from 0 up.

    Examples
    --------
    >>> T.annotate_layout({shared: T.Layout((64, 64), lambda i, j: i * 64 + (j ^ (i % 8)))})
    """

    description = "a layout"
    place = MEMORY
    layout: Any
    """The same as a value of the layout room, which has every attribute that is not here."""

    @author_facing
    def __init__(self, shape: object, forward_fn: Map) -> None:
        sizes = static_shape_of(shape, f"T.{type(self).__name__}")
        self.layout = from_function(sizes, forward_fn)
        self._outputs: Callable[[], tuple[int, ...]] = functools.partial(ranges_of, sizes, forward_fn)

    @classmethod
    def of(cls, layout: Any, *outputs: int) -> Any:  # of this class, of a layout of the compiler's
        """An author's object of a layout, and the extents of the indices that it gives: one where they are not said."""
        made = object.__new__(cls)
        made.layout, made._outputs = layout, lambda: outputs or (layout.extent(cls.place),)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("layout", "_outputs"):
            raise AttributeError(name)
        return getattr(self.layout, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.layout == getattr(other, "layout", other))

    def __hash__(self) -> int:
        return hash(self.layout)

    def __repr__(self) -> str:
        return str(self.layout)

    def is_equal(self, other: object) -> bool:
        """Whether both put every element in the same place."""
        return self == other

    def get_input_shape(self) -> list[int]:
        """Extents of the tile."""
        return list(self.layout.shape)

    def get_output_shape(self) -> list[int]:
        """Extents of the indices that the layout gives: of one, the elements of memory, or registers of a thread, that
        the tile takes."""
        return list(self._outputs())

    def map_forward_index(self, indices: Sequence[object]) -> list[object]:  # of the indices' kind
        """Where the element of some indices lies."""
        left, found = self.layout.offset(self.place, *indices), []
        for extent in self._outputs()[:0:-1]:
            found.append(left % extent)
            left = left // extent
        return [left, *found[::-1]]

    def _tiled(
        self, counts: tuple[int, ...], shape: tuple[int, ...], place: str, first: bool, leading: tuple[int, ...] = ()
    ) -> Any:
        """Copies side by side along each dimension of `shape`, one after another in a place; the last dimension is the
        fastest, unless the first is.  Indices that count them stand before those that the layout gives."""
        layout = self.layout
        tables = {at: np.tile(layout.table(at).reshape(shape), counts) for at in {*layout.places, place}}
        ranges = [np.arange(size * count) // size for size, count in zip(shape, counts, strict=True)]
        number, step = np.zeros(tables[place].shape, np.int64), 1
        order = list(range(len(shape)))
        for dim in order if first else order[::-1]:
            number += step * ranges[dim].reshape([-1 if at == dim else 1 for at in order])
            step *= counts[dim]
        tables[place] = tables[place] + number * layout.extent(place)
        outputs = self._outputs()
        counted = self.place == MEMORY and math.prod(outputs) == layout.extent(place)
        together = (*leading, *outputs) if counted else ()
        return self.of(from_tables(tables[place].shape, tables, layout.replicas), *together)

    def expand(self, leading_shape: object) -> Layout:
        """So many tiles of this layout, one after another, with leading dimensions that count them."""
        leading = static_shape_of(leading_shape, "expand of a layout")
        shape = (*(1 for _ in leading), *self.layout.shape)
        return self._tiled((*leading, *(1 for _ in self.layout.shape)), shape, self.place, False, leading)

    def repeat(self, dim: int, factor: int) -> Layout:
        """`factor` tiles side by side along a dimension, one after another in memory."""
        counts, times = [1] * self.layout.rank, constant(factor, "factor of repeat")
        counts[constant(dim, "dim of repeat")] = times
        return self._tiled(tuple(counts), self.layout.shape, self.place, False, (times,))

    def reshape(self, shape: object) -> Layout:
        """The same elements in row-major order under another shape."""
        sizes = static_shape_of(shape, "reshape of a layout")
        tables = {at: self.layout.table(at).reshape(sizes) for at in self.layout.places}
        return self.of(from_tables(sizes, tables, self.layout.replicas), *self._outputs())

    def inverse(self) -> Layout:
        """From the indices that this layout gives back to those of the element."""
        back, outputs = invert(self.layout), self._outputs()
        if math.prod(outputs) != math.prod(back.shape):
            return Layout.of(back, *self.layout.shape)
        return Layout.of(from_tables(outputs, {MEMORY: back.table(MEMORY).reshape(outputs)}, []), *self.layout.shape)


class Fragment(Layout):
    """A layout of a register tile.

    Parameters
    ----------
    shape : of the tile, ints.
    forward_fn : from the indices, or these and the number of the copy, to ``(thread, register)``; or
    forward_thread_fn, forward_index_fn : to the thread and to the register apart; without the second, a thread's
        elements are numbered in row-major order.
    replicate : copies of each element.  The function of the thread may take the number of the copy as its last
        argument; otherwise copies are held by the threads that follow.

    Raises
    ------
    InvalidLayout : threads or registers that are no integers from 0 up, or copies at uneven distances.

    Examples
    --------
    >>> T.annotate_layout({tile: T.Fragment((64, 64), lambda i, j: (i * 2 + j // 32, j % 32))})
    """

    place = REGISTER

    @author_facing
    def __init__(
        self,
        shape: object,
        forward_fn: Map | None = None,
        forward_thread_fn: Map | None = None,
        replicate: int = 1,
        forward_index_fn: Map | None = None,
    ) -> None:
        sizes, copies = static_shape_of(shape, "T.Fragment"), constant(replicate, "replicate of T.Fragment")
        thread: Map
        register: Map | None
        if forward_fn is not None:
            thread, register = functools.partial(_part, forward_fn, 0), functools.partial(_part, forward_fn, 1)
        elif forward_thread_fn is not None:
            thread, register = forward_thread_fn, forward_index_fn
        else:
            raise NumberExpected("T.Fragment", "forward_fn or forward_thread_fn", "neither")
        asked = inspect.signature(forward_fn or thread).parameters.values()
        takes = [one for one in asked if one.kind is not inspect.Parameter.KEYWORD_ONLY]  # which `partial` has given
        any_number = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in takes)
        if len(takes) == len(sizes) + 1 or (any_number and copies > 1):
            if forward_fn is not None:
                register = functools.partial(_of_first_copy, forward_fn)
            self.layout = _with_copies(sizes, thread, register, copies)
        else:
            self.layout = from_thread_and_index(sizes, thread, register, copies)

        self._outputs = lambda: (self.layout.extent(REGISTER),)

    def get_thread_size(self) -> int:
        """Threads that hold elements."""
        return int(self.layout.extent(THREAD))

    def map_forward_thread(self, indices: Sequence[object]) -> object:  # of the indices' kind
        """The thread that has the element of some indices, the first of its copies."""
        return self.layout.offset(THREAD, *indices)

    def repeat(  # type: ignore[override]  # as TileLang's two classes have it
        self, repeats: object, repeat_on_thread: bool = False, lower_dim_first: bool = True
    ) -> Any:
        """Tiles side by side, `repeats` of them along each dimension: in the registers that follow, or in the
        threads."""
        counts = static_shape_of(repeats, "repeats of T.Fragment")
        if len(counts) != self.layout.rank:
            raise NumberExpected("repeats of T.Fragment", f"{self.layout.rank} numbers", str(len(counts)))
        return self._tiled(counts, self.layout.shape, THREAD if repeat_on_thread else REGISTER, not lower_dim_first)

    def replicate(self, replicate: int) -> Layout:
        """The same held `replicate` times, by the threads that follow."""
        return self.of(replicated(self.layout, constant(replicate, "the argument of replicate")))

    def condense_rep_var(self) -> Layout:
        """Itself: copies are numbered once."""
        return self


def _part(function: Map, which: int, *indices: object) -> Any:
    return function(*indices)[which]


def _of_first_copy(function: Map, *indices: object) -> Any:
    """The register of an element, which all of its copies have in their threads."""
    return function(*indices, 0)[1]


def _with_copies(sizes: tuple[int, ...], thread: Map, register: Map | None, copies: int) -> Any:
    """A fragment whose copies lie where the author's function puts them."""
    made = [from_thread_and_index(sizes, lambda *point, at=at: thread(*point, at), register) for at in range(copies)]
    threads = [one.table(THREAD) for one in made]
    if copies == 1:
        return made[0]
    distances = [one - threads[0] for one in threads]
    digits = _digits([int(one.flat[0]) for one in distances])
    if digits is None or any((one != one.flat[0]).any() for one in distances):
        raise InvalidLayout(
            "the copies of T.Fragment lie at uneven distances", hint="add a multiple of the copy's number"
        )
    tables = {THREAD: threads[0], REGISTER: made[0].table(REGISTER)}
    return from_tables(sizes, tables, digits)


def _digits(distances: Sequence[int]) -> list[Digit] | None:
    """The distances of copies from the first as digits, each with a stride of its own: ``c // 4 * 8 + c % 4`` has two.

    None where they are no sums of such digits.
    """
    if len(distances) == 1:
        return []
    stride = distances[1]
    count = next((at for at, one in enumerate(distances) if one != at * stride), len(distances))
    firsts = distances[::count]
    parts = [first + at * stride for first in firsts for at in range(count)]
    outer = _digits(firsts) if stride > 0 and parts == list(distances) else None
    return None if outer is None else [*outer, Digit(count, THREAD, stride)]


class Advised(Layout):
    """A layout that says no more than that a tile is to be swizzled.

    Which places elements lie at cannot be told from a program, so the compiler gives the tile the swizzle that its
    users need: a matrix instruction asks for another one than threads do, and half of a tile for another one than the
    whole.
    """


class PartialFragment(Fragment):
    """A layout of what threads hold of a reducer before it is finished: copies are addends, not equals.

    `T.annotate_layout` takes one for a `T.alloc_reducer`, where it is advice: a reducer lies in shared memory here.

    Parameters
    ----------
    shape, forward_fn, forward_thread_fn, replicate, forward_index_fn : as those of `Fragment`.
    combine : of the copies, those that are added up, a divisor of `replicate`; all of them where None.

    Examples
    --------
    >>> part = T.PartialFragment((64,), forward_fn=lambda i, copy: (copy, i), replicate=128)
    """

    @author_facing
    def __init__(
        self,
        shape: object,
        forward_fn: Map | None = None,
        forward_thread_fn: Map | None = None,
        replicate: int = 1,
        forward_index_fn: Map | None = None,
        combine: int | None = None,
    ) -> None:
        super().__init__(shape, forward_fn, forward_thread_fn, replicate, forward_index_fn)
        self.combine = replicate if combine is None else constant(combine, "combine of T.PartialFragment")
        if self.combine < 1 or replicate % self.combine:
            raise NumberExpected("combine of T.PartialFragment", f"a divisor of {replicate}", str(combine))


def layout_of(layout: Any, buffer: Buffer) -> Any:
    """The layout that an annotation gives to `buffer`: one of its shape, or a function of its indices."""
    if callable(layout):
        layout = Layout(buffer.shape, layout)
    layout = getattr(layout, "layout", layout)
    shape = getattr(layout, "shape", None)
    if shape is None or not hasattr(layout, "table"):
        raise NumberExpected(f"the layout of {buffer.name!r}", "T.Layout(...) or T.Fragment(...)", describe(layout))
    if tuple(shape) != tuple(buffer.shape):
        raise NumberExpected(
            f"the layout of {buffer.name!r}", f"a layout of shape {buffer.shape}", f"one of {tuple(shape)}"
        )
    if not layout.is_injective:
        raise InvalidLayout(
            f"the layout of {buffer.name!r} puts {_together(layout)} in one place, where one would overwrite the other",
            hint="give every element of the tile a place of its own",
        )
    return layout


def _together(layout: Any) -> str:
    """Two elements that a layout puts in one place."""
    if not layout.places:
        return "all elements"
    places = np.stack([layout.table(place).reshape(-1) for place in layout.places])
    _, first, inverse = np.unique(places, axis=1, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse.reshape(-1)] != np.arange(places.shape[1]))
    if not again.size:
        return "copies of several elements"
    pair = (first[inverse.reshape(-1)[again[0]]], again[0])
    one, other = (tuple(map(int, np.unravel_index(at, layout.shape))) for at in pair)
    return f"elements {one} and {other}"
