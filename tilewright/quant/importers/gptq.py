"""Weights in the form of GPTQ checkpoints (AutoGPTQ, GPTQModel): packed along K, zero points packed along N."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import Group, assemble, fields, grouped
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array

BITS = (2, 3, 4, 8)
PLANE_BITS = (5, 6, 7)
"""What only the form ``gptq_p`` has."""

_RUN = 32
"""Codes whose planes lie side by side in that form."""


def from_gptq(
    qweight: object,
    qzeros: object,
    scales: object,
    g_idx: Array | None = None,
    *,
    bits: int,
    version: int = 1,
    planes: bool = False,
    borrowed: bool = False,
    group: Group = None,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of a GPTQ checkpoint.

    With ``field(x, i)`` for bits ``bits * i`` to ``bits * i + bits`` of the string that the words of x make, lowest
    bits first::

        code[n, k] = field(qweight[:, n], k)
        zero[g, n] = field(qzeros[g, :], n)             version 2
        zero[g, n] = (field(qzeros[g, :], n) + 1) mod 2**bits    version 1
        zero[g, n] = field(qzeros[g, :] + ones, n)      version 1 with `borrowed`, ones with a 1 in every field
        w[n, k]    = (code[n, k] - zero[g_idx[k], n]) * scales[g_idx[k], n]

    Fields of 3 bits run over from one word into the next (32 codes in three words). With `planes` (``gptq_p``, whose
    zero points are version 2's) 32 codes are as many words as they have bits, and their parts of 4, 2 and 1 bits (8 of
    8) lie apart, the low ones first; with e for i % 32 and x' for the words of its 32 codes::

        field(x, i) = x'[0:32 * 4].field4(e) + 16 * x'[32 * 4:].field1(e)        5 bits; 3 are 2 + 1, 6 are 4 + 2, 7 are 4 + 2 + 1

    Parameters
    ----------
    qweight : int32 ``[ceil(K * bits / 32), N]``.
    qzeros : int32 ``[groups, ceil(N * bits / 32)]``.
    scales : floats ``[groups, N]``.
    g_idx : int32 ``[K]``, the group of every k; None or empty where groups follow one another, all of one size.
    bits : 2, 3, 4 or 8, with `planes` 2 to 8.
    version : of the checkpoint's format, 1 (``gptq``) or 2 (``gptq_v2``).
    planes : whether codes are kept in planes of bits.
    borrowed : whether version 1 has taken one off of all fields of a word by one difference of words, mod 2**32, as
        GPTQModel and AutoRound do: a zero point 0 borrows from the next one. Fields of 3 bits never do.
    group : columns of a group, or all that they may be (`assemble.group_size`); by default ``K / groups``.

    Source: the checkpoint format of AutoGPTQ; Frantar et al. 2022.
    """  # noqa: E501
    known = sorted((*BITS, *PLANE_BITS)) if planes else BITS
    if bits not in known:
        raise InvalidTensor(f"{name}: GPTQ weights have {', '.join(map(str, known))} bits, not {bits}")
    if version not in (1, 2):
        raise InvalidTensor(f"{name}: GPTQ checkpoints are of version 1 or 2, not {version!r}")
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[K * bits / 32, N]")
    N = words.shape[1]
    factors = expect(f"{name}.scales", scales, FLOATS, [None, N], "[groups, N]")
    groups = factors.shape[0]
    points = expect(f"{name}.qzeros", qzeros, ["int32"], [groups, -(-N * bits // 32)], "[groups, N * bits / 32]")
    K, order = words.shape[0] * 32 // bits, None
    if g_idx is not None and np.prod(g_idx.shape):  # some write an empty one where there is no act-order
        order = expect(f"{name}.g_idx", g_idx, ["int32", "int64"], [None], "[K]").astype(np.int32)
        if -(-order.size * bits // 32) != words.shape[0]:
            raise InvalidTensor(f"{name}.g_idx has {order.size} elements, where qweight holds K = {K}")
        K = order.size
    unpack = _of_planes if planes else fields
    if planes and (K % _RUN or N % _RUN):
        raise InvalidTensor(f"{name} is {N} x {K}, which planes of {_RUN} codes do not divide")
    borrowed = borrowed and version == 1 and 32 % bits == 0
    if borrowed:
        points = (points.view(np.uint32) + np.uint32((2**32 - 1) // (2**bits - 1))).view(np.int32)
    zeros = unpack(points, bits, N)
    if version == 1 and not borrowed:
        zeros = (zeros + np.uint8(1)) & np.uint8(2**bits - 1)
    columns, order = grouped(f"{name}.scales", K, groups, group, order)
    codes = unpack(np.ascontiguousarray(words.T), bits, K)
    factors, zeros = (np.ascontiguousarray(one.T) for one in (factors, zeros))
    return assemble(name, codes, f"uint{bits}", factors, columns, zeros, g_idx=order)


def _of_planes(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """`fields` of rows of words in which 32 codes are planes of their bits, side by side."""
    runs = words.reshape(words.shape[0], count // _RUN, bits)
    codes, at = np.zeros((*runs.shape[:2], _RUN), np.uint8), 0
    for width in (8, 4, 2, 1):
        if (bits - at) // width:  # the widths of a number's bits, the widest first, are its planes from the low bits on
            codes |= fields(runs[:, :, at : at + width], width, _RUN) << np.uint8(at)
            at += width
    return codes.reshape(words.shape[0], count)
