"""Numbers of one type as those of another: casts, bits read otherwise, the limits of types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir import FLOAT32, dtypes
from tilewright.ir import nodes as ir
from tilewright.language.interface import made_word, word
from tilewright.language.mistakes import NumberExpected
from tilewright.language.operators import absolute
from tilewright.language.proxies import Scalar, as_expr, describe, frame_of, is_number
from tilewright.language.vectors import Vector
from tilewright.language.wide_words import reinterpret_vector


@word
def cast(
    value: object,
    dtype: object,
    round: str = "",
    sat: bool = True,
    rbits: object = None,
    *,
    saturate: bool | None = None,
) -> Any:  # a number, or a vector of several
    """`value` converted: to an integer by truncation, saturating; to a float by rounding to nearest even.

    Parameters
    ----------
    value : a scalar, or a vector.
    dtype : a type's name or one of `T`'s; of a vector, the type of a lane or of all lanes together.
    round : ``""`` or ``"rn"``.
    sat : whether a number beyond a float of at most eight bits becomes its largest one; else it becomes what an
        infinity does (the type's infinity, else its NaN), as in NumPy and torch.
    rbits : must be None: no machine rounds by random bits.
    saturate : another name of `sat`.

    Examples
    --------
    >>> N[i] = T.cast(A[i, 0], "int32")
    """
    record = dtypes.dtype(dtype)
    if isinstance(value, Vector) and record.lanes in (1, value.lanes):
        lanes, scalar = value.of, record.scalar
        return Vector(value.lanes, lambda lane: cast(lanes(lane), scalar, round, sat, rbits, saturate=saturate))
    if not is_number(value):
        raise NumberExpected("what T.cast converts", "a scalar", describe(value))
    if round not in ("", "rn") or rbits is not None:
        raise NumberExpected("the rounding of T.cast", "'' or 'rn', and rbits=None: to nearest even", repr(round))
    if record.lanes > 1:
        raise NumberExpected("the type of what T.cast converts to", f"that of one number, {record.scalar}", str(record))
    if not (sat if saturate is None else saturate) and record.is_float and record.bits <= 8:
        value = _beyond_as_infinity(value, record)
    return Scalar(as_expr(value, record), frame_of(value))


def _is_value(value: object) -> bool:
    return is_number(value) or isinstance(value, Vector)


def _beyond_as_infinity(value: object, record: dtypes.DType) -> Scalar:
    """`value`, or an infinity of its sign where it is nearer to what would follow the largest number of a type than to
    that."""
    if not record.nans:
        raise NumberExpected("the dtype of T.cast(saturate=False)", "one with infinities or NaN", str(record))
    wide = as_expr(value)
    if not wide.dtype.is_float or wide.dtype.bits < 32:
        wide = ir.cast(wide, FLOAT32)
    step = math.ldexp(1.0, math.frexp(record.maximum)[1] - 1 - record.mantissa_bits)
    # In the middle the even code is taken: the largest number's, where it is even.
    largest = int(np.asarray(record.maximum).astype(record.numpy).view(np.uint8))
    size, limit = as_expr(absolute(Scalar(wide))), ir.const(record.maximum + step / 2, wide.dtype)
    beyond = ir.binary("ge" if largest & 1 else "gt", size, limit)
    infinite = ir.binary("mul", wide, ir.const(math.inf, wide.dtype))
    return Scalar(ir.Select(wide.dtype, beyond, infinite, wide), frame_of(value))


Cast = made_word(
    lambda dtype, value: cast(*((value, dtype) if is_number(value) or not _is_value(dtype) else (dtype, value))),
    "Cast",
    "`cast` with its arguments the other way round; either order will do.",
    {"dtype, value": "as those of `cast`."},
    'C[i, 0] = T.Cast("float32", N[i])',
)


@word
def reinterpret(value: object, dtype: object) -> Any:  # a number, or a vector of several
    """The bits of `value` read as another dtype of the same width.

    Parameters
    ----------
    value : a scalar, or a vector.
    dtype : as wide as its own; the two may be swapped.

    Examples
    --------
    >>> N[i] = T.reinterpret(A[i, 0], "int32")
    """
    if isinstance(value, (str, dtypes.DType)):
        value, dtype = dtype, value
    if dtype == "handle":  # the unused argument of T.attr
        return value if isinstance(value, Scalar) else Scalar(as_expr(value))
    record = dtypes.dtype(dtype)
    if isinstance(value, Vector):
        return reinterpret_vector(value, record)
    operand = as_expr(value, what="what T.reinterpret reads")
    if record.bits * record.lanes != operand.dtype.bits * operand.dtype.lanes:
        raise NumberExpected("T.reinterpret", f"a dtype of {operand.dtype.bits} bits", f"{record}")
    return Scalar(ir.Reinterpret(record, operand), frame_of(value))


@word
def infinity(dtype: object = "float32") -> Scalar:
    """Positive infinity of a float dtype (its largest number, where it has no infinities).

    Parameters
    ----------
    dtype : a float type.

    Examples
    --------
    >>> T.fill(tile, T.infinity("float32"))
    """
    record = dtypes.dtype(dtype)
    if not record.is_float:
        raise NumberExpected("T.infinity", "a float dtype", f"{record}; write T.max_value('{record}')")
    return Scalar(ir.const(math.inf if record.infinities else record.maximum, record))


def _limit(name: str, meaning: str, attribute: str) -> Callable[[object], Scalar]:
    def call(dtype: object) -> Scalar:
        record = dtypes.dtype(dtype)
        return Scalar(ir.const(getattr(record, attribute), record))

    meaning, example = f"The {meaning} finite value of a dtype.", f'T.fill(tile, T.{name}("float32"))'
    return made_word(call, name, meaning, {"dtype": "a number type."}, example)


max_value, min_value = _limit("max_value", "largest", "maximum"), _limit("min_value", "smallest", "minimum")
