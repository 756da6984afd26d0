"""The last step of every importer: arrays of codes, scales and zero points as one `QuantizedWeight`."""

from __future__ import annotations

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


def assemble(codes: np.ndarray, format: str, *, name: str, **rest: Any) -> QuantizedWeight:
    """The weight; what does not fit is told by the name of the checkpoint's weight.

    Parameters
    ----------
    codes : ``[N, K]`` as `QuantizedWeight` has them.
    name : what messages call the weight.
    rest : further fields of `QuantizedWeight`.

    Raises
    ------
    InvalidTensor : codes, scales, zeros or groups that make no weight.
    """
    try:
        return QuantizedWeight(codes, number_format(format), **rest)
    except (CannotQuantize, OutOfRange) as error:
        raise InvalidTensor(f"{name}: {error.message}", hint=error.hint) from None


def group_size(name: str, K: int, groups: int, group: int | None = None) -> int:
    """Columns of a group, where a weight of K columns has `groups` of them; `group` where metadata say so.

    Raises
    ------
    InvalidTensor : as many groups do not make K.
    """
    if group in (None, -1):
        group = -(-K // max(groups, 1))
    if not isinstance(group, (int, np.integer)) or group < 1 or -(-K // int(group)) != groups:
        raise InvalidTensor(f"{name} has {groups} groups of scales, which groups of {group} do not make of K = {K}")
    return int(group)


def plain_zeros(zeros: np.ndarray) -> np.ndarray:
    """Zero points ``[N, groups]``, as one element where they are all the same."""
    return zeros[:1, :1].copy() if zeros.size and (zeros == zeros.flat[0]).all() else zeros


def sequential(g_idx: np.ndarray | None, group: int) -> bool:
    """Whether groups are runs of columns, all of one size: then `g_idx` says nothing."""
    return g_idx is None or bool((g_idx == np.arange(g_idx.size) // group).all())


def smoothed(weight: QuantizedWeight, factors: object, name: str) -> QuantizedWeight:
    """The weight beside activations that are multiplied by `factors`, one a column, before they meet it (AWQ,
    SmoothQuant).

    Parameters
    ----------
    factors : floats ``[K]``, or with extents of 1 before it; None for none.
    name : of their tensor, for messages.

    Raises
    ------
    InvalidTensor : another shape or type, a factor that is zero or not finite.
    """
    if factors is None:
        return weight
    found = as_numpy(factors)
    found = found.reshape(-1) if found.shape[:-1].count(1) == found.ndim - 1 else found
    wide = expect(name, found, FLOATS, [weight.shape[1]], "[K]").astype(np.float64)
    wrong = ~np.isfinite(wide) | (wide == 0)
    if wrong.any():
        raise InvalidTensor(f"{name} is {wide[wrong][0]} at {int(np.flatnonzero(wrong)[0])}, where a factor is due")
    return replace(weight, divisors=1.0 / wide)
