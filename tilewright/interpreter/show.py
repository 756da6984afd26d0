"""``print`` and ``breakpoint`` on symbolic values, with NumPy arrays in their place."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.tiles import read_region
from tilewright.ir.nodes import Expr, Load, Print, Region, Var


def show(state: Evaluator, node: Print) -> None:
    """Report the values of a `Print`, or open the debugger with them.

    A value that differs between lanes is shown as the array of its active lanes.
    """
    values = [_value(state, item) for item in node.values]
    if not node.stop:
        state.report(" ".join(str(value) for value in values))
        return
    named = {_name(item, position): value for position, (item, value) in enumerate(zip(node.values, values))}
    (state.debug or open_debugger)(named)


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


def open_debugger(tiles: dict[str, Any]) -> None:
    """Python's debugger, with the NumPy values of the names given to ``breakpoint()`` in `tiles`."""
    breakpoint()
