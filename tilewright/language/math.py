"""Functions of scalars: arithmetic, choices, conversions, and the table of intrinsics under their names."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir import dtypes, nodes
from tilewright.ir.dtypes import FLOAT32
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import Call
from tilewright.language.branches import is_symbolic, stand_in
from tilewright.language.interface import author_facing
from tilewright.language.mistakes import NumberExpected
from tilewright.language.operators import absolute, combine, floor_divide, floor_modulo, select, shift
from tilewright.language.promotion import promote
from tilewright.language.proxies import Scalar, as_expr, describe, frame_of, is_number


def _known(*values: Any) -> bool:
    return not any(isinstance(value, Scalar) for value in values)


def _function(name: str) -> Callable[..., Any]:
    """A function of the table of intrinsics; integers are converted to float32, Python numbers stay Python's."""
    arity = INTRINSICS[name].arity
    gives_bool = name.startswith("is")

    def call(*values: Any) -> Any:
        if len(values) != arity:
            raise NumberExpected(f"the number of arguments of T.{name}", str(arity), str(len(values)))
        exprs = [as_expr(value, what=f"the argument of T.{name}") for value in values]
        common = functools.reduce(promote, (expr.dtype for expr in exprs if expr.dtype.is_float), exprs[0].dtype)
        if not common.is_float:
            common = FLOAT32
        arguments = tuple(as_expr(value, common) for value in values)
        return Scalar(Call(dtypes.BOOL if gives_bool else common, name, arguments), frame_of(*values))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}`` of a float scalar, in its own dtype."
    return author_facing(call)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: _function(name) for name, record in INTRINSICS.items() if record.floats_only
}
"""The functions of floats by name: exp, exp2, log, sqrt, ..."""

abs_ = author_facing(absolute)


@author_facing
def ceildiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up, on integers."""
    if _known(a, b):
        return -(-a // b)
    return floor_divide(a + (b - 1), b)


cdiv = ceildiv


@author_facing
def floordiv(a: Any, b: Any) -> Any:
    """``a // b``."""
    return a // b if _known(a, b) else floor_divide(a, b)


@author_facing
def floormod(a: Any, b: Any) -> Any:
    """``a % b``, with the sign of `b`."""
    return a % b if _known(a, b) else floor_modulo(a, b)


@author_facing
def align_up(value: Any, alignment: Any) -> Any:
    """The least multiple of `alignment` that is not less than `value`."""
    return ceildiv(value, alignment) * alignment


@stand_in("max")
@author_facing
def max_(*values: Any, **keywords: Any) -> Any:
    """The greatest of the values; of a number and a NaN, the number."""
    return _extreme("max", builtins.max, values, keywords)


@stand_in("min")
@author_facing
def min_(*values: Any, **keywords: Any) -> Any:
    """The least of the values; of a number and a NaN, the number."""
    return _extreme("min", builtins.min, values, keywords)


def _extreme(op: str, python: Callable[..., Any], values: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    items = tuple(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
    if _known(*items) or keywords:
        return python(*values, **keywords)
    return functools.reduce(lambda a, b: python(a, b) if _known(a, b) else combine(op, a, b), items)


@author_facing
def clamp(value: Any, low: Any, high: Any) -> Any:
    """`value`, at least `low` and at most `high`."""
    return min_(max_(value, low), high)


@author_facing
def if_then_else(condition: Any, then: Any, otherwise: Any) -> Any:
    """``then if condition else otherwise``; only the branch taken is evaluated."""
    return select(condition, then, otherwise) if is_symbolic(condition) else (then if condition else otherwise)


Select = if_then_else


@author_facing
def cast(value: Any, dtype: Any, *, saturate: bool = True) -> Scalar:
    """`value` converted: to an integer by truncation, saturating; to a float by rounding to nearest even.

    Parameters
    ----------
    saturate : whether a number beyond a float of at most eight bits becomes its largest one; else it becomes what an infinity does
        (the type's infinity, else its NaN), as in NumPy and torch.
    """
    if not is_number(value):
        raise NumberExpected("what T.cast converts", "a scalar", describe(value))
    record = dtypes.dtype(dtype)
    if not saturate and record.is_float and record.bits <= 8:
        value = _beyond_as_infinity(value, record)
    return Scalar(as_expr(value, record), frame_of(value))


def _beyond_as_infinity(value: Any, record: dtypes.DType) -> Scalar:
    """`value`, or an infinity of its sign where it is nearer to what would follow the largest number of a type than to that."""
    if not record.nans:
        raise NumberExpected("the dtype of T.cast(saturate=False)", "one with infinities or NaN", str(record))
    wide = as_expr(value)
    if not wide.dtype.is_float or wide.dtype.bits < 32:
        wide = nodes.cast(wide, FLOAT32)
    step = math.ldexp(1.0, math.frexp(record.maximum)[1] - 1 - record.mantissa_bits)
    # In the middle the even code is taken: the largest number's, where it is even.
    largest = int(np.asarray(record.maximum).astype(record.numpy).view(np.uint8))
    size, limit = as_expr(absolute(Scalar(wide))), nodes.const(record.maximum + step / 2, wide.dtype)
    beyond = nodes.binary("ge" if largest & 1 else "gt", size, limit)
    infinite = nodes.binary("mul", wide, nodes.const(math.inf, wide.dtype))
    return Scalar(nodes.Select(wide.dtype, beyond, infinite, wide), frame_of(value))


@author_facing
def Cast(dtype: Any, value: Any) -> Scalar:
    """`cast` with its arguments the other way round; either order will do."""
    if is_number(dtype) and not is_number(value):
        value, dtype = dtype, value
    made: Scalar = cast(value, dtype)
    return made


@author_facing
def reinterpret(value: Any, dtype: Any) -> Scalar:
    """The bits of `value` read as another dtype of the same width."""
    if isinstance(value, (str, dtypes.DType)):
        value, dtype = dtype, value
    if dtype == "handle":  # the unused argument of T.attr
        return value if isinstance(value, Scalar) else Scalar(as_expr(value))
    record, operand = dtypes.dtype(dtype), as_expr(value, what="what T.reinterpret reads")
    if record.bits * record.lanes != operand.dtype.bits * operand.dtype.lanes:
        raise NumberExpected("T.reinterpret", f"a dtype of {operand.dtype.bits} bits", f"{record}")
    return Scalar(nodes.Reinterpret(record, operand), frame_of(value))


@author_facing
def infinity(dtype: Any = "float32") -> Scalar:
    """Positive infinity of a float dtype (its largest number, where it has no infinities)."""
    record = dtypes.dtype(dtype)
    if not record.is_float:
        raise NumberExpected("T.infinity", "a float dtype", f"{record}; write T.max_value('{record}')")
    return Scalar(nodes.const(math.inf if record.infinities else record.maximum, record))


@author_facing
def max_value(dtype: Any) -> Scalar:
    """The largest finite value of a dtype."""
    record = dtypes.dtype(dtype)
    return Scalar(nodes.const(record.maximum, record))


@author_facing
def min_value(dtype: Any) -> Scalar:
    """The smallest finite value of a dtype."""
    record = dtypes.dtype(dtype)
    return Scalar(nodes.const(record.minimum, record))


@author_facing
def shift_left(value: Any, bits: Any) -> Any:
    """``value << bits``."""
    return value << bits if _known(value, bits) else shift("shl", value, bits)


@author_facing
def shift_right(value: Any, bits: Any) -> Any:
    """``value >> bits``, arithmetic on signed dtypes."""
    return value >> bits if _known(value, bits) else shift("shr", value, bits)


@author_facing
def bitwise_and(a: Any, b: Any) -> Any:
    """``a & b``."""
    return a & b


@author_facing
def bitwise_or(a: Any, b: Any) -> Any:
    """``a | b``."""
    return a | b


@author_facing
def bitwise_xor(a: Any, b: Any) -> Any:
    """``a ^ b``."""
    return a ^ b


@author_facing
def bitwise_not(value: Any) -> Any:
    """``~value``."""
    return ~value


@author_facing
def popcount(value: Any) -> Any:
    """How many bits of an integer are set."""
    operand = as_expr(value, what="the argument of T.popcount")
    if not operand.dtype.is_integer:
        raise NumberExpected("the argument of T.popcount", "an integer", describe(value))
    return Scalar(Call(operand.dtype, "popcount", (operand,)), frame_of(value))


@author_facing
def index_to_coordinates(index: Any, shape: Any) -> list[Any]:
    """The coordinates of element number `index` of a row-major array of `shape`."""
    coordinates: list[Any] = []
    for size in reversed(tuple(shape)):
        coordinates.append(floormod(index, size))
        index = floordiv(index, size)
    return coordinates[::-1]


@stand_in("round")
def _round(value: Any, *digits: Any) -> Any:
    return FUNCTIONS["round"](value) if isinstance(value, Scalar) and not digits else builtins.round(value, *digits)
