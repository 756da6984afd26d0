"""What one operation does to values, rounding and wrapping as the dtype says.

A value without lanes is a Python int, a Python bool or a NumPy scalar of the dtype's carrier; a value in lanes
is an array of carriers that broadcasts to the lanes (with a last axis more where the dtype is a vector).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir import GREATEST, LEAST, DType, dtypes
from tilewright.ops import cast_array, round_float, wrap

Numbers: TypeAlias = Any
"""What stands for a value: NumPy's arrays, its single numbers and Python's have no type in common."""

_NATIVE = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Floats whose NumPy operations are correctly rounded: computing in float32 leaves 2p + 2 bits or more."""

_EXACT_IN_FLOAT64 = 1 << 53


def settle(value: object, dtype: DType) -> Numbers:
    """A result of NumPy as a value: arrays of no dimensions become scalars, and those of integers Python's."""
    if isinstance(value, np.ndarray):
        if value.ndim:
            return value
        value = value[()]
    return value if dtype.is_float else value.item() if isinstance(value, np.generic) else value


def carried(value: object, dtype: DType) -> Numbers:
    """A value in its carrier: Python ints and bools become NumPy scalars."""
    return value if isinstance(value, (np.ndarray, np.generic)) else dtype.numpy.type(value)


def wrap_int(value: int, dtype: DType) -> int:
    """A Python int modulo 2**bits of an integer type."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "int":
        half = 1 << (dtype.bits - 1)
        return value if -half <= value < half else (value + half & 2 * half - 1) - half
    return value & (1 << dtype.bits) - 1


_SCALARS: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "floormod": operator.mod,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "min": min, "max": max,
}  # fmt: skip

_ARRAYS: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "floordiv": np.floor_divide, "floormod": np.mod,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "min": LEAST, "max": GREATEST, "all": np.logical_and, "any": np.logical_or,
}  # fmt: skip

_COMPARING = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "all", "any"})


def binary(op: str, left: Numbers, right: Numbers, dtype: DType) -> Numbers:
    """``left op right`` for operands of `dtype` (its lanes do not matter here)."""
    if isinstance(left, int) and isinstance(right, int):
        return _scalar_binary(op, left, right, dtype)
    if dtype.kind == "float":
        return _float_binary(op, left, right, dtype)
    if op == "div":
        raise InternalError(f"a true division of {dtype} reached the interpreter")
    result = _ARRAYS[op](carried(left, dtype), carried(right, dtype))
    return result if op in _COMPARING or dtype.bits >= 8 or dtype.kind == "bool" else wrap(result, dtype)


def _scalar_binary(op: str, left: int, right: int, dtype: DType) -> int:
    if op in ("floordiv", "floormod") and right == 0:
        return 0
    if op not in _SCALARS:
        raise InternalError(f"{op} of {dtype} reached the interpreter")
    result: int = _SCALARS[op](left, right)
    return result if op in _COMPARING else wrap_int(result, dtype)


def _float_binary(op: str, left: object, right: object, dtype: DType) -> Numbers:
    if op in _COMPARING or dtype.name in _NATIVE:
        return settle(_ARRAYS[op](left, right), dtypes.BOOL if op in _COMPARING else dtype)
    wide = _ARRAYS[op](np.asarray(left).astype(np.float64), np.asarray(right).astype(np.float64))
    return settle(round_float(wide, dtype.scalar), dtype)


def negate(value: Numbers, dtype: DType) -> Numbers:
    """``-value``, wrapped to `dtype`."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return wrap_int(-value, dtype)
    if dtype.is_float:
        if dtype.name in _NATIVE:
            return np.negative(value)
        return settle(round_float(-np.asarray(value).astype(np.float64), dtype.scalar), dtype)
    return wrap(np.negative(value), dtype)


def logical_not(value: object, dtype: DType) -> Numbers:
    return np.logical_not(value) if isinstance(value, np.ndarray) else not value


def invert(value: Numbers, dtype: DType) -> Numbers:
    if isinstance(value, np.ndarray):
        return np.invert(value) if dtype.bits >= 8 or dtype.kind == "bool" else wrap(np.invert(value), dtype)
    return (not value) if dtype.kind == "bool" else wrap_int(~value, dtype)


UNARY: Mapping[str, Callable[[Numbers, DType], Numbers]] = {"neg": negate, "not": logical_not, "invert": invert}


def convert(value: object, source: DType, destination: DType) -> Numbers:
    """`value` cast from one dtype to another."""
    source, destination = source.scalar, destination.scalar
    if source == destination:
        return value
    if isinstance(value, (int, bool)):
        if destination.kind == "bool":
            return value != 0
        if destination.is_integer:
            return wrap_int(int(value), destination)
        if destination.name in _NATIVE and -_EXACT_IN_FLOAT64 < value < _EXACT_IN_FLOAT64 and destination.bits >= 32:
            return destination.numpy.type(value)
    return settle(cast_array(carried(value, source), source, destination), destination)


def reinterpret(value: object, source: DType, destination: DType) -> Numbers:
    """The bits of `value` as another type of as many bits in all; either may be a vector."""
    array = np.asarray(carried(value, source))
    if source.lanes == 1:
        array = array[..., None]
    packed = dtypes.pack(np.ascontiguousarray(array), source.scalar)
    raw = np.ascontiguousarray(packed).view(np.uint8)
    target = destination.scalar
    result = dtypes.unpack(raw, target, destination.lanes) if target.is_packed else raw.view(target.numpy)
    return settle(result[..., 0], target) if destination.lanes == 1 else result


def call(reference: Callable[..., object], values: list[Numbers], sources: list[DType], destination: DType) -> Numbers:
    """A function of the table of intrinsics: floats go in as float64, and the result is rounded once."""
    arguments = [
        np.asarray(value).astype(np.float64) if source.is_float else np.asarray(carried(value, source))
        for value, source in zip(values, sources, strict=True)
    ]
    result = np.asarray(reference(*arguments))
    target = destination.scalar
    if target.kind == "bool":
        return settle(result.astype(bool), target)
    return settle(round_float(result, target) if target.is_float else wrap(result, target), target)


def fused_multiply_add(values: list[Numbers], dtype: DType) -> Numbers:
    """``a * b + c`` rounded once.

    The product of two floats of up to 26 bits is exact in float64.  The sum is rounded there, and rounding it
    again to the narrower type is right unless it lies just between two values of that type; then it is first
    rounded to odd instead.  For float64 the errors of both steps are added back.
    """
    a, b, c = (np.asarray(value).astype(np.float64) for value in values)
    product = a * b
    total = product + c
    if dtype.bits == 32 and dtype.name in _NATIVE and not _may_round_twice(total):
        return settle(total.astype(np.float32), dtype)
    back = total - product
    error = (product - (total - back)) + (c - back)
    if dtype.bits == 64:
        corrected = total + (error + _product_error(a, b, product))
        return settle(np.where(np.isfinite(corrected), corrected, total), dtype)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    if inexact.any():
        even = np.atleast_1d(total).view(np.uint64).reshape(total.shape) % 2 == 0
        total = np.where(inexact & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return settle(round_float(total, dtype.scalar), dtype)


def _may_round_twice(total: np.ndarray) -> bool:
    """Whether a float64 lies just between two float32, or below the normal ones."""
    between = np.atleast_1d(total).view(np.uint64) & np.uint64(0x1FFFFFFF) == np.uint64(0x10000000)
    return bool(between.any() or (np.abs(total) < 2.0**-126).any())


def _product_error(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> np.ndarray:
    """``a * b - product`` exactly (Dekker, "A floating-point technique for extending the available precision",
    1971)."""
    halves = []
    for value in (a, b):
        scaled = value * 134217729.0  # 2**27 + 1
        high = scaled - (scaled - value)
        halves.append((high, value - high))
    (a_high, a_low), (b_high, b_low) = halves
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def choose(condition: Numbers, then: Numbers, otherwise: Numbers, dtype: DType) -> Numbers:
    """``then`` where the condition holds, lane by lane."""
    return settle(np.where(condition, carried(then, dtype), carried(otherwise, dtype)), dtype)
