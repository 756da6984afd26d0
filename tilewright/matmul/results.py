"""Of which type the result of a call is, and where it is written: a new array, the caller's own, or one beside that
which is copied to it at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import (
    ReadOnlyArgument,
    WrongArgumentDType,
    WrongArgumentKind,
    WrongArgumentShape,
    WrongArgumentStrides,
)
from tilewright.ir.dtypes import DType, dtype
from tilewright.kernels import WeightFacts
from tilewright.matmul.arrays import check_device, device_of, element_type, empty_like, is_row_major
from tilewright.runtime.tensors import Array, is_torch


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call.

    Attributes
    ----------
    written : the matrix that kernels write.
    given : what the call gives back.
    copied : whether that gets its elements from `written` when they are there.
    """

    written: Any
    given: Any
    copied: bool = False

    def settle(self) -> Array:
        """Give back the result of kernels that were launched."""
        if self.copied:
            found = self.written.reshape(self.given.shape)
            if is_torch(found):
                self.given.detach().copy_(found)
            else:
                self.given[...] = found
        return self.given


def result_for(
    x: Array, shape: tuple[int, ...], of: DType, out: Array | None, read: Iterable[object], what: str = "out"
) -> Result:
    """The result of a call with activations `x`: ``[rows, N]`` for its kernels, `shape` for the caller; `out`, the
    caller's array (called `what`), may have one dimension for all rows too.

    Kernels write rows one after another, to addresses that they can copy to, and nothing that they `read` meanwhile:
    for any other `out` (a slice of a wider tensor, the residual itself, ``out=x``) they write beside it. Raises
    WrongArgumentShape, WrongArgumentDevice, WrongArgumentStrides, ReadOnlyArgument where nothing can be written to it.
    """
    matrix = (math.prod(map(int, shape[:-1])), shape[-1])
    if out is None:
        made = empty_like(x, shape, of)  # no view: torch lets nobody write to those that operators give
        return Result(made.reshape(matrix), made)
    if isinstance(out, tuple):
        raise WrongArgumentKind(f"{what} is a tuple, expected one array")
    check_device(what, out, "the activations are", device_of(x))
    if tuple(out.shape) not in (shape, matrix):
        raise WrongArgumentShape(f"{what} has shape {list(out.shape)}, expected {list(shape)}")
    if not is_torch(out) and not out.flags.writeable:
        raise ReadOnlyArgument(f"{what} is written by the call and is read-only")
    if is_torch(out) and any(step == 0 for extent, step in zip(out.shape, out.stride()) if extent > 1):
        raise WrongArgumentStrides(
            f"{what} is expanded: several of its elements lie at one address", hint="pass one with memory of its own"
        )
    if is_row_major(out) and not any(share_memory(out, other) for other in read if other is not None):
        return Result(out.reshape(matrix), out)
    return Result(empty_like(x, matrix, of), out, copied=True)


def share_memory(one: Any, other: Any) -> bool:
    """Whether two row-major arrays have bytes in common."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)  # by their bounds, as below; an address costs NumPy ten times as much
    first, second = one.data_ptr(), other.data_ptr()
    return bool(first < second + other.nbytes and second < first + one.nbytes)


def result_type(
    out: Array | None, out_dtype: object, activations: str, facts: WeightFacts, kind: str, quantize: object
) -> str:
    """The type of a call's result: what is asked for, else that of float activations, int32 for exact sums, float32."""
    if out is not None:
        found = element_type(out).name
        if out_dtype is not None and dtype(out_dtype).name != found:
            raise WrongArgumentDType(f"out is {found}, but out_dtype is {dtype(out_dtype)}")
        return found
    if out_dtype is not None:
        return dtype(out_dtype).name
    source = dtype(activations)
    if source.is_float and source.bits >= 16:
        return activations
    unscaled = facts.scale is None and facts.multiplier is None and not facts.factor and kind == "none"
    whole_numbers = source.is_integer and facts.format.is_integer and facts.zeros in ("none", "one")
    return "int32" if unscaled and whole_numbers else "float32"
