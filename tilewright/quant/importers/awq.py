"""Weights in the forms of AWQ checkpoints (AutoAWQ): ``gemm`` and ``gemv``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, positive
from tilewright.quant.importers.assemble import assemble, fields, group_size, plain_zeros
from tilewright.quant.weight import QuantizedWeight

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns lies in each nibble of a word of the gemm form, the lowest nibble first."""

_PLACE = np.argsort(ORDER)


def from_awq(
    qweight: Any,
    qzeros: Any,
    scales: Any,
    *,
    form: str = "gemm",
    group: int | None = None,
    bits: int = 4,
    name: str = "",
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

    In the gemv form rows of zeros and scales are filled up to a number Z of words that its kernels like; what lies
    behind the K / group groups means nothing.

    Parameters
    ----------
    qweight, qzeros : int32.
    scales : floats.
    form : ``"gemm"`` or ``"gemv"`` (the version in a checkpoint's configuration, lower case).
    group : elements of K that share a scale; needed for gemv, found from the shapes for gemm.
    bits : 4, the only size that AWQ has.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : a tensor of another shape or element type, another form or number of bits.

    Source: Lin et al. 2023, the checkpoint format of AutoAWQ.
    """
    if bits != 4:
        raise InvalidTensor(f"{name}: AWQ weights have 4 bits, not {bits}")
    if form not in _READERS:
        raise InvalidTensor(f"{name}: no AWQ form {form!r}", hint=f"known: {', '.join(_READERS)}")
    codes, zeros, factors = _READERS[form](qweight, qzeros, scales, group, name)
    return assemble(
        codes,
        "uint4",
        scales=factors,
        zeros=plain_zeros(zeros),
        zeros_mode="quantized",
        block=(1, group_size(f"{name}.scales", codes.shape[1], factors.shape[1], group)),
        name=name,
    )


def _read_gemm(
    qweight: Any, qzeros: Any, scales: Any, group: int | None, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[K, N / 8]")
    N = words.shape[1] * 8
    factors = expect(f"{name}.scales", scales, FLOATS, [None, N], "[K / group, N]")
    points = expect(f"{name}.qzeros", qzeros, ["int32"], [factors.shape[0], N // 8], "[K / group, N / 8]")

    def columns(packed: np.ndarray) -> np.ndarray:
        found = fields(packed, 4, N).reshape(packed.shape[0], N // 8, 8)
        return np.ascontiguousarray(found[:, :, _PLACE].reshape(packed.shape[0], N).T)

    return columns(words), columns(points), np.ascontiguousarray(factors.T)


def _read_gemv(
    qweight: Any, qzeros: Any, scales: Any, group: int | None, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[N, K / 8]")
    N, K = words.shape[0], words.shape[1] * 8
    if group is None:
        raise InvalidTensor(f"{name}: the gemv form of AWQ does not tell its group size", hint="give group=")
    groups = -(-K // positive(f"{name}: group", K if group == -1 else group))
    points = expect(f"{name}.qzeros", qzeros, ["int32"], [N, None], "[N, Z]")
    if points.shape[1] * 8 < groups:
        raise InvalidTensor(f"{name}.qzeros holds {points.shape[1] * 8} zero points a row, where {groups} are due")
    factors = expect(f"{name}.scales", scales, FLOATS, [N, 8 * points.shape[1]], "[N, 8 * Z]")
    return fields(words, 4, K), fields(points, 4, groups), np.ascontiguousarray(factors[:, :groups])


_READERS = {"gemm": _read_gemm, "gemv": _read_gemv}
