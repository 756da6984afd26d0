"""Conversions between number types on NumPy arrays, exactly as a `Cast` converts.

ml_dtypes converts float64 to narrow types by way of float32, which rounds twice, and it does not saturate;
here every conversion rounds once and saturates where the destination has no infinities.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.dtypes import DType

_PLAIN = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Types to which NumPy and ml_dtypes convert from float32 in one rounding, with infinities."""


def cast_array(values: np.ndarray, source: DType, destination: DType) -> np.ndarray:
    """`values` converted from `source` to `destination`, in carrier types.

    Float to float rounds to nearest even, float to integer truncates and saturates with NaN giving 0, integer
    to integer wraps, anything to bool asks whether it differs from zero.

    To a float of at most eight bits, finite numbers saturate; an infinity becomes the type's infinity, else its NaN,
    else its largest value, and NaN, where there is none, the largest value without a sign. ``float8_e8m0fnu`` has
    neither zero nor sign, so that anything from 0 to its smallest value becomes that, and what is negative becomes NaN.
    """
    values = np.asarray(values)
    if destination == source:
        return values
    if destination.kind == "bool":
        return np.asarray((values.astype(np.float64) if source.is_float else values) != 0)
    if destination.is_integer:
        return truncate(values, destination) if source.is_float else wrap(values, destination)
    if source.is_float and source.bits <= 32 and destination.name in _PLAIN:
        single = values.astype(np.float32, copy=False)
        if destination.bits >= 32:
            return single.astype(destination.numpy)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return single.astype(destination.numpy)
    if source.is_integer and source.bits == 64 and destination.bits < 64:
        return round_float(_integers_to_odd(values), destination)
    return round_float(values.astype(np.float64), destination)


def round_float(wide: np.ndarray, dtype: DType) -> np.ndarray:
    """float64 values rounded once to `dtype`, in its carrier; see `cast_array` for what does not fit."""
    wide = np.asarray(wide, np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _SPECIAL.get(dtype.name, _round_generic)(wide, dtype)


def truncate(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats towards zero to an integer type, saturating; NaN gives 0."""
    wide = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = int(dtype.minimum), int(dtype.maximum)
    inside = np.clip(wide, float(low), np.nextafter(float(high) + 1.0, 0.0)).astype(dtype.numpy)
    return np.where(wide >= float(high), dtype.numpy.type(high), inside)


def wrap(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers (or bools) modulo 2**bits, in the carrier of `dtype`."""
    values = np.asarray(values)
    if dtype.bits >= 8:
        return values.astype(dtype.numpy)
    unused = np.uint8(8 - dtype.bits)
    high = values.astype(np.uint8) << unused
    return high.view(np.int8) >> unused.astype(np.int8) if dtype.kind == "int" else high >> unused


def _round_generic(wide: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.bits >= 32:
        return wide.astype(dtype.numpy)
    if dtype.bits > 8:
        return round_to_odd(wide).astype(dtype.numpy)
    rounded = round_to_odd(np.clip(wide, dtype.minimum, dtype.maximum)).astype(dtype.numpy)
    beyond = ~np.isfinite(wide)
    if not beyond.any() or not (dtype.nans or np.isnan(wide).any()):
        return rounded
    if not dtype.nans:
        return np.where(np.isnan(wide), dtype.numpy.type(dtype.maximum), rounded)
    return np.where(beyond, (wide if dtype.infinities else np.full_like(wide, np.nan)).astype(dtype.numpy), rounded)


def _round_tfloat32(wide: np.ndarray, dtype: DType) -> np.ndarray:
    bits = np.atleast_1d(round_to_odd(wide)).view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    kept = np.where(np.isfinite(np.atleast_1d(wide)), rounded & np.uint32(0xFFFFE000), bits)
    return kept.astype(np.uint32).view(np.float32).reshape(wide.shape)


def _round_e8m0(wide: np.ndarray, dtype: DType) -> np.ndarray:
    # A code is the biased exponent alone; halfway between two powers of two the even code wins.
    fraction, exponent = np.frexp(np.clip(np.abs(wide), 2.0**-127, 2.0**127))
    code = exponent + np.int32(126)
    up = (fraction > 0.75) | ((fraction == 0.75) & (code % 2 == 1))
    code = np.minimum(code + up, 254)
    return np.where(~np.isfinite(wide) | (wide < 0), 255, code).astype(np.uint8).view(dtype.numpy)


_SPECIAL = {"tfloat32": _round_tfloat32, "float8_e8m0fnu": _round_e8m0}


def round_to_odd(wide: np.ndarray) -> np.ndarray:
    """float64 to float32, truncated with the lost bits kept sticky in the last one.

    A second rounding to a type of at most 22 mantissa bits then gives the correctly rounded result
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    wide = np.asarray(wide, np.float64)
    narrow = np.atleast_1d(wide.astype(np.float32))
    back = narrow.astype(np.float64)
    inexact = (back != wide) & np.isfinite(wide)
    if not inexact.any():
        return narrow.reshape(wide.shape)
    toward_zero = np.where(np.abs(back) > np.abs(wide), np.nextafter(narrow, np.float32(0)), narrow)
    odd = (toward_zero.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)
    return np.where(inexact, odd, narrow).reshape(wide.shape)


def _integers_to_odd(values: np.ndarray) -> np.ndarray:
    """64-bit integers as float64; those beyond 2**53 keep 42 bits or more and a sticky one, for a later rounding."""
    wide = values.astype(np.float64)
    low = values.dtype.type(0x7FF)
    sticky = (values & ~low) | np.where(values & low, values.dtype.type(0x800), values.dtype.type(0))
    return np.where(np.abs(wide) < 2.0**53, wide, sticky.astype(np.float64))
