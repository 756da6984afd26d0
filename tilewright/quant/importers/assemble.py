"""The last step of every importer: arrays of codes, scales and zero points as one `QuantizedWeight`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize, InvalidTensor, OutOfRange
from tilewright.formats import number_format, unpack_plain
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy


def fields(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` fields of `bits` bits of every row of words: uint8 ``[..., count]``.

    A row is one string of bits: that of its words in turn, each from its lowest bit to its highest.  Field i is bits
    ``bits * i`` to ``bits * i + bits``; where bits do not divide a word, fields run over from one into the next.
    """
    string = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view(np.uint8)
    return np.ascontiguousarray(unpack_plain(string, count, bits)[..., :count])


def signed(name: str, values: np.ndarray, bits: int) -> np.ndarray:
    """The codes of numbers of `bits` bits that lie in an int8 each.  Raises InvalidTensor for greater ones."""
    half = 1 << (bits - 1)
    if bits == 8:
        return values.view(np.uint8)
    if values.size and (values.min() < -half or values.max() >= half):
        raise InvalidTensor(f"{name} holds {values.min()} to {values.max()}, where int{bits} has {-half} to {half - 1}")
    return values.view(np.uint8) & np.uint8(2 * half - 1)


def assemble(
    name: str,
    codes: np.ndarray,
    format: str,
    scales: np.ndarray | None,
    group: int | tuple[int, int],
    points: np.ndarray | int | None = None,
    **rest: Any,
) -> QuantizedWeight:
    """The weight of codes ``[N, K]`` in groups of so many columns, or blocks, with further fields of `QuantizedWeight`;
    `points` are zero points that are codes, or the one that all groups have. Raises InvalidTensor where they make
    none, by the name of the checkpoint's weight."""
    rest |= {"scales": scales, "block": group if isinstance(group, tuple) else (1, group)}
    if points is not None:  # those that are all the same are one element
        points = np.asarray(points, np.uint8)
        alike = points.size and (points == points.flat[0]).all()
        rest |= {"zeros": points.reshape(-1)[:1].reshape(1, 1) if alike else points, "zeros_mode": "quantized"}
    try:
        return QuantizedWeight(codes, number_format(format), **rest)
    except (CannotQuantize, OutOfRange) as error:
        raise InvalidTensor(f"{name}: {error.message}", hint=error.hint) from None


Group = int | Collection[int] | None
"""Columns of a group as metadata have them: a number, or all that they say of some layer; None or -1 say nothing."""


def group_size(name: str, K: int, groups: int, group: Group = None) -> int:
    """Columns of a group, where a weight of K columns has `groups` of them: what `group` says as a number; of several
    the one that makes so many groups; where nothing said does, what divides K into them. Where nothing divides it the
    last group is cut, and how long the others are is nobody's guess. Raises InvalidTensor where as many groups do not
    make K, or groups of several sizes do."""
    if isinstance(group, (int, np.integer)):
        said: Sequence[int] = [] if group == -1 else [int(group)]
    else:
        said = sorted({min(one, K) for one in group or () if one > 0 and -(-K // one) == groups})
    if not said:
        said = [K // groups] if groups and K % groups == 0 else _sizes(K, groups)
    found = said[0] if said else 0
    if found < 1 or -(-K // found) != groups:
        of = found or "no size"
        raise InvalidTensor(f"{name} has {groups} groups of scales, which groups of {of} do not make of K = {K}")
    if len(said) > 1:
        raise InvalidTensor(
            f"{name} has {groups} groups of scales for K = {K}, the last one shorter than the others, which may be "
            f"{found} to {said[-1]} columns",
            hint="group_size in the configuration, or group=, says how many",
        )
    return found


def _sizes(K: int, groups: int) -> range:
    """All sizes of groups of which so many make K columns, the last one cut."""
    return range(-(-K // groups), -(-K // (groups - 1))) if 1 < groups < K else range(0)


def grouped(name: str, K: int, groups: int, group: Group, order: np.ndarray | None) -> tuple[int, np.ndarray | None]:
    """Columns of a group as in `group_size`, and the group of each column where groups are no runs of so many; `order`
    is that, and says by itself what groups are, None where it is not said."""
    if order is None or isinstance(group, int):
        group = group_size(name, K, groups, group)
        return group, None if order is None or _sequential(order, group) else order
    largest = int(np.unique(order, return_counts=True)[1].max())
    if -(-K // largest) == groups and _sequential(order, largest):
        return largest, None
    return -(-K // max(groups, 1)), order


def _sequential(g_idx: np.ndarray, group: int) -> bool:
    """Whether groups are runs of columns, all of one size: then `g_idx` says nothing."""
    return bool((g_idx == np.arange(g_idx.size) // group).all())


def smoothed(weight: QuantizedWeight, factors: object, name: str) -> QuantizedWeight:
    """The weight beside activations that are multiplied by `factors` (floats ``[K]``, also with extents of 1 before it,
    in the tensor called `name`), one a column, before they meet it (AWQ, SmoothQuant). Raises InvalidTensor for another
    shape or type, a factor that is zero or not finite."""
    if factors is None:
        return weight
    found = as_numpy(factors)
    found = found.reshape(-1) if found.shape[:-1].count(1) == found.ndim - 1 else found
    wide = expect(name, found, FLOATS, [weight.shape[1]], "[K]").astype(np.float64)
    wrong = ~np.isfinite(wide) | (wide == 0)
    if wrong.any():
        raise InvalidTensor(f"{name} is {wide[wrong][0]} at {int(np.flatnonzero(wrong)[0])}, where a factor is due")
    return replace(weight, divisors=1.0 / wide)
