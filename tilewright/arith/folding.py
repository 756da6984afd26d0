"""Operations on literals, in the arithmetic of their type: integers wrap, floats round once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.arith.state import wrapped
from tilewright.ir.dtypes import DType

Value = int | float | bool

_ROUNDED = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Floats folded here: those whose sums, products and quotients float64 holds well enough to round just once."""


def _shift_left(a: int, b: int) -> int | None:
    return a << b if 0 <= b < 64 else None


def _shift_right(a: int, b: int) -> int | None:
    return a >> b if 0 <= b < 64 else None


_INTEGERS: dict[str, Callable[[int, int], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else None, "floormod": lambda a, b: a % b if b else None,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": _shift_left,
    "shr": _shift_right, "min": min, "max": max,
}  # fmt: skip

_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def fold_binary(op: str, a: Value, b: Value, dtype: DType) -> Value | None:
    """``a op b`` for literals of `dtype`; None where the result is undefined or left to the machine."""
    if dtype.is_float:
        left, right = _held(float(a), dtype), _held(float(b), dtype)
        if left is None or right is None:
            return None
        return bool(_COMPARISONS[op](left, right)) if op in _COMPARISONS else _fold_float(op, left, right, dtype)
    if op in _COMPARISONS:
        return bool(_COMPARISONS[op](a, b))
    if dtype.kind == "bool":
        return _fold_bool(op, bool(a), bool(b))
    if op not in _INTEGERS:
        return None
    result = _INTEGERS[op](int(a), int(b))
    return None if result is None else wrapped(result, dtype)


def _held(value: float, dtype: DType) -> float | None:
    """The number of a type that a literal means; None where rounding is the machine's own business."""
    if dtype.holds(value):
        return value
    if dtype.name not in _ROUNDED:
        return None
    with np.errstate(all="ignore"):
        return _rounded(np.float64(value), dtype)


def _fold_bool(op: str, a: bool, b: bool) -> bool | None:
    match op:
        case "all" | "and" | "min":
            return a and b
        case "any" | "or" | "max":
            return a or b
        case "xor":
            return a != b
    return None


def _fold_float(op: str, a: float, b: float, dtype: DType) -> float | None:
    if dtype.name not in _ROUNDED:
        return None
    if op in ("min", "max"):
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        if a == b == 0:  # which zero is left to the machine
            return None
        return min(a, b) if op == "min" else max(a, b)
    if op not in _FLOATS:
        return None
    with np.errstate(all="ignore"):
        return _rounded(_FLOATS[op](np.float64(a), np.float64(b)), dtype)


def _rounded(value: np.float64, dtype: DType) -> float | None:
    """`value` rounded once; None for a bfloat16 that its carrier would round twice, by way of float32."""
    if dtype.name == "bfloat16" and not np.isnan(value) and np.float64(np.float32(value)) != value:
        return None
    return float(value.astype(dtype.numpy))


def fold_unary(op: str, value: Value, dtype: DType) -> Value | None:
    """The value of ``op value``, None where it is better left to the machine."""
    if op == "not":
        return not value
    if dtype.is_integer and isinstance(value, int):
        return wrapped(-value if op == "neg" else ~value, dtype)
    return -value if op == "neg" and dtype.name in _ROUNDED else None


def fold_cast(value: Value, source: DType, target: DType) -> Value | None:
    """A literal converted; None for the formats whose rounding is their own business."""
    if source.is_float:
        held = _held(float(value), source)
        if held is None:
            return None
        value = held
    if target.kind == "bool":
        return bool(value)
    if target.is_integer:
        if not source.is_float:
            return wrapped(int(value), target)
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return target.maximum if value > 0 else target.minimum
        return int(min(max(int(value), target.minimum), target.maximum))
    if target.name not in _ROUNDED or (source.is_float and source.name not in _ROUNDED):
        return None
    if source.is_integer and abs(value) > 1 << 53:
        return None  # float64 would round first
    with np.errstate(all="ignore"):
        return _rounded(np.float64(value), target)


def holds_exactly(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` survives a conversion to `wide` and back."""
    if narrow.kind == "bool":
        return wide.is_integer or wide.kind == "bool"
    if narrow.is_integer and wide.is_integer:
        return narrow.minimum >= wide.minimum and narrow.maximum <= wide.maximum
    if narrow.is_integer and wide.is_float:
        return wide.name in _ROUNDED and narrow.bits <= wide.mantissa_bits and wide.exponent_bits >= 8
    if narrow.is_float and wide.is_float:
        return (
            wide.infinities >= narrow.infinities
            and wide.nans >= narrow.nans
            and wide.mantissa_bits >= narrow.mantissa_bits
            and wide.exponent_bits > narrow.exponent_bits
            and wide.name in _ROUNDED
        )
    return False
