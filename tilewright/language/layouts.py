"""`T.Layout` and `T.Fragment`: index maps that authors write as functions, as values of the layout room."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir.nodes import Buffer
from tilewright.language.interface import author_facing
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import constant, describe
from tilewright.language.tensors import static_shape_of
from tilewright.layout.digits import REGISTER, THREAD, Digit
from tilewright.layout.tables import from_function, from_tables, from_thread_and_index

Map = Callable[..., Any]


@author_facing
def Layout(shape: Any, forward_fn: Map) -> Any:
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
    return from_function(static_shape_of(shape, "T.Layout"), forward_fn)


@author_facing
def Fragment(
    shape: Any, forward_fn: Map | None = None, forward_thread_fn: Map | None = None, replicate: int = 1,
    forward_index_fn: Map | None = None,
) -> Any:  # fmt: skip
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
    sizes, copies = static_shape_of(shape, "T.Fragment"), constant(replicate, "replicate of T.Fragment")
    thread: Map
    register: Map | None
    if forward_fn is not None:
        thread, register = functools.partial(_part, forward_fn, 0), functools.partial(_part, forward_fn, 1)
    elif forward_thread_fn is not None:
        thread, register = forward_thread_fn, forward_index_fn
    else:
        raise NumberExpected("T.Fragment", "forward_fn or forward_thread_fn", "neither")
    takes = len(inspect.signature(forward_fn or thread).parameters)
    if takes == len(sizes) + 1:
        if forward_fn is not None:
            register = functools.partial(_of_first_copy, forward_fn)
        return _with_copies(sizes, thread, register, copies)
    return from_thread_and_index(sizes, thread, register, copies)


def _part(function: Map, which: int, *indices: Any) -> Any:
    return function(*indices)[which]


def _of_first_copy(function: Map, *indices: Any) -> Any:
    """The register of an element, which all of its copies have in their threads."""
    return function(*indices, 0)[1]


def _with_copies(sizes: tuple[int, ...], thread: Map, register: Map | None, copies: int) -> Any:
    """A fragment whose copies lie where the author's function puts them."""
    made = [from_thread_and_index(sizes, lambda *point, at=at: thread(*point, at), register) for at in range(copies)]
    threads = [one.table(THREAD) for one in made]
    if copies == 1:
        return made[0]
    step = threads[1] - threads[0]
    stride = int(step.flat[0])
    if any((one != threads[0] + at * stride).any() for at, one in enumerate(threads)) or stride < 1:
        raise InvalidLayout(
            "the copies of T.Fragment lie at uneven distances", hint="add a multiple of the copy's number"
        )
    tables = {THREAD: threads[0], REGISTER: made[0].table(REGISTER)}
    return from_tables(sizes, tables, [Digit(copies, THREAD, stride)])


def layout_of(layout: Any, buffer: Buffer) -> Any:
    """The layout that an annotation gives to `buffer`: one of its shape, or a function of its indices."""
    if callable(layout):
        layout = Layout(buffer.shape, layout)
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
