"""Rounds a weight matrix to codes of any format with a scale, and if wished a zero point, a group of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import SCHEMES, Format, number_format
from tilewright.quant.weight import QuantizedWeight

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
    weight : ``[N, K]``, anything NumPy takes for an array of floats.
    to : a number format of at most 8 bits, or a scheme with its own groups (``"mxfp4"``, ``"nvfp4"``, ...).
    group : elements along K that share a scale; None for all of K; the last group may be shorter.
    zeros : ``"none"`` (code 0 is 0.0), ``"middle"`` (unsigned types: the middle code is 0.0), or ``"group"`` (unsigned
        types: each group has a zero point, so that its codes span its own range).
        By default middle for unsigned integers, none for all else.
    block : rows and columns that share a scale, in place of `group`; 0 stands for all.
    scale_dtype : type in which scales are held, ``"float32"`` by default.
    divisors : ``[K]``: activations will be divided by these, the weight is multiplied by them (SmoothQuant).

    Raises
    ------
    CannotQuantize : a weight that is no finite matrix, a type or zeros that do not fit together.
    UnknownFormat : no such format or scheme.
    """
    known = SCHEMES.get(to) if isinstance(to, str) else None
    of = known.format if known is not None else number_format(to)
    wide = np.asarray(weight, dtype=np.float64)
    zeros = zeros or ("middle" if of.kind == "uint" else "none")
    if known is not None:
        block, scale_dtype = known.block, scale_dtype or known.scale_dtype
    elif block is None:
        block = (1, 0 if group is None else group)
    _check(wide, of, block, zeros)
    if divisors is not None:
        wide = wide * np.asarray(divisors, np.float64)
    block = (block[0] or max(1, wide.shape[0]), block[1] or max(1, wide.shape[1]))
    held = number_format(scale_dtype or "float32")
    least, most, magnitude = _ranges(wide, block, of)
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
    template = QuantizedWeight(np.zeros(wide.shape, np.uint8), of, scales, block=block)
    codes = of.encode(wide / (template.expanded(scales) * tensor_scale) + template.expanded(offsets))
    return QuantizedWeight(
        codes=codes,
        format=of,
        scales=scales,
        zeros=None if zeros == "none" else offsets.astype(np.float32),
        block=block,
        tensor_scale=tensor_scale,
        divisors=None if divisors is None else np.asarray(divisors, np.float32),
    )


def _ranges(wide: np.ndarray, block: tuple[int, int], of: Format) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least (at most 0), largest (at least 0) and representative magnitude of each block, ``[N / rows, K / columns]``."""
    rows, columns = -(-wide.shape[0] // block[0]), -(-wide.shape[1] // block[1])
    padding = ((0, rows * block[0] - wide.shape[0]), (0, columns * block[1] - wide.shape[1]))
    parts = np.pad(wide, padding).reshape(rows, block[0], columns, block[1])
    least, most = parts.min((1, 3), initial=0.0), parts.max((1, 3), initial=0.0)
    if of.name in ("int1", "ternary"):
        inside = np.pad(np.ones(wide.shape), padding).reshape(parts.shape).sum((1, 3))
        return least, most, np.abs(parts).sum((1, 3)) / np.maximum(inside, 1)
    return least, most, np.maximum(-least, most)


def _held(scales: np.ndarray, held: Format) -> np.ndarray:
    """Scales in their type: rounded up where it has few values, 1 for groups of zeros."""
    assert held.dtype is not None
    with np.errstate(under="ignore"):
        if not held.is_dense:
            numbers = np.array(sorted({v for v in held.values if np.isfinite(v) and v > 0}))
            up = numbers[np.minimum(np.searchsorted(numbers, scales), len(numbers) - 1)]
            return held.encode(np.where(scales > 0, up, 1.0)).view(held.dtype.numpy)
        least = {"float16": 2.0**-24, "bfloat16": 2.0**-126}.get(held.name, float(np.finfo(np.float32).tiny))
        return np.where(scales > 0.0, np.maximum(scales, least), 1.0).astype(held.carrier)


def _check(weight: np.ndarray, of: Format, block: tuple[int, int], zeros: str) -> None:
    if weight.ndim != 2:
        raise CannotQuantize(f"a weight has two dimensions, [N, K], not {weight.ndim}")
    if not np.isfinite(weight).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(weight))[0])
        raise CannotQuantize(f"the weight is {weight[where]} at {list(where)}", hint="only finite weights have codes")
    if of.is_dense:
        raise CannotQuantize(f"{of} holds no codes", hint="formats of 1 to 8 bits do, int4 or e2m1 for example")
    if min(block) < 0:
        raise CannotQuantize(f"groups of {block[0]} x {block[1]} elements", hint="None is one group for all of K")
    if zeros not in ZEROS:
        raise CannotQuantize(f"no kind of zeros {zeros!r}", hint=f"known: {', '.join(ZEROS)}")
    fitting = {"uint": ("middle", "group", "none")}.get(of.kind, ("none",))
    if zeros not in fitting or (of.name == "uint1" and zeros == "middle"):
        raise CannotQuantize(f"{of} does not go with zeros={zeros!r}", hint=f"use {' or '.join(fitting)}")
