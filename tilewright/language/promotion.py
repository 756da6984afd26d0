"""Which dtype two operands meet in: the language's one table of promotions.

==========================================  =====================================================
operands                                    result
==========================================  =====================================================
a dtype and itself                          that dtype
a Python number and a value                 the value's dtype, where it can hold the number;
                                            a Python float and an integer give ``float32``
``bool`` in arithmetic, with a number       ``int32``, the number's dtype
integer and float                           the float's dtype
floats of different width                   the wider one
floats of one width, different formats      ``float32`` (``float16`` with ``bfloat16``, two kinds of fp8)
integers of one signedness                  the wider one (so ``int32`` indices widen to ``int64``)
unsigned with a wider signed integer        the signed one
unsigned with a signed one of no more bits  the next wider signed integer, at most ``int64``
==========================================  =====================================================

Comparisons promote their operands in the same way.  A store converts to the buffer's dtype; a shift keeps the
dtype of what is shifted.
"""

from __future__ import annotations

import functools

from tilewright.ir.dtypes import ALL, BOOL, FLOAT32, INT32, INT64, DType


@functools.lru_cache(maxsize=4096)
def promote(a: DType, b: DType) -> DType:
    """The dtype in which operands of dtypes `a` and `b` meet (the table above)."""
    if a == b:
        return a
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return _wider(a, b) if a.bits != b.bits else FLOAT32
    if a.kind == b.kind:
        return _wider(a, b)
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return ALL[f"int{unsigned.bits * 2}"] if unsigned.bits < 64 else INT64


def _wider(a: DType, b: DType) -> DType:
    return a if a.bits > b.bits else b


def literal_dtype(value: bool | int | float, other: DType) -> DType:
    """The dtype of a Python number beside a value of dtype `other`, before the two are promoted."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        if other.is_float:
            return other if abs(value) <= other.maximum else FLOAT32
        if other.is_integer and other.minimum <= value <= other.maximum:
            return other
        return INT32 if -(1 << 31) <= value < 1 << 31 else INT64
    return other if other.is_float and _holds(other, value) else FLOAT32


def _holds(dtype: DType, value: float) -> bool:
    if value != value:
        return dtype.nans
    if value in (float("inf"), float("-inf")):
        return dtype.infinities
    return abs(value) <= dtype.maximum
