"""``print`` and ``breakpoint`` on symbolic values: lines of `ops.prints`, or NumPy arrays in the debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.tiles import read_region
from tilewright.ir import INT32, Call, DType, Expr, Load, Print, Region, Var
from tilewright.ops.prints import PER_LINE, beginning, element_place, line, show_number, words_of

Lane: TypeAlias = "tuple[int, ...]"
Number: TypeAlias = "tuple[Any, DType]"


def show(state: Evaluator, node: Print) -> None:
    """Report the lines of a `Print`, or open the debugger with its values.

    In the debugger, a value that differs between lanes is the array of its active lanes.
    """
    if node.stop:
        named = {_name(item, position): _value(state, item) for position, item in enumerate(node.values)}
        (state.debug or open_debugger)(named)
        return
    words, expressions = words_of(node.values)
    head = beginning(len(state.block_vars), state.apart, state.role[0])
    blocks = [(state.values[var], var.dtype) for var in state.block_vars]
    numbers = [(state.value(expr), expr.dtype) for expr in expressions]
    tiles = [(region, read_region(state, region)) for region in node.values if isinstance(region, Region)]
    for lane in _active(state):
        thread = [(lane[-1], INT32)] if state.apart else []
        own = [*blocks, *thread, *_of_lane(state, numbers, lane)]
        if not tiles:
            _report(state, line((head, *words)), own)
        for region, array in tiles:
            starts, extents = state.bounds(region)
            tile = np.broadcast_to(array, (*state.lanes, *extents))[lane]
            for place, row in _rows(region, starts, tile):
                _report(state, line((head, *words, place)), [*own, *row])


def print_line(state: Evaluator, call: Call) -> int:
    """A line for each active lane, in their order."""
    text, *expressions = call.arguments
    numbers = [(state.value(expr), expr.dtype) for expr in expressions if isinstance(expr, Expr)]
    for lane in _active(state):
        _report(state, str(text), _of_lane(state, numbers, lane))
    return 0


SPECIAL_CALLS["print_line"] = print_line


def _active(state: Evaluator) -> Iterator[Lane]:
    active = state.active
    yield from (lane for lane in np.ndindex(state.lanes) if active[lane])


def _of_lane(state: Evaluator, numbers: Sequence[Number], lane: Lane) -> list[Number]:
    return [(np.broadcast_to(value, state.lanes)[lane], dtype) for value, dtype in numbers]


def _rows(region: Region, starts: tuple[int, ...], tile: np.ndarray) -> Iterator[tuple[str, list[Number]]]:
    """The pieces of a tile's rows: each with its place and the numbers in it."""
    *above, last = tile.shape
    step = PER_LINE if isinstance(region.extents[-1], int) else 1
    for outer in np.ndindex(*above):
        for first in range(0, last, step):
            elements = tile[outer][first : first + step]
            indices = [start + place for start, place in zip(starts, (*outer, first), strict=True)]
            ends = [indices[-1] + len(elements)] if len(elements) > 1 else []
            numbers = [(value, region.dtype) for value in elements]
            place = element_place(region.buffer.name, len(starts), len(elements))
            yield place, [*((index, INT32) for index in (*indices, *ends)), *numbers]


def _report(state: Evaluator, text: str, numbers: Sequence[Number]) -> None:
    state.report(text.format(*(show_number(value, dtype) for value, dtype in numbers)))


def _value(state: Evaluator, item: Expr | Region | str) -> Any:
    if isinstance(item, str):
        return item
    if isinstance(item, Region):
        array = read_region(state, item)
        lanes = array.shape[: array.ndim - len(item.extents)]
        return array if not lanes or state.mask is None else array[np.broadcast_to(state.mask, lanes)]
    value = state.value(item)
    if not isinstance(value, np.ndarray) or state.mask is None:
        return value
    values, mask = np.broadcast_arrays(value, state.mask)
    return values[mask]


def _name(item: Expr | Region | str, position: int) -> str:
    if isinstance(item, (Region, Load)):
        return item.buffer.name
    return item.name if isinstance(item, Var) else f"value{position}"


def open_debugger(tiles: dict[str, object]) -> None:
    """Python's debugger, with the NumPy values of the names given to ``breakpoint()`` in `tiles`."""
    breakpoint()
