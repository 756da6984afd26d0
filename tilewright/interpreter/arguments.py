"""A caller's arrays as the memory of parameters: sizes bound from shapes, everything else checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import errors
from tilewright.interpreter.arithmetic import Numbers
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.memory import Memory, row_major
from tilewright.interpreter.poison import poisoned
from tilewright.ir.dtypes import AS_BYTES
from tilewright.ir.nodes import Buffer, Expr, Extent, Function, Var
from tilewright.ir.signature import POINTERS, size_variables, written_parameters
from tilewright.ir.sizes import solve, told_by
from tilewright.ir.visitor import walk


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
    inputs, sizes = function.inputs, size_variables(function)
    if len(arguments) not in (len(inputs), len(inputs) + len(sizes)):
        raise errors.WrongArgumentCount(
            f"{function.name} takes {len(inputs)} arguments, but {len(arguments)} were given", span=function.span
        )
    for var, value in zip((*(p for p in inputs if isinstance(p, Var)), *sizes), _numbers(inputs, sizes, arguments)):
        state.values[var] = _number(var, value)
    pointers = function.attribute(POINTERS, ())
    given = [_table(state, p, a) if p.name in pointers else a for p, a in zip(inputs, arguments)]
    pairs = [(p, _array(p, a)) for p, a in zip(inputs, given) if isinstance(p, Buffer)]
    for buffer, array in pairs:
        _bind_sizes(state, buffer, array)
    written = written_parameters(function)
    for buffer, array in pairs:
        _bind_array(state, buffer, array, buffer in written)
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


def _numbers(inputs: Sequence[object], sizes: Sequence[Var], arguments: Sequence[object]) -> list[Any]:
    given = [a for p, a in zip(inputs, arguments) if isinstance(p, Var)]
    return given + list(arguments[len(inputs) :])


def _number(var: Var, value: Numbers) -> object:
    if isinstance(value, np.ndarray) and value.ndim:
        raise errors.WrongArgumentKind(f"argument {var.name} should be a number, but an array was given")
    if var.dtype.is_float:
        return np.asarray(value, np.float64).astype(var.dtype.numpy)[()]
    number = bool(value) if var.dtype.kind == "bool" else int(value)
    if not var.dtype.minimum <= number <= var.dtype.maximum:
        raise errors.WrongArgumentDType(f"argument {var.name} is {number}, which does not fit {var.dtype}")
    return number


def _array(buffer: Buffer, value: object) -> np.ndarray:
    """The argument as an array of the parameter's carrier (of bytes, where the dtype is packed).

    Of an operand whose order the compiler chose, the bytes in that order will do (one dimension of uint8).
    """
    if not isinstance(value, np.ndarray):
        raise errors.WrongArgumentKind(f"argument {buffer.name} should be an array, but is {type(value).__name__}")
    expected = np.dtype(np.uint8) if buffer.dtype.is_packed else buffer.dtype.numpy
    if value.dtype == np.int8 and buffer.dtype.is_packed:
        value = value.view(np.uint8)
    if buffer.packed and value.ndim == 1 and value.dtype == np.uint8:
        return value
    if value.dtype == np.uint8 and buffer.dtype.name in AS_BYTES:
        value = value.view(expected)
    if value.dtype != expected:
        packed = " (packed bytes)" if buffer.dtype.is_packed else ""
        raise errors.WrongArgumentDType(
            f"argument {buffer.name} should hold {buffer.dtype} as {expected}{packed}, but holds {value.dtype}"
        )
    return value


def _bind_sizes(state: Evaluator, buffer: Buffer, array: np.ndarray) -> None:
    if array.ndim != len(buffer.shape):
        return
    for axis, extent in enumerate(buffer.shape):
        last = axis == len(buffer.shape) - 1
        _tell(state, extent, array.shape[axis] * (buffer.dtype.per_byte if last else 1))
    for stride, step in zip(buffer.strides or (), array.strides, strict=False):
        _tell(state, stride, step // array.itemsize)


def _tell(state: Evaluator, extent: Extent, found: int) -> None:
    var = told_by(extent)
    if var is not None and var not in state.values:
        solution = solve(extent, found)
        if solution is not None:
            state.values[var] = solution


def _bind_array(state: Evaluator, buffer: Buffer, array: np.ndarray, written: bool) -> None:
    shape = _shape(state, buffer)
    if buffer.packed and array.ndim == 1 != len(shape):
        state.add_argument(buffer, Memory(array), shape, row_major(shape, buffer.dtype))
        return
    stored = (*shape[:-1], -(-shape[-1] // buffer.dtype.per_byte)) if shape else ()
    if array.ndim != len(shape):
        raise errors.WrongArgumentRank(
            f"argument {buffer.name} should have {len(shape)} dimensions, but has {array.ndim}"
        )
    if array.shape != stored:
        packed = f" ({buffer.dtype.per_byte} elements a byte)" if buffer.dtype.is_packed else ""
        raise errors.WrongArgumentShape(
            f"argument {buffer.name} should have shape {stored}{packed}, but has {array.shape}"
        )
    if written and not array.flags.writeable:
        raise errors.ReadOnlyArgument(f"argument {buffer.name} is written by the kernel, but is read-only")
    strides = _check_strides(state, buffer, array, shape)
    state.add_argument(buffer, Memory(_flat(array, strides if buffer.strides else None)), shape, strides)


def _shape(state: Evaluator, buffer: Buffer) -> tuple[int, ...]:
    for extent in buffer.shape:
        for found in walk(extent) if isinstance(extent, Expr) else ():
            if isinstance(found, Var) and found not in state.values:
                raise errors.WrongArgumentShape(
                    f"the size {found.name} in the shape of {buffer.name} is not the extent of any argument",
                    hint="pass the sizes after the arguments",
                )
    return tuple(state.extent(extent) for extent in buffer.shape)


def _check_strides(state: Evaluator, buffer: Buffer, array: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    if buffer.strides is None:
        if not array.flags.c_contiguous:
            raise errors.WrongArgumentStrides(
                f"argument {buffer.name} should be contiguous, but its strides are {array.strides} bytes",
                hint="pass a contiguous copy, or declare T.StridedTensor",
            )
        return row_major(shape, buffer.dtype)
    declared = tuple(state.extent(stride) for stride in buffer.strides)
    actual = tuple(step // array.itemsize for step in array.strides)
    if any(a != d and n > 1 for a, d, n in zip(actual, declared, shape, strict=True)):
        raise errors.WrongArgumentStrides(f"argument {buffer.name} should have strides {declared}, but has {actual}")
    if buffer.dtype.is_packed:
        return (*(step * buffer.dtype.per_byte for step in declared[:-1]), 1)
    return declared


def _flat(array: np.ndarray, strides: tuple[int, ...] | None) -> np.ndarray:
    """The elements' memory as one dimension, from the first element to the last."""
    if strides is None or array.size == 0:
        return array.reshape(-1)
    length = 1 + sum((n - 1) * (step // array.itemsize) for n, step in zip(array.shape, array.strides, strict=True))
    bits = array.view(f"uint{8 * array.itemsize}")  # NumPy cannot stride types that are not its own
    flat = np.lib.stride_tricks.as_strided(bits, (length,), (array.itemsize,), writeable=array.flags.writeable)
    return flat.view(array.dtype)


def _make_output(state: Evaluator, buffer: Buffer) -> np.ndarray:
    shape = _shape(state, buffer)
    array = poisoned(shape, buffer.dtype)
    state.add_argument(buffer, Memory(array.reshape(-1)), shape, row_major(shape, buffer.dtype))
    return array
