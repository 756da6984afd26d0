"""Rounds a weight matrix to codes of any format with a scale, and if wished a zero point, a group of elements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import Format
from tilewright.ir.dtypes import DType
from tilewright.libraries import torch
from tilewright.options import in_context
from tilewright.quant.rounding import Rounding, sum_in_halves
from tilewright.quant.weight import QuantizedWeight, check_divisors
from tilewright.runtime.tensors import as_numpy, is_torch


def quantize(
    weight: object,
    to: str | Format | DType = "uint4",
    *,
    group: int | None = 128,
    zeros: str | None = None,
    block: tuple[int, int] | None = None,
    scale_dtype: object = None,
    divisors: object = None,
) -> QuantizedWeight:
    """Round a weight to codes of `to`, to nearest, so that no element of a group is cut off.

    The scales of ``int1`` and ``ternary`` are the mean of a group's magnitudes, as BitNet has it; there cutting off
    is the point.

    Parameters
    ----------
    weight : ``[N, K]``, a tensor of torch or anything NumPy takes for an array of real numbers.
    to : a number format of at most 8 bits, or a scheme with its own groups (``"mxfp4"``, ``"nvfp4"``, ...).
    group : elements along K that share a scale; None for all of K; the last group may be shorter.
    zeros : ``"none"`` (code 0 is 0.0), ``"middle"`` (unsigned types: the middle code is 0.0), or ``"group"`` (unsigned
        types: each group has a zero point, so that its codes span its own range).
        By default middle for unsigned integers (group for uint1), none for all else.
    block : rows and columns that share a scale, in place of `group`; 0 stands for all.
    scale_dtype : type in which scales are held, ``"float32"`` by default; or a function that says it of the largest
        magnitude.
    divisors : ``[K]``: activations will be divided by these, the weight is multiplied by them (SmoothQuant).

    Raises
    ------
    CannotQuantize : a weight that is no finite matrix, a type, groups or zeros that do not fit together, scales that
        their type does not have.
    UnknownFormat : no such format or scheme.
    """
    return to_nearest(weight, Rounding.of(to, group, zeros, block, scale_dtype), divisors)


def to_nearest(weight: object, how: Rounding, divisors: object = None, name: str = "the weight") -> QuantizedWeight:
    """`quantize` as settled before; `name` is the weight's in messages.  Raises CannotQuantize."""
    given = real_numbers(weight)
    how.check(given.shape)
    if divisors is not None:
        divisors = as_numpy(divisors).astype(np.float64)
        check_divisors(divisors, given.shape[1])
    block, wide = how.whole_block(given.shape), _Wide(given, divisors, name)
    slabs = _slabs(given.shape, block[0])
    grid = how.settle(*_ranges(wide, slabs, block, given.shape, how.takes_means), given.shape)
    codes = np.empty(given.shape, np.uint8)

    def encode(rows: slice) -> None:
        values, blocks = wide(rows), _blocks(rows, block[0])
        values = values / _expanded(grid.divisor[blocks], block, values.shape)
        of_blocks = grid.offsets[blocks] if len(grid.offsets) > 1 else grid.offsets
        if of_blocks.any():
            values = values + _expanded(of_blocks, block, values.shape)
        codes[rows] = how.format.encode(values)

    _in_parallel(encode, slabs)
    return QuantizedWeight(
        codes=codes,
        format=how.format,
        scales=grid.scales,
        zeros=grid.zeros,
        block=block,
        tensor_scale=grid.tensor_scale,
        divisors=None if divisors is None else np.asarray(divisors, np.float32),
    )


def real_numbers(weight: object) -> np.ndarray:
    """A weight as an array.  Raises CannotQuantize for what holds no real numbers."""
    if getattr(weight, "is_meta", False):
        raise CannotQuantize("the weight is on the meta device: it has no numbers")
    if is_torch(weight) and (weight.is_nested or weight.layout is not torch.strided):
        kind = "nested" if weight.is_nested else weight.layout
        raise CannotQuantize(f"the weight is a {kind} tensor", hint="pass weight.to_dense()")
    try:
        array = as_numpy(weight)
    except ValueError:
        raise CannotQuantize("the weight is no matrix: its rows differ in length") from None
    if array.dtype.kind in "cSUOMm" or array.dtype.names is not None:
        raise CannotQuantize(f"a weight of {array.dtype} has no codes", hint="real numbers do")
    return array


AT_ONCE = 1 << 18
"""Elements that are rounded at once: their float64 stay in a processor's cache, larger arrays are mapped anew each
time."""

T = TypeVar("T")


def _slabs(shape: tuple[int, ...], rows: int) -> list[slice]:
    """Rows of a weight in parts of about `AT_ONCE` elements: of whole blocks of so many rows, or inside of one."""
    step = max(1, AT_ONCE // max(1, shape[1]))
    step = step // rows * rows if step >= rows else step
    ends = range(0, shape[0], max(step, rows))
    return [
        slice(start, min(start + step, end + max(step, rows), shape[0]))
        for end in ends
        for start in range(end, min(end + max(step, rows), shape[0]), step)
    ]


def _blocks(rows: slice, size: int) -> slice:
    """The rows of blocks that rows of a weight are in."""
    return slice(rows.start // size, -(-rows.stop // size))


def _in_parallel(work: Callable[[slice], T], slabs: Sequence[slice]) -> list[T]:
    """The work on all slabs, on all processors: NumPy lets go of the interpreter meanwhile."""
    workers = min(len(slabs), os.cpu_count() or 1)
    if workers < 2:
        return [work(slab) for slab in slabs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(in_context(work), slabs))


@dataclass(frozen=True, slots=True)
class _Wide:
    """Rows of a weight as float64, times what activations are divided by; raises CannotQuantize for what is not
    finite."""

    given: np.ndarray
    divisors: np.ndarray | None
    name: str

    def __call__(self, rows: slice) -> np.ndarray:
        wide = np.asarray(self.given[rows], np.float64)
        finite = np.isfinite(wide)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            raise CannotQuantize(
                f"{self.name} is {wide[row, column]} at {[rows.start + row, column]}",
                hint="only finite weights have codes",
            )
        return wide if self.divisors is None else wide * self.divisors


def _expanded(values: np.ndarray, block: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
    """One element for each of a slab's, of values that are each block's (or the same for all)."""
    if 1 in values.shape and values.size == 1:
        return values
    rows = values if len(values) == 1 or block[0] == 1 else np.repeat(values, block[0], axis=0)[: shape[0]]
    return rows if rows.shape[1] == 1 else np.repeat(rows, block[1], axis=1)[:, : shape[1]]


def _ranges(
    wide: _Wide, slabs: Sequence[slice], block: tuple[int, int], shape: tuple[int, ...], means: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Least and largest of each row's part of a block ``[N, K / columns]``, and the sum of its magnitudes where
    `means` are asked for."""
    groups = -(-shape[1] // block[1])
    least, most = np.zeros((shape[0], groups)), np.zeros((shape[0], groups))
    total = np.zeros((shape[0], groups)) if means else None

    def of_slab(rows: slice) -> None:
        values = wide(rows)
        padding = -values.shape[1] % block[1]
        whole = np.pad(values, ((0, 0), (0, padding))) if padding else values
        parts = whole.reshape(len(values), groups, block[1])
        least[rows], most[rows] = _folded(np.minimum, parts), _folded(np.maximum, parts)
        if total is not None:
            total[rows] = sum_in_halves(np.abs(parts))

    _in_parallel(of_slab, slabs)
    return least, most, total


def _folded(fold: np.ufunc, parts: np.ndarray) -> np.ndarray:
    """The extreme over the last axis: halves of short rows first, in vectors."""
    while parts.shape[-1] % 2 == 0 and 8 < parts.shape[-1] <= 512:
        half = parts.shape[-1] // 2
        parts = fold(parts[..., :half], parts[..., half:])
    return fold.reduce(parts, -1)
