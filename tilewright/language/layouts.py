"""`T.Layout` and `T.Fragment`: index maps as authors write them, tabulated once.

An author's map is a Python function of indices.  It is evaluated at every point of the shape, with NumPy arrays,
and kept as a table, which is what the layout room takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.literals import register_record
from tilewright.ir.nodes import Buffer
from tilewright.language.interface import author_facing
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import constant, describe


@register_record
@dataclass(frozen=True, slots=True)
class IndexMap:
    """Where the elements of a tile lie, as tables over its row-major elements.

    Attributes
    ----------
    shape : of the tile.
    place : for each element its place: the flat offset in the memory, or the register of its thread.
    thread : for each element its thread; empty for memory layouts.
    replicate : how many threads hold a copy of each element, `thread` being that of the first.
    """

    shape: tuple[int, ...]
    place: tuple[int, ...]
    thread: tuple[int, ...] = ()
    replicate: int = 1


def _indices(shape: tuple[int, ...]) -> list[np.ndarray]:
    return [axis.reshape(-1) for axis in np.indices(shape, dtype=np.int64)]


def _table(values: Any, count: int, what: str) -> np.ndarray:
    table = np.broadcast_to(np.asarray(values), (count,)) if np.ndim(values) <= 1 else np.asarray(values)
    if table.shape != (count,) or table.dtype.kind not in "iu":
        raise NumberExpected(what, "an integer for each element", describe(values))
    return table


def _shape(sizes: Any, what: str) -> tuple[int, ...]:
    return tuple(
        constant(size, f"an extent of {what}") for size in (sizes if isinstance(sizes, (tuple, list)) else (sizes,))
    )


@author_facing
def Layout(shape: Any, forward_fn: Callable[..., Any]) -> IndexMap:
    """A layout of a shared or global tile.

    Parameters
    ----------
    shape : of the tile, ints.
    forward_fn : indices to the index, or the indices, in memory; several are taken as row-major in their own range.
    """
    sizes = _shape(shape, "T.Layout")
    points = _indices(sizes)
    count = int(np.prod(sizes))
    found = forward_fn(*points)
    parts = [
        _table(part, count, "the map of T.Layout") for part in (found if isinstance(found, (tuple, list)) else (found,))
    ]
    place = np.zeros(count, np.int64)
    for part in parts:
        place = place * (int(part.max()) + 1) + part
    return IndexMap(sizes, tuple(place.tolist()))


@author_facing
def Fragment(
    shape: Any, forward_fn: Callable[..., Any] | None = None, forward_thread_fn: Callable[..., Any] | None = None,
    replicate: int = 1, forward_index_fn: Callable[..., Any] | None = None,
) -> IndexMap:  # fmt: skip
    """A layout of a register tile.

    Parameters
    ----------
    shape : of the tile, ints.
    forward_fn : indices to ``(thread, register)``; or
    forward_thread_fn, forward_index_fn : the two functions apart.
    replicate : copies of each element.
    """
    sizes = _shape(shape, "T.Fragment")
    points, count = _indices(sizes), int(np.prod(sizes))
    if forward_fn is not None:
        thread, register = forward_fn(*points)
    elif forward_thread_fn is not None:
        thread = forward_thread_fn(*points)
        register = forward_index_fn(*points) if forward_index_fn is not None else _rank_in_thread(thread)
    else:
        raise NumberExpected("T.Fragment", "forward_fn or forward_thread_fn", "neither")
    places = [_table(value, count, "the map of T.Fragment") for value in (register, thread)]
    return IndexMap(
        sizes, tuple(places[0].tolist()), tuple(places[1].tolist()), constant(replicate, "replicate of T.Fragment")
    )


def _rank_in_thread(thread: Any) -> np.ndarray:
    """Registers in the order of the elements of each thread."""
    seen: dict[int, int] = {}
    ranks = []
    for owner in np.asarray(thread).tolist():
        ranks.append(seen.get(owner, 0))
        seen[owner] = ranks[-1] + 1
    return np.asarray(ranks)


def layout_of(layout: Any, buffer: Buffer) -> Any:
    """The layout that an annotation gives to `buffer`: a map of its shape, or a function of indices."""
    made = Layout(buffer.shape, layout) if callable(layout) else layout
    shape = getattr(made, "shape", None)
    if shape is not None and tuple(shape) != tuple(buffer.shape):
        raise NumberExpected(
            f"the layout of {buffer.name!r}", f"a layout of shape {buffer.shape}", f"one of {tuple(shape)}"
        )
    return made
