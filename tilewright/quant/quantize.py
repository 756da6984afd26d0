"""Rounds a weight matrix to low-bit codes with one scale, and if wished one zero point, a group of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.ir.dtypes import DType, dtype, pack

ZEROS = ("none", "middle", "group")


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight ``[N, K]`` as ``(codes - zeros) * scales``.

    Attributes
    ----------
    codes : ``[N, K]`` in the carrier of `dtype`: one int8 or uint8 an element.
    scales : ``[K / group, N]`` float32: the scale of elements ``group * g`` to ``group * g + group`` of row n.
    zeros : ``[K / group, N]`` float32, whole numbers in the range of `dtype`; None where every zero is `zero`.
    zero : the zero point of all groups; None where each has its own.
    dtype : of the codes.
    group : elements along K that share a scale.

    Raises
    ------
    CannotQuantize : a scale or a zero point is NaN or infinite.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    zero: float | None
    dtype: DType
    group: int

    def __post_init__(self) -> None:
        for what, values in (("scale", self.scales), ("zero point", self.zeros)):
            if values is not None and not np.isfinite(values).all():
                group, row = np.argwhere(~np.isfinite(values))[0]
                raise CannotQuantize(
                    f"the {what} of group {group} of row {row} is {values[group, row]}",
                    hint="only finite scales and zero points give a weight",
                )

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape  # type: ignore[return-value]

    @property
    def packed(self) -> np.ndarray:
        """The codes as they cross the boundary: uint8, several to a byte along K, low bits first."""
        return pack(self.codes, self.dtype)

    @property
    def bits_per_element(self) -> float:
        """Storage of one element with its share of scale (float32) and zero point (one code)."""
        extra = 32 + (self.dtype.bits if self.zeros is not None else 0)
        return self.dtype.bits + extra / self.group

    def dequantize(self) -> np.ndarray:
        """The weight that the codes stand for, ``[N, K]`` float32 (each step rounded to float32)."""
        zeros = np.float32(self.zero) if self.zeros is None else np.repeat(self.zeros, self.group, axis=0).T
        scales = np.repeat(self.scales, self.group, axis=0).T
        return np.ascontiguousarray((self.codes.astype(np.float32) - zeros) * scales)


def quantize(weight: Any, to: Any = "uint4", *, group: int | None = 128, zeros: str | None = None) -> QuantizedWeight:
    """Round a weight to codes of `to`, to nearest, so that no element of a group is cut off.

    Parameters
    ----------
    weight : ``[N, K]``, anything NumPy takes for an array of floats.
    to : an integer type of 2 to 8 bits.
    group : elements along K that share a scale; None for all of K.
    zeros : ``"none"`` (signed types: code 0 is 0.0), ``"middle"`` (unsigned types: the middle code is 0.0), or
        ``"group"`` (unsigned types: each group has a zero point, so that its codes span its own range).
        By default none for signed types, middle for unsigned ones.

    Raises
    ------
    CannotQuantize : a weight that is no finite matrix, a group that does not divide K, a type or zeros that
        do not fit together.
    """
    wide, of = np.asarray(weight, dtype=np.float64), dtype(to)
    zeros = zeros or ("none" if of.kind == "int" else "middle")
    group = wide.shape[-1] if group is None and wide.ndim else group or 1
    _check(wide, of, group, zeros)
    rows, columns = wide.shape
    blocks = wide.reshape(rows, columns // group, group)
    low, high = int(of.minimum), int(of.maximum)
    middle = {"none": 0.0, "middle": float((high + 1) // 2)}.get(zeros)
    if middle is None:
        least, most = np.minimum(blocks.min(2), 0.0), np.maximum(blocks.max(2), 0.0)
        scales = _positive((most - least) / (high - low))
        offsets = np.clip(np.rint(-least / scales), low, high)
    else:
        scales = _positive(np.abs(blocks).max(2) / (high - middle))
        offsets = np.full_like(scales, middle)
    codes = np.clip(np.rint(blocks / scales[:, :, None] + offsets[:, :, None]), low, high)
    return QuantizedWeight(
        codes=codes.reshape(rows, columns).astype(of.numpy),
        scales=np.ascontiguousarray(scales.T.astype(np.float32)),
        zeros=np.ascontiguousarray(offsets.T.astype(np.float32)) if middle is None else None,
        zero=middle,
        dtype=of,
        group=group,
    )


def _positive(scales: np.ndarray) -> np.ndarray:
    """Scales as float32 holds them, 1 for groups of zeros."""
    return np.where(scales > 0.0, np.maximum(scales.astype(np.float32), np.finfo(np.float32).tiny), 1.0).astype(
        np.float64
    )


def _check(weight: np.ndarray, of: DType, group: int, zeros: str) -> None:
    if weight.ndim != 2:
        raise CannotQuantize(f"a weight has two dimensions, [N, K], not {weight.ndim}")
    if not np.isfinite(weight).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(weight))[0])
        raise CannotQuantize(f"the weight is {weight[where]} at {list(where)}", hint="only finite weights have codes")
    if not of.is_integer or not 2 <= of.bits <= 8:
        raise CannotQuantize(f"{of} holds no codes", hint="integer types of 2 to 8 bits do, int4 or uint4 for example")
    if group < 1 or weight.shape[1] % group:
        raise CannotQuantize(f"groups of {group} do not divide K = {weight.shape[1]}", hint="None is one group for all")
    if zeros not in ZEROS:
        raise CannotQuantize(f"no kind of zeros {zeros!r}", hint=f"known: {', '.join(ZEROS)}")
    if (zeros == "none") != (of.kind == "int"):
        fitting = "none" if of.kind == "int" else "middle or group"
        raise CannotQuantize(f"{of} does not go with zeros={zeros!r}", hint=f"use {fitting}")
