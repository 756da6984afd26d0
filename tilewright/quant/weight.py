"""`QuantizedWeight`: a weight as codes with their scales and zero points, the reference of every kernel that multiplies
by it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize, NotRepresentable
from tilewright.formats import Format, number_format, pack_plain
from tilewright.ir.dtypes import dtype
from tilewright.runtime.tensors import as_numpy

ZEROS_MODES = ("original", "rescale", "quantized")

ARRAYS = ("scales", "zeros", "multipliers", "g_idx", "divisors", "rotation")
"""Fields of a weight that are tensors of their own, where it has them."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A weight ``[N, K]``: ``(value(code) - zero) * multiplier * scale * tensor_scale``.

    Arrays may be given as tensors of torch; they are held as NumPy's. Groups are blocks of the weight, `block` = (rows,
    columns) large; ``(1, K)`` is one group a channel, ``(N, K)`` one for all, ``(128, 128)`` DeepSeek's. Scales, zeros
    and multipliers are arrays ``[N / rows, K / columns]`` (rounded up: the last block may be cut), where an extent of 1
    stands for the same in all groups.

    Attributes
    ----------
    codes : ``[N, K]`` uint8 bit patterns of `format`; for dense formats the elements themselves.
    format : a `Format`, or its name.
    scales : of any float type (e8m0 and e4m3 by ml_dtypes); None for 1.
    zeros : floats, or integers of `format`'s range in the mode ``"quantized"``; None for none.
    zeros_mode : ``"original"``: ``(w - z) * s``; ``"rescale"``: ``w * s - z``; ``"quantized"``: as original, with
        zeros that are codes of the (unsigned) format.
    block : rows and columns of a group, 0 for all of them; by default a group is a channel.
    g_idx : ``[K]`` int32, the group of each column, where groups are no runs of columns (act-order).
    multipliers : ``[N / rows, K / columns]`` int8: second-level scales of groups, below a float scale a channel.
    tensor_scale : one more factor for the whole weight (nvfp4).
    divisors : ``[K]``: activations are divided by these first (SmoothQuant); `codes` stand for the weight times them.
    rotation : ``[1 or K / h, h, h]``: activations are multiplied by these matrices first, h columns at a time (one for
        all, or each its own); `codes` stand for what multiplies the products. Not beside `divisors`.

    Raises
    ------
    NotRepresentable, InvalidCode : a code or a zero out of range, named with its index.
    CannotQuantize : shapes that do not fit, scales or zeros that are not finite.
    """

    codes: np.ndarray
    format: Format
    scales: np.ndarray | None = None
    zeros: np.ndarray | None = None
    zeros_mode: str = "original"
    block: tuple[int, int] = (1, 0)
    g_idx: np.ndarray | None = None
    multipliers: np.ndarray | None = None
    tensor_scale: float = 1.0
    divisors: np.ndarray | None = None
    rotation: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", number_format(self.format))
        for name in ("codes", *ARRAYS):
            given = getattr(self, name)
            if given is not None and not isinstance(given, np.ndarray):
                object.__setattr__(self, name, as_numpy(given))
        if self.codes.ndim != 2:
            raise CannotQuantize(f"a weight has two dimensions, [N, K], not {self.codes.ndim}")
        block = _whole_block(self.block)
        whole = tuple(part or max(1, extent) for part, extent in zip(block, self.codes.shape))
        object.__setattr__(self, "block", whole)
        object.__setattr__(self, "tensor_scale", _one_number(self.tensor_scale))
        self._check_codes()
        for name in ("scales", "zeros", "multipliers"):
            self._check_groups(name, getattr(self, name))
        self._check_zeros()
        if self.divisors is not None:
            check_divisors(self.divisors, self.shape[1])
        if self.rotation is not None:
            _check_rotation(self.rotation, self.shape[1], self.divisors)
        if self.g_idx is not None:
            _check_columns("g_idx", self.g_idx, self.shape[1])
            groups = self.group_shape[1]
            wrong = (self.g_idx < 0) | (self.g_idx >= groups)
            if wrong.any():
                k = int(np.flatnonzero(wrong)[0])
                raise CannotQuantize(f"g_idx[{k}] is {self.g_idx[k]}, but there are {groups} groups")

    def _check_codes(self) -> None:
        if self.codes.dtype != self.format.carrier:
            raise CannotQuantize(
                f"codes of {self.format} are {self.codes.dtype}, expected {self.format.carrier}",
                hint=f"QuantizedWeight.from_values takes the numbers themselves, {self.format.describe_values()}",
            )
        self.format.check(self.codes)

    def _check_groups(self, name: str, values: np.ndarray | None) -> None:
        if values is None:
            return
        expected = self.group_shape
        if values.ndim != 2 or any(found not in (1, wanted) for found, wanted in zip(values.shape, expected)):
            raise CannotQuantize(
                f"the {name} have shape {list(values.shape)}, expected {list(expected)}",
                hint=f"the weight is {list(self.shape)} in groups of {self.block[0]} x {self.block[1]}"
                "; 1 for either extent is the same in all groups",
            )
        if values.dtype.kind in "cSUOMm":
            raise CannotQuantize(f"the {name} are {values.dtype}", hint="real numbers are due")
        wide = values.astype(np.float64)
        if not np.isfinite(wide).all():
            row, group = np.argwhere(~np.isfinite(wide))[0]
            what = {"scales": "scale", "zeros": "zero point", "multipliers": "multiplier"}[name]
            raise CannotQuantize(
                f"the {what} of group {group} of row {row} is {wide[row, group]}",
                hint="only finite scales and zero points give a weight",
            )

    def _check_zeros(self) -> None:
        if self.zeros_mode not in ZEROS_MODES:
            raise CannotQuantize(f"no zeros_mode {self.zeros_mode!r}", hint=f"known: {', '.join(ZEROS_MODES)}")
        if self.zeros_mode != "quantized" or self.zeros is None:
            return
        if self.format.kind != "uint":
            raise CannotQuantize(
                f"zeros_mode 'quantized' does not go with {self.format}",
                hint="it is for unsigned integers; signed ones take zeros_mode 'original' or none",
            )
        wide = self.zeros.astype(np.float64)
        wrong = (wide != np.rint(wide)) | (wide < 0) | (wide > self.format.maximum)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise NotRepresentable(f"{wide[place]:g}", place, self.format.name, self.format.describe_values())

    @classmethod
    def from_values(cls, values: np.ndarray, format: Format | str, **rest: object) -> QuantizedWeight:
        """From the numbers that codes stand for, ``[N, K]``: -8 to 7 for int4, for example.

        Raises
        ------
        NotRepresentable : a number that the format does not have, named with its index.
        """
        return cls(number_format(format).exact(values), number_format(format), **rest)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape

    @property
    def group(self) -> int:
        """Columns of a group."""
        return self.block[1]

    @property
    def group_shape(self) -> tuple[int, int]:
        """Groups along N and along K; with `g_idx`, as many along K as there are scales."""
        rows, columns = -(-self.shape[0] // self.block[0]), -(-self.shape[1] // self.block[1])
        if self.g_idx is not None:
            columns = max([columns, *(v.shape[1] for v in (self.scales, self.zeros) if v is not None and v.ndim == 2)])
        return rows, columns

    @property
    def packed(self) -> np.ndarray:
        """The codes as bytes, row by row, low bits first (`formats.PLAIN`)."""
        return self.codes if self.format.is_dense else pack_plain(self.codes, self.format.bits)

    @property
    def zero(self) -> float | None:
        """The one zero point of all groups (0 where there are none); None where they differ, or are of mode rescale."""
        if self.zeros is None:
            return 0.0
        if self.zeros_mode == "rescale" or self.zeros.size != 1:
            return None
        return float(self.zeros.reshape(-1)[0])

    @property
    def bits_per_element(self) -> float:
        """Storage of one element with its share of scales, zeros and multipliers."""
        total = float(self.format.bits * self.codes.size)
        total += sum(v.size * 8 * v.dtype.itemsize for v in (self.scales, self.multipliers) if v is not None)
        if self.zeros is not None:
            total += self.zeros.size * (self.format.bits if self.zero is None else 0)
        return total / max(1, self.codes.size)

    @property
    def grouped_scales(self) -> np.ndarray:
        """Scales as kernels take them: ``[K / group, N]`` float32, every factor but the multipliers in it."""
        scales = np.ones((1, 1)) if self.scales is None else self.scales.astype(np.float64)
        return self.by_group(scales * self.tensor_scale)

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """An array of groups as kernels take it: ``[K / group, N]`` float32."""
        full = np.broadcast_to(values, self.group_shape)
        rows = np.repeat(full, self.block[0], axis=0)[: self.shape[0]]
        return np.ascontiguousarray(rows.T.astype(np.float32))

    def expanded(self, values: np.ndarray) -> np.ndarray:
        """An array of groups as float64 with one element for each of the weight's."""
        full = np.broadcast_to(values.astype(np.float64), self.group_shape)
        rows = np.repeat(full, self.block[0], axis=0)[: self.shape[0]]
        if self.g_idx is not None:
            return rows[:, self.g_idx]
        return np.repeat(rows, self.block[1], axis=1)[:, : self.shape[1]]

    def dequantize(self) -> np.ndarray:
        """The weight that the codes stand for, ``[N, K]`` float64; with `divisors`, the one for divided activations."""
        values = self.format.decode(self.codes)
        zeros = 0.0 if self.zeros is None else self.expanded(self.zeros)
        factor = np.float64(self.tensor_scale)
        for factors in (self.multipliers, self.scales):
            if factors is not None:
                factor = factor * self.expanded(factors)
        return values * factor - zeros if self.zeros_mode == "rescale" else (values - zeros) * factor

    def to_dense(self) -> np.ndarray:
        """The weight that activations are multiplied by in effect, ``[N, K]`` float64: `divisors` undone."""
        wide = self.dequantize()
        if self.rotation is not None:
            back = self.rotation.astype(np.float64).swapaxes(1, 2)
            parts = wide.reshape(len(wide), -1, back.shape[1]).swapaxes(0, 1)
            wide = (parts @ back).swapaxes(0, 1).reshape(wide.shape)
        return wide if self.divisors is None else wide / self.divisors.astype(np.float64)

    def scale_dtype(self) -> str:
        """Name of the type that scales are held in."""
        return "float32" if self.scales is None else dtype(self.scales.dtype).name


def meaning(weight: object) -> dict[str, Any]:  # arguments by name, of several types
    """The remaining parameters of a weight of any kind, beside its arrays, format and shape, by name."""
    return {name: getattr(weight, name) for name in ("block", "zeros_mode", "tensor_scale")}


def _whole_block(block: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a group as Python's numbers.  Raises CannotQuantize."""
    try:
        rows, columns = map(operator.index, block)
    except (TypeError, ValueError):
        rows = columns = -1
    if min(rows, columns) < 0:
        sizes = " x ".join(map(str, block)) if isinstance(block, (tuple, list)) else block
        raise CannotQuantize(f"groups of {sizes} elements", hint="whole numbers of rows and columns; 0 is all of them")
    return rows, columns


def _one_number(value: float) -> float:
    """A finite number as Python's.  Raises CannotQuantize."""
    found = as_numpy(value)
    if found.size != 1 or found.dtype.kind not in "fiub" or not np.isfinite(found.astype(np.float64)).all():
        raise CannotQuantize(f"the scale of the whole weight is {value}", hint="one finite number is due")
    return float(found.reshape(())[()])


def check_divisors(divisors: np.ndarray, columns: int) -> None:
    """Raise CannotQuantize unless there is a finite number other than 0 to divide each column of activations by."""
    _check_columns("divisors", divisors, columns)
    wrong = ~np.isfinite(divisors.astype(np.float64)) | (divisors == 0)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        raise CannotQuantize(f"divisors[{k}] is {divisors[k]:g}", hint="activations are divided by these")


def _check_rotation(rotation: np.ndarray, columns: int, divisors: np.ndarray | None) -> None:
    shape = rotation.shape
    if len(shape) != 3 or shape[1] != shape[2] or not shape[1] or columns % shape[1]:
        raise CannotQuantize(f"rotation has shape {list(shape)}, but K is {columns}", hint="[1 or K / h, h, h] is due")
    if shape[0] not in (1, columns // shape[1]) or divisors is not None or not np.isfinite(rotation).all():
        raise CannotQuantize(
            f"rotation has shape {list(shape)} for K = {columns}{'' if divisors is None else ', beside divisors'}",
            hint="one finite matrix for all columns or one for each h, into which divisors are multiplied",
        )


def _check_columns(name: str, values: np.ndarray, columns: int) -> None:
    if values.shape != (columns,):
        raise CannotQuantize(
            f"{name} has shape {list(values.shape)}, but K is {columns}", hint=f"one element a column: [{columns}]"
        )
