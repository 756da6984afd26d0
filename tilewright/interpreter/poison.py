"""Values that show when memory is used before it is written: NaN in floats, 0xAA in integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.arguments import storage_shape
from tilewright.ir.dtypes import DType

PATTERN = 0xAA


def poison(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Fill `array`, in place, with what no computation should give: NaN, or bytes of 0xAA.

    Parameters
    ----------
    array : contiguous array of ``dtype.numpy``, or of packed bytes where the dtype is packed.
    """
    if dtype.is_float and dtype.nans:
        array.fill(np.nan)
    elif dtype.kind == "bool":
        array.fill(True)
    else:
        array.view(np.uint8).fill(PATTERN)
    return array


def poisoned(shape: Sequence[int], dtype: DType) -> np.ndarray:
    """A new poisoned array for a tensor of `shape`: packed bytes for types below eight bits."""
    carrier = np.dtype(np.uint8) if dtype.is_packed else dtype.numpy
    return poison(np.empty(storage_shape(tuple(shape), dtype), carrier), dtype)
