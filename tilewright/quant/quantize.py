"""Rounds a weight matrix to codes of any format with a scale, and if wished a zero point, a group of elements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import SCHEMES, Format, number_format
from tilewright.options import in_context
from tilewright.quant.importers.arrays import as_array
from tilewright.quant.weight import QuantizedWeight, check_divisors

ZEROS = ("none", "middle", "group")


def quantize(
    weight: Any,
    to: Any = "uint4",
    *,
    group: int | None = 128,
    zeros: str | None = None,
    block: tuple[int, int] | None = None,
    scale_dtype: Any = None,
    divisors: Any = None,
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
    scale_dtype : type in which scales are held, ``"float32"`` by default.
    divisors : ``[K]``: activations will be divided by these, the weight is multiplied by them (SmoothQuant).

    Raises
    ------
    CannotQuantize : a weight that is no finite matrix, a type, groups or zeros that do not fit together, scales that
        their type does not have.
    UnknownFormat : no such format or scheme.
    """
    known = SCHEMES.get(to) if isinstance(to, str) else None
    of = known.format if known is not None else number_format(to)
    given = real_numbers(weight)
    if zeros is None:
        zeros = "none" if of.kind != "uint" else "group" if of.name == "uint1" else "middle"
    if known is not None:
        block, scale_dtype = known.block, scale_dtype or known.scale_dtype
    elif block is None:
        block = (1, 0 if group is None else group)
    _check(given, of, block, zeros)
    if divisors is not None:
        divisors = as_array(divisors).astype(np.float64)
        check_divisors(divisors, given.shape[1])
    block = (block[0] or max(1, given.shape[0]), block[1] or max(1, given.shape[1]))
    wide = _Wide(given, divisors)
    held = _scale_format(scale_dtype or "float32")
    slabs = _slabs(given.shape, block[0])
    least, most, magnitude = _ranges(wide, slabs, block, given.shape, of)
    tensor_scale = 1.0
    if zeros == "group":
        scales, offsets = (most - least) / of.maximum, None
    else:
        offset = float((int(of.maximum) + 1) // 2) if zeros == "middle" else 0.0
        scales, offsets = magnitude / (of.maximum - offset), np.full((1, 1), offset)
        if known is not None and known.tensor_scale:
            tensor_scale = float(np.float32(max(scales.max(initial=0.0), 1e-30) / held.maximum))
            scales = scales / tensor_scale
    scales = _held(scales, held)
    exact = scales.astype(np.float64)
    if offsets is None:
        offsets = np.clip(np.rint(-least / exact), 0, of.maximum)
    codes = np.empty(given.shape, np.uint8)

    def encode(rows: slice) -> None:
        values, blocks = wide(rows), _blocks(rows, block[0])
        values = values / (_expanded(exact[blocks], block, values.shape) * tensor_scale)
        of_blocks = offsets[blocks] if len(offsets) > 1 else offsets
        if of_blocks.any():
            values = values + _expanded(of_blocks, block, values.shape)
        codes[rows] = of.encode(values)

    _in_parallel(encode, slabs)
    return QuantizedWeight(
        codes=codes,
        format=of,
        scales=scales,
        zeros=None if zeros == "none" else offsets.astype(np.float32),
        block=block,
        tensor_scale=tensor_scale,
        divisors=None if divisors is None else np.asarray(divisors, np.float32),
    )


def real_numbers(weight: Any) -> np.ndarray:
    """A weight as an array.  Raises CannotQuantize for what holds no real numbers."""
    if getattr(weight, "is_meta", False):
        raise CannotQuantize("the weight is on the meta device: it has no numbers")
    try:
        array = as_array(weight)
    except ValueError:
        raise CannotQuantize("the weight is no matrix: its rows differ in length") from None
    if array.dtype.kind in "cSUOMm" or array.dtype.names is not None:
        raise CannotQuantize(f"a weight of {array.dtype} has no codes", hint="real numbers do")
    return array


def _scale_format(name: Any) -> Format:
    """The type in which scales are held."""
    held = number_format(name)
    if held.dtype is None or not held.dtype.is_float:
        raise CannotQuantize(f"scales are floats, not {held}", hint="float32, float16, bfloat16, e8m0 or e4m3")
    return held


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
        for end in ends for start in range(end, min(end + max(step, rows), shape[0]), step)
    ]  # fmt: skip


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

    def __call__(self, rows: slice) -> np.ndarray:
        wide = np.asarray(self.given[rows], np.float64)
        finite = np.isfinite(wide)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            raise CannotQuantize(
                f"the weight is {wide[row, column]} at {[rows.start + row, column]}",
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
    wide: _Wide, slabs: Sequence[slice], block: tuple[int, int], shape: tuple[int, ...], of: Format
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least (at most 0), largest (at least 0) and representative magnitude of each block,
    ``[N / rows, K / columns]``."""
    grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    least, most, total = np.zeros(grid), np.zeros(grid), np.zeros(grid)
    mean = of.name in ("int1", "ternary")

    def of_slab(rows: slice) -> tuple[np.ndarray, ...]:
        values = wide(rows)
        high = min(block[0], values.shape[0])
        padding = ((0, -values.shape[0] % high), (0, -values.shape[1] % block[1]))
        whole = values if padding == ((0, 0), (0, 0)) else np.pad(values, padding)
        parts = whole.reshape(-(-values.shape[0] // high), high, grid[1], block[1])
        return _folded(np.minimum, parts), _folded(np.maximum, parts), np.abs(parts).sum((1, 3)) if mean else total[:1]

    for rows, (low, high, sums) in zip(slabs, _in_parallel(of_slab, slabs)):
        blocks = _blocks(rows, block[0])
        least[blocks] = np.minimum(least[blocks], low)
        most[blocks] = np.maximum(most[blocks], high)
        if mean:
            total[blocks] += sums
    if mean:
        rows_of, columns_of = (
            np.minimum(size, extent - np.arange(count) * size) for size, extent, count in zip(block, shape, grid)
        )
        return least, most, total / np.maximum(np.outer(rows_of, columns_of), 1)
    return least, most, np.maximum(-least, most)


def _folded(fold: np.ufunc, parts: np.ndarray) -> np.ndarray:
    """The extreme of ``[rows, height, columns, width]`` over height and width: halves of short rows first, in
    vectors."""
    while parts.shape[3] % 2 == 0 and 8 < parts.shape[3] <= 512:
        half = parts.shape[3] // 2
        parts = fold(parts[..., :half], parts[..., half:])
    return fold.reduce(parts, (1, 3))


_SMALLER = "float32 has the largest scales (scale_dtype), formats of more bits need smaller ones"


def _held(scales: np.ndarray, held: Format) -> np.ndarray:
    """Scales in their type: rounded up where it has few values, 1 for groups of zeros."""
    assert held.dtype is not None
    with np.errstate(under="ignore"):
        largest = scales.max(initial=0.0)
        if largest > held.maximum * (
            1.0 if held.is_dense else 1.0 + 2.0**-20
        ):  # the scale of all is rounded to float32
            raise CannotQuantize(f"a group's scale is {largest:.3g}, which {held} does not have", hint=_SMALLER)
        if not held.is_dense:
            numbers = np.array(sorted({v for v in held.values if np.isfinite(v) and v > 0}))
            up = numbers[np.minimum(np.searchsorted(numbers, scales), len(numbers) - 1)]
            return held.encode(np.where(scales > 0, up, 1.0)).view(held.dtype.numpy)
        least = {"float16": 2.0**-24, "bfloat16": 2.0**-126}.get(held.name, float(np.finfo(np.float32).tiny))
        return np.where(scales > 0.0, np.maximum(scales, least), 1.0).astype(held.carrier)


def _check(weight: np.ndarray, of: Format, block: tuple[int, int], zeros: str) -> None:
    if weight.ndim != 2:
        raise CannotQuantize(f"a weight has two dimensions, [N, K], not {weight.ndim}")
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
