"""Weights in the forms of ``compressed-tensors`` (LLM Compressor, vLLM): packed integers, int8 and fp8."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import Group, assemble, fields, grouped, signed
from tilewright.quant.importers.mx import powers_of_two
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

PACKED_BITS = tuple(range(1, 9))
_SCALES = (*FLOATS, "float8_e8m0fnu")
FLOAT8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def from_pack_quantized(
    weight_packed: object,
    weight_scale: object,
    weight_shape: object,
    weight_zero_point: object = None,
    weight_g_idx: object = None,
    *,
    bits: int = 4,
    group: Group = None,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of the form ``pack-quantized``: integers shifted up by half their range and packed along K.

    With ``field(x, i)`` for bits ``bits * i`` to ``bits * i + bits`` of the string that the words of x make, lowest
    bits first, ``half = 2**(bits - 1)`` and ``g(k)`` for ``k // group``, or ``weight_g_idx[k]``::

        code[n, k] = field(weight_packed[n, :], k) - half
        zero[n, g] = field(weight_zero_point[:, g], n) - half          0 without zero points
        w[n, k]    = (code[n, k] - zero[n, g(k)]) * weight_scale[n, g(k)]

    Parameters
    ----------
    weight_packed : int32 ``[N, ceil(K * bits / 32)]``; of 3, 5, 6 and 7 bits also as earlier versions of
        compressed-tensors packed them, ``[N, ceil(K / (32 // bits))]``: a word holds whole codes, its highest bits
        nothing.
    weight_scale : floats ``[N, K / group]``, or one (the strategy ``tensor``).
    weight_shape : int64 ``[2]``, N and K.
    weight_zero_point : int32 ``[ceil(N * bits / 32), K / group]``, or int8 ``[N, K / group]``, not shifted; one int8
        beside one scale.
    weight_g_idx : int32 ``[K]``; all -1 says the same as None.
    bits : 1 to 8; 32 codes fill as many words as they have bits.
    group : columns that share a scale, where they do not divide K: `assemble.group_size`.

    Source: the format of that name in compressed-tensors.
    """
    if bits not in PACKED_BITS:
        raise InvalidTensor(f"{name}: packed weights of {bits} bits", hint="1 to 8 bits can be read")
    N, K = (int(extent) for extent in expect(f"{name}.weight_shape", weight_shape, ["int64", "int32"], [2], "[2]"))
    dense, padded = words_of(bits, K)
    whole = as_numpy(weight_packed).shape == (N, padded) and padded != dense
    width = padded if whole else dense
    words = expect(f"{name}.weight_packed", weight_packed, ["int32"], [N, width], "[N, K * bits / 32]")
    if np.size(as_numpy(weight_scale)) == 1 and as_numpy(weight_scale).shape != (N, 1):
        return _of_one_scale(_codes(words, bits, K, whole), weight_scale, weight_zero_point, weight_g_idx, bits, name)
    scales = expect(f"{name}.weight_scale", weight_scale, FLOATS, [N, None], "[N, K / group]")
    groups = scales.shape[1]
    zeros: np.ndarray | int = 1 << (bits - 1)
    if weight_zero_point is not None:
        zeros = _zeros(f"{name}.weight_zero_point", weight_zero_point, bits, N, groups, whole)
    columns, order = grouped(f"{name}.weight_scale", K, groups, group, _order(name, weight_g_idx, K))
    return assemble(name, _codes(words, bits, K, whole), f"uint{bits}", scales, columns, zeros, g_idx=order)


def _of_one_scale(
    codes: np.ndarray, scale: object, zero: object, g_idx: object, bits: int, name: str
) -> QuantizedWeight:
    """A packed weight of the strategy ``tensor``, whose zero point is no string of bits."""
    if g_idx is not None and not (as_numpy(g_idx) == -1).all():
        raise InvalidTensor(f"{name}.weight_g_idx deals columns out to groups, where there is one scale")
    half = 1 << (bits - 1)
    scales = expect(f"{name}.weight_scale", np.reshape(as_numpy(scale), -1), FLOATS, [1], "[1]")
    point = np.zeros(1, np.int8) if zero is None else np.reshape(as_numpy(zero), -1)
    point = expect(f"{name}.weight_zero_point", point, ["int8"], [1], "[1]").astype(np.int16) + half
    scales, zeros = scales.reshape(1, 1), point.reshape(1, 1).astype(np.float32)
    return assemble(name, codes, f"uint{bits}", scales, codes.shape, zeros=zeros)


def _order(name: str, value: object, K: int) -> np.ndarray | None:
    """The group of each column; None where they follow one another."""
    if value is None:
        return None
    order = expect(f"{name}.weight_g_idx", value, ["int32", "int64"], [K], "[K]").astype(np.int32)
    return None if (order == -1).all() else order


def _zeros(name: str, value: object, bits: int, N: int, groups: int, whole: bool) -> np.ndarray:
    """Zero points as unsigned codes, ``[N, groups]``."""
    found = as_numpy(value)
    if found.dtype == np.int8:
        points = expect(name, found, ["int8"], [N, groups], "[N, K / group]").astype(np.int16)
        return (points + (1 << (bits - 1))).astype(np.uint8)
    packed = expect(name, found, ["int32"], [words_of(bits, N)[whole], groups], "[N * bits / 32, K / group]")
    return np.ascontiguousarray(_codes(np.ascontiguousarray(packed.T), bits, N, whole).T)


def words_of(bits: int, count: int) -> tuple[int, int]:
    """Words that hold so many codes of some bits: as strings of bits, and with no code in two words, as earlier
    versions packed them."""
    return -(-count * bits // 32), -(-count // (32 // bits))


def _codes(words: np.ndarray, bits: int, count: int, whole: bool) -> np.ndarray:
    """Codes of rows of words, in either of the two ways; they differ where bits do not divide a word."""
    if not whole:
        return fields(words, bits, count)
    places, per_word = np.arange(count), 32 // bits
    shifts = (places % per_word * bits).astype(np.uint32)
    return (words.view(np.uint32)[:, places // per_word] >> shifts & ((1 << bits) - 1)).astype(np.uint8)


def from_int_quantized(
    weight: object,
    weight_scale: object,
    weight_zero_point: object = None,
    weight_g_idx: object = None,
    *,
    bits: int = 8,
    group: Group = None,
    name: str = "weight",
) -> QuantizedWeight:
    """An int8 weight: ``w[n, k] = (weight[n, k] - zero[n, g]) * weight_scale[n, g]``, ``g`` as in
    `from_pack_quantized`.

    Parameters
    ----------
    weight : int8 ``[N, K]``.
    weight_scale : floats, one, ``[N, 1]`` or ``[N, K / group]``.
    weight_zero_point : int8 of the scales' shape, or None.
    weight_g_idx : int32 ``[K]``; all -1 says the same as None.
    bits : of the weight's numbers, 2 to 8.
    group : as in `from_pack_quantized`.
    """
    values = expect(f"{name}.weight", weight, ["int8"], [None, None], "[N, K]")
    order = _order(name, weight_g_idx, values.shape[1])
    scales, block, order = _block_scales(name, weight_scale, values.shape, None, group, order)
    zeros = None
    if weight_zero_point is not None:
        found = as_numpy(weight_zero_point)
        found = found.reshape(scales.shape) if found.size == scales.size else found
        zeros = expect(f"{name}.weight_zero_point", found, ["int8"], scales.shape, "as weight_scale")
        zeros = zeros.astype(np.float32) if zeros.any() else None
    codes = signed(f"{name}.weight", values, bits)
    return assemble(name, codes, f"int{bits}", scales, block, zeros=zeros, g_idx=order)


def from_float_quantized(
    weight: object,
    weight_scale: object,
    *,
    block: tuple[int, int] | None = None,
    group: Group = None,
    name: str = "weight",
) -> QuantizedWeight:
    """An fp8 weight: ``w[n, k] = weight[n, k] * weight_scale[n // rows, k // columns]``.

    Parameters
    ----------
    weight : float8_e4m3fn or float8_e5m2 ``[N, K]``, without NaN.
    weight_scale : floats, one, ``[N, 1]``, ``[N, K / group]``, or with `block` ``[ceil(N / rows), ceil(K / columns)]``;
        uint8 (or float8_e8m0fnu) for powers of two, ``2**(x - 127)``, as mxfp8 has them.
    block : rows and columns that share a scale, for weights in blocks.
    group : as in `from_pack_quantized`.
    """
    values = expect(f"{name}.weight", weight, list(FLOAT8), [None, None], "[N, K]")
    nan = np.isnan(values)
    if nan.any():
        raise InvalidTensor(f"{name}.weight is NaN at {[int(i) for i in np.argwhere(nan)[0]]}")
    scales, block, _ = _block_scales(name, weight_scale, values.shape, block, group)
    return assemble(name, values.view(np.uint8), FLOAT8[values.dtype.name], scales, block)


def _block_scales(
    name: str,
    weight_scale: object,
    shape: tuple[int, ...],
    block: tuple[int, int] | None,
    group: Group,
    order: np.ndarray | None = None,
) -> tuple[np.ndarray, tuple[int, int], np.ndarray | None]:
    """Scales in two dimensions, the block of the weight that each belongs to, and the group of each column where blocks
    do not say it."""
    N, K = shape
    found = as_numpy(weight_scale)
    if found.dtype.name in ("uint8", "float8_e8m0fnu"):
        found = powers_of_two(f"{name}.weight_scale", found)
    if block is not None:
        extents = [-(-N // block[0]), -(-K // block[1])]
        return expect(f"{name}.weight_scale", found, _SCALES, extents, "[N / rows, K / columns]"), block, None
    whole = found.size == 1
    found = found.reshape(1, 1) if whole else found[:, None] if found.ndim == 1 else found
    scales = expect(f"{name}.weight_scale", found, _SCALES, [1 if whole else N, None], "[1], [N, 1] or [N, K / group]")
    columns, order = grouped(f"{name}.weight_scale", K, scales.shape[1], None if whole else group, order)
    return scales, (N if whole else 1, columns), order
