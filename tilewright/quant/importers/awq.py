"""Weights in the forms of AWQ checkpoints (AutoAWQ): ``gemm``, ``gemv`` and ``gemv_fast``; ``marlin`` is a file of its
own."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, positive
from tilewright.quant.importers.assemble import Group, assemble, fields, group_size
from tilewright.quant.weight import QuantizedWeight

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns lies in each nibble of a word of the gemm form, the lowest nibble first."""

_PLACE = np.argsort(ORDER)

FORMS = ("gemm", "gemv", "gemv_fast", "marlin")
"""What a checkpoint's configuration may name as its version."""


def from_awq(
    qweight: object,
    qzeros: object,
    scales: object,
    *,
    form: str = "gemm",
    group: Group = None,
    bits: int = 4,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of an AWQ checkpoint: ``w[n, k] = (code[n, k] - zero[k // group, n]) * scale[k // group, n]``.

    With ``nibble(x, i)`` for bits ``4 * i`` to ``4 * i + 4`` of a word or of the string that words make, lowest
    first, and ``place`` for where a column's nibble is, so that ``ORDER[place[c]] == c``::

        gemm   code[n, k] = nibble(qweight[k, n // 8], place[n % 8])      qweight [K, N / 8]
               zero[g, n] = nibble(qzeros[g, n // 8], place[n % 8])       qzeros  [K / group, N / 8]
               scale[g, n] = scales[g, n]                                 scales  [K / group, N]
        gemv   code[n, k] = nibble(qweight[n, :], k)                      qweight [N, K / 8]
               zero[g, n] = nibble(qzeros[n, :], g)                       qzeros  [N, Z]
               scale[g, n] = scales[n, g]                                 scales  [N, 8 * Z]

        order  as gemm, place[c] == c                                     (AMD Quark's pack_method "order")

    In the gemv form rows of zeros and scales are filled up to a number Z of words that its kernels like; what lies
    behind the K / group groups means nothing.

    Parameters
    ----------
    qweight, qzeros : int32.
    scales : floats.
    form : ``"gemm"`` or ``"gemv"`` (the version in a checkpoint's configuration, lower case), or ``"order"``.
    group : elements of K that share a scale; needed for gemv as a number, -1 for all; for gemm, where they do not
        divide K: `assemble.group_size`.
    bits : 4, the only size that AWQ has.

    Source: Lin et al. 2023, the checkpoint format of AutoAWQ.
    """
    if bits != 4:
        raise InvalidTensor(f"{name}: AWQ weights have 4 bits, not {bits}")
    if form not in _READERS:
        elsewhere = {"gemv_fast": "from_awq_fast", "marlin": "from_marlin"}.get(form)
        known = f"known: {', '.join(FORMS)}; {elsewhere} reads this one" if elsewhere else f"known: {', '.join(FORMS)}"
        raise InvalidTensor(f"{name}: no AWQ form {form!r}", hint=known)
    codes, zeros, factors = _READERS[form](qweight, qzeros, scales, group, name)
    columns = group_size(f"{name}.scales", codes.shape[1], factors.shape[1], group)
    return assemble(name, codes, "uint4", factors, columns, zeros)


def _read_gemm(
    qweight: object, qzeros: object, scales: object, group: Group, name: str, place: np.ndarray = _PLACE
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[K, N / 8]")
    N = words.shape[1] * 8
    factors = expect(f"{name}.scales", scales, FLOATS, [None, N], "[K / group, N]")
    points = expect(f"{name}.qzeros", qzeros, ["int32"], [factors.shape[0], N // 8], "[K / group, N / 8]")

    def columns(packed: np.ndarray) -> np.ndarray:
        found = fields(packed, 4, N).reshape(packed.shape[0], N // 8, 8)
        return np.ascontiguousarray(found[:, :, place].reshape(packed.shape[0], N).T)

    return columns(words), columns(points), np.ascontiguousarray(factors.T)


def _read_gemv(
    qweight: object, qzeros: object, scales: object, group: Group, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[N, K / 8]")
    N, K = words.shape[0], words.shape[1] * 8
    if not isinstance(group, int):
        raise InvalidTensor(f"{name}: the gemv form of AWQ does not tell its group size", hint="give group=")
    groups = -(-K // positive(f"{name}: group", K if group == -1 else group))
    points = expect(f"{name}.qzeros", qzeros, ["int32"], [N, None], "[N, Z]")
    if points.shape[1] * 8 < groups:
        raise InvalidTensor(f"{name}.qzeros holds {points.shape[1] * 8} zero points a row, where {groups} are due")
    factors = expect(f"{name}.scales", scales, FLOATS, [N, 8 * points.shape[1]], "[N, 8 * Z]")
    return fields(words, 4, K), fields(points, 4, groups), np.ascontiguousarray(factors[:, :groups])


_READERS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]] = {
    "gemm": _read_gemm,
    "gemv": _read_gemv,
    "order": functools.partial(_read_gemm, place=np.arange(8)),
}


def from_awq_fast(
    qweight: object, qzeros: object, scales: object, *, group: int, bits: int = 4, name: str = "weight"
) -> QuantizedWeight:
    """A weight of AWQ's ``gemv_fast`` form: ``w[n, k] = code[n, k] * scales[k // group, n] + qzeros[k // group, n]``.

    Four rows of the weight share a row of nibbles, lowest first in each word of 16 bits::

        code[n, k] = nibble(qweight[n // 4, :], 256 * (k // 64) + 64 * (n % 4) + 32 * (k // 32 % 2) + place[k % 32])
        place[i]   = 8 * (i % 8 // 2) + 4 * (i % 2) + i // 8

    Parameters
    ----------
    qweight : int16 ``[N / 4, K]``.
    qzeros, scales : floats ``[Z, N]``; what lies behind the K / group groups means nothing.
    group : elements of K that share a scale.
    bits : 4, the only size of the form.

    Source: the checkpoint format of AutoAWQ and llm-awq.
    """
    if bits != 4:
        raise InvalidTensor(f"{name}: AWQ weights have 4 bits, not {bits}")
    words = expect(f"{name}.qweight", qweight, ["int16"], [None, None], "[N / 4, K]")
    N, K = words.shape[0] * 4, words.shape[1]
    if K % 64:
        raise InvalidTensor(f"{name}.qweight has rows of {K} words, where the form has a multiple of 64")
    groups = -(-K // positive(f"{name}: group", K if group == -1 else group))
    factors = expect(f"{name}.scales", scales, FLOATS, [None, N], "[Z, N]")
    points = expect(f"{name}.qzeros", qzeros, FLOATS, factors.shape, "as scales")
    if factors.shape[0] < groups:
        raise InvalidTensor(f"{name}.scales has {factors.shape[0]} groups, where groups of {group} make {groups}")
    i = np.arange(32)
    place = 8 * (i % 8 // 2) + 4 * (i % 2) + i // 8
    runs = fields(words, 4, 4 * K).reshape(N // 4, K // 64, 4, 2, 32)[..., place]
    codes = np.ascontiguousarray(runs.transpose(0, 2, 1, 3, 4).reshape(N, K))
    factors, added = (np.ascontiguousarray(one[:groups].T) for one in (factors, points))
    columns = -(-K // groups) if group == -1 else group
    return assemble(name, codes, "uint4", factors, columns, zeros=-added, zeros_mode="rescale")
