"""Tensors of checkpoints as NumPy arrays, and the checks that name the tensor at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.runtime.tensors import Array, as_numpy

FLOATS = ("float16", "bfloat16", "float32", "float64")

Extent = int | None
"""A dimension that is known, or None where any extent will do."""


def expect(name: str, value: object, dtypes: Sequence[str], shape: Sequence[Extent], form: str) -> np.ndarray:
    """The tensor called `name`, checked: one of such element types, of a shape (`form` says it in words). Raises
    MissingTensor where there is none, InvalidTensor for another."""
    if value is None:
        raise MissingTensor(f"{name} is missing, where {' or '.join(dtypes)} {form} is due")
    array = as_numpy(value)
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if fits and array.dtype.name in dtypes:
        return array
    wanted = " or ".join(dtypes)
    known = "" if None in shape else f" = {list(shape)}"
    raise InvalidTensor(
        f"{name} is {array.dtype.name} {list(array.shape)}, where {wanted} {form}{known} is due",
        hint="is the checkpoint of the format, bits and group size that its configuration says?",
    )


def take(tensors: Mapping[str, object], prefix: str, name: str, format: str) -> Any:  # NumPy's or torch's
    """The tensor ``prefix + name``. Raises MissingTensor."""
    if prefix + name not in tensors:
        raise MissingTensor(f"{prefix + name} is missing: a {format} weight needs it")
    return tensors[prefix + name]


def either(tensors: Mapping[str, np.ndarray], prefix: str, *names: str) -> np.ndarray | None:
    """The one tensor of several names that is there, or None. Raises InvalidTensor where more are."""
    there = [prefix + name for name in names if prefix + name in tensors]
    if len(there) > 1:
        raise InvalidTensor(f"{there[0]} is beside {there[1]}, where one of the two is due")
    return tensors[there[0]] if there else None


def matrix(tensors: Mapping[str, object], name: str) -> Array:
    """The tensor `name`, whose rows and columns are about to be counted. Raises MissingTensor, InvalidTensor."""
    found = take(tensors, name, "", "quantised")
    if found.ndim != 2:
        raise InvalidTensor(f"{name} is {found.dtype} {list(found.shape)}, where rows and columns are due")
    return found


def factor(name: str, value: object, dtypes: Sequence[str]) -> float:
    """The one positive number of a tensor, by which a weight is multiplied or divided. Raises MissingTensor,
    InvalidTensor."""
    given = None if value is None else np.reshape(as_numpy(value), -1)
    found = float(expect(name, given, dtypes, [1], "[1]")[0])
    if not np.isfinite(found) or found <= 0.0:
        raise InvalidTensor(f"{name} is {found}, where a positive number is due")
    return found


def positive(name: str, value: int) -> int:
    """A size given by metadata, a positive whole number. Raises InvalidTensor."""
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidTensor(f"{name} is {value!r}, where a positive whole number is due")
    return int(value)
