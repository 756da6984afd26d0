"""`Rounding`: how a weight is rounded to nearest, and the scales and zero points that follow from the ranges of its
groups; on every device the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import SCHEMES, Format, number_format
from tilewright.ir.dtypes import DType

ZEROS = ("none", "middle", "group")


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the codes of a weight's groups stand, ``[N / rows, K / columns]`` each, an extent of 1 for the same in all.

    Attributes
    ----------
    scales, zeros, tensor_scale : as a `QuantizedWeight` holds them.
    divisor, offsets : float64: the number of a code is ``(w / divisor) + offset``, rounded.
    """

    scales: np.ndarray
    zeros: np.ndarray | None
    tensor_scale: float
    divisor: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, slots=True)
class Rounding:
    """What weights are rounded to.

    Attributes
    ----------
    format : of the codes.
    block : rows and columns that share a scale, 0 for all of them.
    zeros : one of `ZEROS`.
    scale_dtype : type in which scales are held; or a function that says it of a weight's largest magnitude.
    tensor_scale : whether one more scale belongs to the whole weight.
    """

    format: Format
    block: tuple[int, int]
    zeros: str
    scale_dtype: object
    tensor_scale: bool = False

    @classmethod
    def of(
        cls,
        to: str | Format | DType,
        group: int | None,
        zeros: str | None = None,
        block: tuple[int, int] | None = None,
        scale_dtype: object = None,
    ) -> Rounding:
        """From the arguments of `quantize`.  Raises CannotQuantize, UnknownFormat."""
        known = SCHEMES.get(to) if isinstance(to, str) else None
        of = known.format if known is not None else number_format(to)
        if zeros is None:
            zeros = "none" if of.kind != "uint" else "group" if of.name == "uint1" else "middle"
        if known is not None:
            block, scale_dtype = known.block, scale_dtype or known.scale_dtype
        elif block is None:
            block = (1, 0 if group is None else group)
        _check(of, block, zeros)
        return cls(of, block, zeros, scale_dtype or "float32", known is not None and known.tensor_scale)

    @staticmethod
    def check(shape: tuple[int, ...]) -> None:
        """Raise CannotQuantize for what is no matrix."""
        if len(shape) != 2:
            raise CannotQuantize(f"a weight has two dimensions, [N, K], not {len(shape)}")

    @property
    def takes_means(self) -> bool:
        """Whether a scale is the mean of a group's magnitudes, and not what its largest needs."""
        return self.format.name in ("int1", "ternary")

    def whole_block(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of a block of a weight."""
        return self.block[0] or max(1, shape[0]), self.block[1] or max(1, shape[1])

    def settle(self, least: np.ndarray, most: np.ndarray, total: np.ndarray | None, shape: tuple[int, ...]) -> Grid:
        """Scales and zero points, of the least and the most of each row's part of a block, float64 ``[N, K /
        columns]``, and the sums of magnitudes likewise, where the format `takes_means`. Raises CannotQuantize for
        scales that their type does not have."""
        block, of = self.whole_block(shape), self.format
        least = np.minimum(_of_blocks(np.minimum, least, block[0]), 0.0)
        most = np.maximum(_of_blocks(np.maximum, most, block[0]), 0.0)
        magnitude = np.maximum(-least, most)
        largest = float(magnitude.max(initial=0.0))
        held = _scale_format(self.scale_dtype(largest) if callable(self.scale_dtype) else self.scale_dtype)
        if total is not None:
            magnitude = _of_blocks(np.add, total, block[0]) / _sizes(shape, block)
        tensor_scale = 1.0
        if self.zeros == "group":
            scales = (most - least) / of.maximum
        else:
            offset = float((int(of.maximum) + 1) // 2) if self.zeros == "middle" else 0.0
            scales = magnitude / (of.maximum - offset)
            if self.tensor_scale:
                tensor_scale = float(np.float32(max(scales.max(initial=0.0), 1e-30) / held.maximum))
                scales = scales / tensor_scale
        scales = _held(scales, held)
        exact = scales.astype(np.float64)
        offsets = np.full((1, 1), offset) if self.zeros != "group" else np.clip(np.rint(-least / exact), 0, of.maximum)
        zeros = None if self.zeros == "none" else offsets.astype(np.float32)
        return Grid(scales, zeros, tensor_scale, exact * tensor_scale, offsets)


def sum_in_halves(parts: Any) -> Any:  # NumPy's or torch's
    """The sum over the last axis of an array or a tensor: the second half is added to the first until one is left, so
    that all devices add in the same order."""
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        both = parts[..., :half] + parts[..., half : 2 * half]
        if parts.shape[-1] % 2:
            both[..., 0] += parts[..., -1]
        parts = both
    return parts[..., 0]


def _of_blocks(fold: np.ufunc, of_rows: np.ndarray, rows: int) -> np.ndarray:
    """What is known of each row, for each block of rows."""
    if rows == 1 or not len(of_rows):
        return of_rows
    found: np.ndarray = fold.reduceat(of_rows, np.arange(0, len(of_rows), rows), axis=0)
    return found


def _sizes(shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Elements of each block: the last ones are cut."""
    counts = [np.minimum(size, extent - np.arange(0, extent, size)) for size, extent in zip(block, shape)]
    return np.outer(*counts)


def _scale_format(name: Any) -> Format:
    """The type in which scales are held."""
    held = number_format(name)
    if held.dtype is None or not held.dtype.is_float:
        raise CannotQuantize(f"scales are floats, not {held}", hint="float32, float16, bfloat16, e8m0 or e4m3")
    return held


_SMALLER = "float32 has the largest scales (scale_dtype), formats of more bits need smaller ones"


def _held(scales: np.ndarray, held: Format) -> np.ndarray:
    """Scales in their type: rounded up where it has few values, 1 for groups of zeros."""
    assert held.dtype is not None
    with np.errstate(under="ignore"):
        largest = scales.max(initial=0.0)
        # The scale of all is rounded to float32.
        if largest > held.maximum * (1.0 if held.is_dense else 1.0 + 2.0**-20):
            raise CannotQuantize(f"a group's scale is {largest:.3g}, which {held} does not have", hint=_SMALLER)
        if not held.is_dense:
            numbers = np.array(sorted({v for v in held.values if np.isfinite(v) and v > 0}))
            up = numbers[np.minimum(np.searchsorted(numbers, scales), len(numbers) - 1)]
            return held.encode(np.where(scales > 0, up, 1.0)).view(held.dtype.numpy)
        least = {"float16": 2.0**-24, "bfloat16": 2.0**-126}.get(held.name, float(np.finfo(np.float32).tiny))
        return np.where(scales > 0.0, np.maximum(scales, least), 1.0).astype(held.carrier)


def _check(of: Format, block: tuple[int, int], zeros: str) -> None:
    if of.is_dense:
        raise CannotQuantize(f"{of} holds no codes", hint="formats of 1 to 8 bits do, int4 or e2m1 for example")
    sizes = [size for size in block if isinstance(size, (int, np.integer)) and size >= 0]
    if len(block) != 2 or sizes != [*block]:
        raise CannotQuantize(
            f"groups of {' x '.join(map(str, block))} elements", hint="whole numbers; None is one group for all of K"
        )
    if zeros not in ZEROS:
        raise CannotQuantize(f"no kind of zeros {zeros!r}", hint=f"known: {', '.join(ZEROS)}")
    fitting = [] if of.kind != "uint" else ["group"] if of.name == "uint1" else ["middle", "group"]
    if zeros not in (*fitting, "none"):
        raise CannotQuantize(f"{of} does not go with zeros={zeros!r}", hint=f"use {' or '.join([*fitting, 'none'])}")
