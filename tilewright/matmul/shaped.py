"""Checks of raw tensors, each with one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import WrongArgumentDType, WrongArgumentKind, WrongArgumentShape, an
from tilewright.ir.dtypes import UINT8
from tilewright.matmul.arrays import check_device, contiguous, element_type, viewed
from tilewright.runtime.tensors import Array


class Shaped:
    """Tensors of the shape and type that is due, on one device; each as kernels take it."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(
        self, what: str, array: Array | None, expected: tuple[int, ...] | None, of: object, also: tuple[int, ...] = ()
    ) -> Any:  # of the library that the array is of
        if array is None or expected is None:
            return None
        if not hasattr(array, "shape"):
            raise WrongArgumentKind(f"{what} is {an(type(array).__name__)}, expected a tensor")
        check_device(what, array, "A is", self.device)
        shape = tuple(array.shape)
        flat = int(np.prod(shape, dtype=np.int64))
        if shape not in (expected, also) and not (what == "a_scale" and flat == int(np.prod(expected))):
            raise WrongArgumentShape(f"{what} has shape {list(shape)}, expected {list(expected)}")
        if of is not None and element_type(array) != of:
            raise WrongArgumentDType(f"{what} is {element_type(array)}, expected {of}")
        array = contiguous(array)
        if of is None and element_type(array).name == "int8":
            array = viewed(array, UINT8)
        return array.reshape(expected)
