"""A caller's arrays as the memory of parameters, checked as those of a kernel's call are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import errors
from tilewright.errors import an
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.memory import Memory, as_row, row_major
from tilewright.interpreter.poison import poisoned
from tilewright.ir import BOOL, UINT8, Buffer, Function, Var
from tilewright.ir.arguments import Expectations, numpy_view


def bind_arguments(state: Evaluator, function: Function, arguments: Sequence[object]) -> tuple[np.ndarray, ...]:
    """Give the function's parameters their values; returns the arrays made for its outputs.

    Parameters
    ----------
    arguments : one array or number for each of ``function.inputs``, and then, optionally, one number for each
        of its `size_variables`.  A size that is not given is bound by its first bare occurrence in a shape.

    Raises
    ------
    ArgumentError : a count, kind, dtype, rank, shape or memory order that is not the declared one.
    """
    inputs, expected = function.inputs, Expectations(function)
    if len(arguments) not in (len(inputs), len(inputs) + len(expected.sizes)):
        raise errors.WrongArgumentCount(
            f"{function.name} takes {len(inputs)} arguments, but {len(arguments)} were given", span=function.span
        )
    given = dict(zip((*inputs, *expected.sizes), arguments))
    numbers = {var: expected.number(var, value) for var, value in given.items() if isinstance(var, Var)}
    arrays = {
        buffer: _table(state, buffer, value) if buffer.name in expected.pointers else _array(buffer, value)
        for buffer, value in given.items()
        if isinstance(buffer, Buffer)
    }
    views = {buffer: numpy_view(array) for buffer, array in arrays.items()}
    # Of an operand whose order the compiler chose, the bytes in that order will do.
    expected.packed_bytes = {
        buffer: view.shape[0]
        for buffer, view in views.items()
        if buffer.packed and len(view.shape) == 1 != buffer.rank and view.dtype == UINT8
    }
    state.values.update(expected.told(views, numbers))
    state.values.update({var: _carried(var, number) for var, number in numbers.items()})
    for buffer, array in arrays.items():
        expected.check_writable(buffer, views[buffer])
        _add(state, buffer, array, in_order=buffer in expected.packed_bytes)
    return tuple(_make_output(state, buffer) for buffer in function.outputs)


def _table(state: Evaluator, buffer: Buffer | Var, tensors: object) -> np.ndarray:
    """The addresses of arrays, which are known from then on by their addresses."""
    if not isinstance(tensors, (list, tuple)) or not all(isinstance(one, np.ndarray) for one in tensors):
        raise errors.WrongArgumentKind(
            f"argument {buffer.name} should be a list of arrays, but is {type(tensors).__name__}",
            hint="pass what the pointers point to: addresses alone do not say how much memory is there",
        )
    for one in tensors:
        if not one.flags.c_contiguous:
            raise errors.WrongArgumentStrides(
                f"an array of {buffer.name} is not contiguous", hint="pass a contiguous copy"
            )
    state.pointed.extend(tensors)
    return np.array([one.ctypes.data for one in tensors], np.uint64)


def _array(buffer: Buffer, value: object) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise errors.WrongArgumentKind(f"argument {buffer.name!r} is {an(type(value).__name__)}, expected an array")
    return value


def _carried(var: Var, number: float) -> object:
    """A number as `arithmetic` has those of its type."""
    return var.dtype.numpy.type(number) if var.dtype.is_float else bool(number) if var.dtype == BOOL else number


def _add(state: Evaluator, buffer: Buffer, array: np.ndarray, in_order: bool) -> None:
    """Give a parameter an array's memory, which may be in the order that the compiler chose."""
    shape = tuple(state.extent(extent) for extent in buffer.shape)
    strides = row_major(shape, buffer.dtype)
    if buffer.strides is not None and not in_order:
        strides = tuple(state.extent(stride) for stride in buffer.strides)
    state.add_argument(buffer, Memory(as_row(array)), shape, strides)


def _make_output(state: Evaluator, buffer: Buffer) -> np.ndarray:
    shape = tuple(state.extent(extent) for extent in buffer.shape)
    array = poisoned(shape, buffer.dtype)
    state.add_argument(buffer, Memory(array.reshape(-1)), shape, row_major(shape, buffer.dtype))
    return array
