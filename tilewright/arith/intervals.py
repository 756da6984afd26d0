"""Arithmetic on intervals of integers whose ends may be unknown (None)."""

from __future__ import annotations

from typing import TypeAlias

from tilewright.ir.dtypes import DType

Interval: TypeAlias = "tuple[int | None, int | None]"
"""Lowest and highest value, both inclusive; None where nothing is known."""

UNKNOWN: Interval = (None, None)
BOOLEAN: Interval = (0, 1)


def add(a: Interval, b: Interval) -> Interval:
    """Sums of one value from each."""
    return (
        None if a[0] is None or b[0] is None else a[0] + b[0],
        None if a[1] is None or b[1] is None else a[1] + b[1],
    )


def negate(a: Interval) -> Interval:
    """Bounds of ``-a``."""
    return (None if a[1] is None else -a[1], None if a[0] is None else -a[0])


def scale(a: Interval, factor: int) -> Interval:
    """Bounds of ``a * factor``."""
    low = None if a[0] is None else a[0] * factor
    high = None if a[1] is None else a[1] * factor
    return (low, high) if factor >= 0 else (high, low)


def multiply(a: Interval, b: Interval) -> Interval:
    """Products of one value from each."""
    low_a, low_b, high_a, high_b = a[0], b[0], a[1], b[1]
    if low_a is not None and low_b is not None and high_a is not None and high_b is not None:
        products = (low_a * low_b, low_a * high_b, high_a * low_b, high_a * high_b)
        return min(products), max(products)
    if a == (0, 0) or b == (0, 0):
        return (0, 0)
    # One side open: the sign of the other decides which end of the product stays known.
    if low_a is not None and low_a >= 0 and low_b is not None and low_b >= 0:
        return (low_a * low_b, None if high_a is None or high_b is None else high_a * high_b)
    if high_a is not None and high_a <= 0:
        return negate(multiply(negate(a), b))
    if high_b is not None and high_b <= 0:
        return negate(multiply(a, negate(b)))
    if low_a is not None and low_a >= 0 and high_a is not None:
        return _by_nonnegative(b, high_a)
    if low_b is not None and low_b >= 0 and high_b is not None:
        return _by_nonnegative(a, high_b)
    return UNKNOWN


def _by_nonnegative(a: Interval, high: int) -> Interval:
    """Bounds of ``a * b`` with ``0 <= b <= high``."""
    return (None if a[0] is None else min(0, a[0] * high), None if a[1] is None else max(0, a[1] * high))


def floordiv(a: Interval, b: Interval) -> Interval:
    """Bounds of ``a // b`` for values of `b` other than zero."""
    if b[0] is None or b[0] <= 0:
        if b[1] is not None and b[1] < 0:
            return floordiv(negate(a), negate(b))
        if a[0] is None or a[1] is None:
            return UNKNOWN
        magnitude = max(abs(a[0]), abs(a[1]))
        return -magnitude, magnitude
    low = high = None
    if a[0] is not None:
        low = a[0] // b[0] if a[0] < 0 else (0 if b[1] is None else a[0] // b[1])
    if a[1] is not None:
        high = a[1] // b[0] if a[1] >= 0 else (-1 if b[1] is None else a[1] // b[1])
    return low, high


def floormod(a: Interval, b: Interval) -> Interval:
    """Bounds of ``a % b`` for values of `b` other than zero."""
    if b[0] is not None and b[0] > 0:
        if a[0] is not None and a[0] >= 0:
            if a[1] is not None and a[1] < b[0]:
                return a
            return 0, _least(a[1], None if b[1] is None else b[1] - 1)
        return 0, None if b[1] is None else b[1] - 1
    if b[1] is not None and b[1] < 0:
        return negate(floormod(negate(a), negate(b)))
    if b[0] is None or b[1] is None:
        return UNKNOWN
    return min(0, b[0] + 1), max(0, b[1] - 1)


def minimum(a: Interval, b: Interval) -> Interval:
    """Bounds of ``min(a, b)``."""
    low = None if a[0] is None or b[0] is None else min(a[0], b[0])
    return low, _least(a[1], b[1])


def maximum(a: Interval, b: Interval) -> Interval:
    """Bounds of ``max(a, b)``."""
    return negate(minimum(negate(a), negate(b)))


def bitwise_and(a: Interval, b: Interval) -> Interval:
    """A non-negative operand bounds the result, since it can only lose bits."""
    highs = [i[1] for i in (a, b) if i[0] is not None and i[0] >= 0]
    if not highs:
        return UNKNOWN
    known = [high for high in highs if high is not None]
    return 0, min(known) if known else None


def bitwise_or_xor(a: Interval, b: Interval) -> Interval:
    """Of non-negative operands: no bit above the highest of either."""
    if a[0] is None or b[0] is None or a[1] is None or b[1] is None or a[0] < 0 or b[0] < 0:
        return UNKNOWN
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def union(a: Interval, b: Interval) -> Interval:
    """The least interval that holds both."""
    return (
        None if a[0] is None or b[0] is None else min(a[0], b[0]),
        None if a[1] is None or b[1] is None else max(a[1], b[1]),
    )


def intersect(a: Interval, b: Interval) -> Interval:
    """Values in both.  Where there are none the facts contradict each other, and any interval will do."""
    low, high = _greatest(a[0], b[0]), _least(a[1], b[1])
    return (low, low) if low is not None and high is not None and low > high else (low, high)


def within(a: Interval, dtype: DType) -> bool:
    """Whether every value is one of an integer type."""
    return a[0] is not None and a[1] is not None and int(dtype.minimum) <= a[0] and a[1] <= int(dtype.maximum)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _greatest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
