"""``general_compress``, ``interleave_weight`` and ``gen_quant4``, with BitBLAS's bytes for every number that has
some."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize, InvalidTensor, NotRepresentable
from tilewright.formats import WORD_ORDERS, pack_plain, unpack_plain
from tilewright.libraries import torch


def general_compress(lowprecision_weight: np.ndarray, source_bits: int = 4, storage_dtype: Any = np.int8) -> np.ndarray:
    """Codes ``[..., K]`` as bytes ``[..., K * source_bits / 8]``: code k of a row is bits ``b * k`` to ``b * k + b`` of
    it.

    Parameters
    ----------
    lowprecision_weight : codes of 0 to ``2**source_bits - 1``, in any type.
    storage_dtype : what the bytes are viewed as.

    Raises
    ------
    NotRepresentable : a number that has no such code, named with its index; it would spill into its neighbours.
    InvalidTensor : rows that fill no whole bytes.
    """
    codes = np.asarray(lowprecision_weight)
    wrong = (codes < 0) | (codes >= 1 << source_bits)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise NotRepresentable(f"{codes[place]:g}", place, f"uint{source_bits}", f"0 to {(1 << source_bits) - 1}")
    if codes.shape[-1] * source_bits % 8:
        raise InvalidTensor(f"rows of {codes.shape[-1]} codes of {source_bits} bits fill no whole bytes")
    return np.ascontiguousarray(pack_plain(codes.astype(np.uint8), source_bits)).view(storage_dtype)


def interleave_weight(qweight: np.ndarray, nbits: int = 4, target_dtype: str = "float16") -> np.ndarray:
    """Bytes of `general_compress` with the codes of each 32-bit word in the order that BitBLAS's fast decoding takes.
    Raises InvalidTensor where it has no such order, or rows fill no whole words."""
    if (target_dtype, nbits) not in WORD_ORDERS:
        known = ", ".join(f"{b} bits for {t}" for t, b in WORD_ORDERS)
        raise InvalidTensor(f"no order of {nbits} bits for {target_dtype}", hint=known)
    order = WORD_ORDERS[target_dtype, nbits]
    packed = np.ascontiguousarray(qweight).view(np.uint8)
    if packed.size * 8 % 32:
        raise InvalidTensor(f"{packed.size} bytes fill no whole words")
    codes = unpack_plain(packed.reshape(-1), packed.size * 8 // nbits, nbits)
    moved = np.ascontiguousarray(codes.reshape(-1, len(order))[:, np.array(order)])
    return pack_plain(moved.reshape(-1), nbits).reshape(packed.shape).view(np.int8)


def gen_quant4(k: int, n: int, groupsize: int = -1) -> tuple[Any, Any, Any, Any]:
    """A random weight rounded to four bits.

    Returns
    -------
    the weight ``[k, n]``, an `nn.Linear` with the rounded one, scales ``[k / groupsize, n]``, and signed codes
    ``[k, n]``.

    Raises
    ------
    CannotQuantize : groups that do not divide k.
    """
    group = k if groupsize == -1 else groupsize
    if group < 1 or k % group:
        raise CannotQuantize(f"groups of {groupsize} do not divide K = {k}")
    weight = torch.randn((k, n), dtype=torch.half)
    parts = weight.reshape(k // group, group, n)
    scales = parts.abs().amax(dim=1, keepdim=True) * (2 / 16)
    codes = torch.clamp(torch.round(parts / scales).int() + 8, 0, 15) - 8
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = (codes.half() * scales).reshape(k, n).t()
    return weight, linear, scales.reshape(-1, n).contiguous(), codes.reshape(k, n)
