"""Element-wise functions of arrays that are broadcast against one another."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.kernels.values import Tile, Value
from tilewright.language.tensors import TensorType
from tilewright.language.trace import PrimFunc
from tilewright.machine.arch import Arch
from tilewright.runtime.kernel import Kernel


def elementwise(
    function: Callable[..., object],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    out_dtype: str,
    *,
    target: str | Arch = "auto",
    block: int = 4096,
) -> Kernel:  # `function` as the author has it
    """A kernel for ``function(*elements)`` over arrays broadcast as NumPy does.

    Parameters
    ----------
    function : of one symbolic scalar an input, written with Python's operators and `T`'s functions.
    shapes, dtypes : one an input, up to three inputs.
    out_dtype : of the result; what `function` gives is cast to it.
    target : see `tilewright.compile`.
    block : elements that one block computes, about.

    Returns
    -------
    Kernel : takes the inputs, returns an array of the broadcast shape.

    Raises
    ------
    ValueError : the shapes do not broadcast, or there are no inputs or more than three.

    Examples
    --------
    >>> add = elementwise(lambda a, b: a + b, [(64, 1), (48,)], ["float32"] * 2, "float32", target="cpu")
    >>> float(add(np.ones((64, 1), np.float32), np.ones(48, np.float32)).sum())
    6144.0
    """
    if len(shapes) != len(dtypes) or not 1 <= len(shapes) <= 3:
        raise ValueError(f"{len(shapes)} shapes and {len(dtypes)} dtypes; between one and three inputs are needed")
    shape = np.broadcast_shapes(*shapes)
    tensors = [T.Tensor(given or (1,), dtype) for given, dtype in zip(shapes, dtypes, strict=True)]
    store = functools.partial(_store, function, shape or (1,), out_dtype, block)
    program = _launched(store, tensors, T.Tensor(shape or (1,), out_dtype))
    return tilewright.compile(program, out_idx=-1, target=target)


@T.macro
def _store(
    function: Callable[..., object],
    shape: tuple[int, ...],
    out_dtype: str,
    block: int,
    inputs: Sequence[Tile],
    output: Tile,
) -> None:
    """The kernel's body: tiles of rows by columns, where the rows are all dimensions but the last."""
    columns, rows = shape[-1], math.prod(shape[:-1])
    width = min(block, columns)
    height = max(1, min(block // max(width, 1), rows))
    with T.Kernel(T.ceildiv(columns, max(width, 1)), T.ceildiv(rows, height), threads=128) as (x, y):
        for i, j in T.Parallel(height, width):
            index = (*_coordinates(y * height + i, shape[:-1]), x * width + j)
            elements = [tensor[_source_index(index, tensor.shape)] for tensor in inputs]
            output[index] = T.cast(function(*elements), out_dtype)


def _coordinates(row: Value, extents: tuple[int, ...]) -> tuple[Value, ...]:
    """A row's coordinates; the first is left uncut, so that rows behind the last are out of bounds."""
    coordinates: list[Value] = []
    for axis in reversed(range(len(extents))):
        coordinates.insert(0, row if axis == 0 else row % extents[axis])
        row = row // extents[axis] if axis else row
    return tuple(coordinates)


def _source_index(index: tuple[Value, ...], shape: Sequence[Value]) -> tuple[Value, ...]:
    """Where an input of this shape has the element: dimensions of extent 1 are repeated."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if extent == 1 else position for position, extent in zip(own, shape, strict=True))


def _launched(store: Callable[..., None], tensors: Sequence[TensorType], Output: TensorType) -> PrimFunc:
    """The function that is launched, of one to three inputs."""
    First, Second, Third = (*tensors, None, None)[:3]

    def launched(A: First, B: Second, C: Third, Output: Output) -> None:
        store([A, B, C][: len(tensors)], Output)

    launched.__name__ = f"elementwise_{('unary', 'binary', 'ternary')[len(tensors) - 1]}"
    return T.prim_func(launched)
