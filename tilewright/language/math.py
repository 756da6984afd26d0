"""Functions of scalars: arithmetic, choices, conversions, and the table of intrinsics under their names."""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tilewright.ir import FLOAT32, INTRINSICS, dtypes
from tilewright.ir import nodes as ir
from tilewright.language.branches import is_symbolic, stand_in
from tilewright.language.interface import author_facing, called, made_word, word
from tilewright.language.mistakes import NumberExpected
from tilewright.language.operators import absolute, combine, floor_divide, floor_modulo, select, shift
from tilewright.language.promotion import promote
from tilewright.language.proxies import Scalar, Value, as_expr, describe, frame_of


def _known(*values: object) -> bool:
    return not any(isinstance(value, Scalar) for value in values)


def by_python(name: str, expected: str, python: Callable[..., Any], *values: object) -> Any:
    """What Python makes of numbers that it knows; the author's mistake where it makes nothing of them."""
    try:
        return python(*values)
    except (TypeError, ValueError, ZeroDivisionError):
        found = " and ".join(map(describe, values))
        raise NumberExpected(f"what T.{name} is given", expected, found) from None


Whole: TypeAlias = "int | Scalar"
"""A whole number that Python knows, or one of the program."""

PARAMETERS = {"atan2": ("x1", "x2")}
"""Names of the parameters of functions, where they are not x, y, z."""


def _function(name: str) -> Callable[..., Value]:
    """A function of the table of intrinsics; integers are converted to float32, Python numbers stay Python's."""
    names = PARAMETERS.get(name, ("x", "y", "z")[: INTRINSICS[name].arity])
    gives_bool = name.startswith("is")

    def call(*values: object) -> Value:
        exprs = [as_expr(value, what=f"the argument of T.{name}") for value in values]
        common = functools.reduce(promote, (expr.dtype for expr in exprs if expr.dtype.is_float), exprs[0].dtype)
        if not common.is_float:
            common = FLOAT32
        arguments = tuple(as_expr(value, common) for value in values)
        return Scalar(ir.Call(dtypes.BOOL if gives_bool else common, name, arguments), frame_of(*values))

    operands = ", ".join(f"{tensor}[i, 0]" for tensor in "ABC"[: len(names)])
    example = f"T.if_then_else(T.{name}({operands}), 1, 0)" if gives_bool else f"T.{name}({operands})"
    meaning = f"``{name}`` of a float scalar, in its own dtype{'; a bool' if gives_bool else ''}."
    parameters = {", ".join(names): f"scalar{'s' * (len(names) > 1)}; of integers the result is float32."}
    return made_word(call, name, meaning, parameters, f"C[i, 0] = {example}")


_TABLE: dict[str, Callable[..., Value]] = {
    name: _function(name) for name, record in INTRINSICS.items() if record.floats_only
}

ROUNDINGS = ("ties-to-even", "ties-away-from-zero")


@word
def round_(x: object, rounding_mode: str | None = "ties-to-even") -> Value:
    """The nearest whole number of a float scalar, in its own dtype.

    Parameters
    ----------
    x : a scalar; of an integer the result is float32.
    rounding_mode : where a number in the middle goes, ``"ties-to-even"`` or ``"ties-away-from-zero"``.

    Examples
    --------
    >>> C[i, 0] = T.round(A[i, 0])
    """
    if rounding_mode not in (None, *ROUNDINGS):
        raise NumberExpected("rounding_mode of T.round", " or ".join(map(repr, ROUNDINGS)), repr(rounding_mode))
    if rounding_mode != ROUNDINGS[1]:
        return _TABLE["round"](x)
    whole = _TABLE["trunc"](x)
    value = x if isinstance(x, Scalar) and x.expr.dtype.is_float else Scalar(as_expr(x, FLOAT32))
    away = if_then_else(combine("lt", value, 0), whole - 1.0, whole + 1.0)
    return if_then_else(absolute(value - whole) >= 0.5, away, whole)


FUNCTIONS: dict[str, Callable[..., Value]] = {**_TABLE, "round": round_}
"""The functions of floats by name: exp, exp2, log, sqrt, ..."""

abs_ = called("abs")(author_facing(absolute))


@word
def ceildiv(lhs: Value, rhs: Value) -> Value:
    """``lhs / rhs`` rounded up, on integers.

    Parameters
    ----------
    lhs, rhs : integers, `rhs` above 0; symbolic or Python's.

    Examples
    --------
    >>> N[i] = T.ceildiv(n, 8)
    """
    if _known(lhs, rhs):
        return by_python("ceildiv", "integers, the second above 0", lambda a, b: -(-a // b), lhs, rhs)
    less = by_python("ceildiv", "integers, the second above 0", lambda divisor: divisor - 1, rhs)
    return floor_divide(by_python("ceildiv", "integers, the second above 0", operator.add, lhs, less), rhs)


cdiv = ceildiv


def _operator(
    name: str,
    meaning: str,
    parameters: dict[str, str],
    operand: int,
    python: Callable[[Any, Any], Any],
    of_program: Callable[[object, object], Value] | None = None,
) -> Callable[..., Any]:
    """An operator of Python's as a word; `of_program` records it where Python does not know both operands, unless they
    do so themselves."""

    def call(left: object, right: object) -> Any:
        if of_program is not None and not _known(left, right):
            return of_program(left, right)
        return by_python(name, "; ".join(f"{names} {what}" for names, what in parameters.items()), python, left, right)

    return made_word(call, name, f"{meaning}.", parameters, f"N[i] = T.{name}(N[i], {operand})")


_DIVIDED = {"a, b": "integers; by 0 is the author's mistake."}
_SHIFTED = {"x": "an integer.", "y": "from 0 below its width."}
_INTEGERS = {"x, y": "integers."}

floordiv = _operator("floordiv", "``a // b``", _DIVIDED, 4, operator.floordiv, floor_divide)
floormod = _operator("floormod", "``a % b``, with the sign of `b`", _DIVIDED, 4, operator.mod, floor_modulo)
shift_left = _operator("shift_left", "``x << y``", _SHIFTED, 2, operator.lshift, functools.partial(shift, "shl"))
shift_right = _operator(
    "shift_right",
    "``x >> y``, arithmetic on signed dtypes",
    _SHIFTED,
    2,
    operator.rshift,
    functools.partial(shift, "shr"),
)
bitwise_and = _operator("bitwise_and", "``x & y``", _INTEGERS, 15, operator.and_)
bitwise_or = _operator("bitwise_or", "``x | y``", _INTEGERS, 1, operator.or_)
bitwise_xor = _operator("bitwise_xor", "``x ^ y``", _INTEGERS, 1, operator.xor)
bitwise_not = made_word(
    lambda x: by_python("bitwise_not", "an integer", operator.invert, x),
    "bitwise_not",
    "``~x``.",
    {"x": "an integer."},
    "N[i] = T.bitwise_not(N[i])",
)


@word
def align_up(x: Value, y: Value) -> Value:
    """The least multiple of `y` that is not less than `x`.

    Parameters
    ----------
    x : an integer, symbolic or Python's.
    y : an integer above 0.

    Examples
    --------
    >>> C[i, 0] = T.align_up(n, 8)
    """
    return ceildiv(x, y) * y


def _extreme(name: str, meaning: str, python: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: object, **keywords: object) -> Any:
        items = tuple(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
        if _known(*items) or keywords:
            return by_python(name, "numbers", functools.partial(python, **keywords), *values)
        found, *others = items
        for item in others:
            known = _known(found, item)
            found = by_python(name, "numbers", python, found, item) if known else combine(name, found, item)
        return found

    meaning = f"The {meaning} of the values; of a number and a NaN, the number."
    parameters = {
        "values": "scalars, or one list of them.", "keywords": f"those of Python's ``{name}``, for Python values."
    }  # fmt: skip
    return stand_in(name)(made_word(call, name, meaning, parameters, f"C[i, 0] = T.{name}(A[i, 0], B[i, 0])"))


max_, min_ = _extreme("max", "greatest", builtins.max), _extreme("min", "least", builtins.min)


@word
def clamp(dst: object, min_val: object, max_val: object) -> Value:
    """`dst`, at least `min_val` and at most `max_val`.

    Parameters
    ----------
    dst, min_val, max_val : scalars; of a NaN, `min_val`.

    Examples
    --------
    >>> C[i, 0] = T.clamp(A[i, 0], 0.0, 1.0)
    """
    return min_(max_(dst, min_val), max_val)


@word
def if_then_else(cond: Value, t: Value, f: Value) -> Value:
    """``t if cond else f``; only the branch taken is evaluated.

    Parameters
    ----------
    cond : a bool, symbolic or Python's.
    t, f : scalars; the wider of their dtypes is the result's.

    Examples
    --------
    >>> C[i, 0] = T.if_then_else(i < 8, A[i, 0], 0.0)
    """
    return select(cond, t, f) if is_symbolic(cond) else (t if cond else f)


Select = made_word(
    lambda condition, true_value, false_value: if_then_else(condition, true_value, false_value),
    "Select",
    "`if_then_else` under TVM's name.",
    {
        "condition": "a bool, symbolic or Python's.",
        "true_value, false_value": "scalars; the wider of their dtypes is the result's.",
    },
    "C[i, 0] = T.Select(i < 8, A[i, 0], 0.0)",
)


@word
def popcount(x: object) -> Value:
    """How many bits of an integer are set.

    Parameters
    ----------
    x : an integer.

    Examples
    --------
    >>> N[i] = T.popcount(N[i])
    """
    operand = as_expr(x, what="the argument of T.popcount")
    if not operand.dtype.is_integer:
        raise NumberExpected("the argument of T.popcount", "an integer", describe(x))
    return Scalar(ir.Call(operand.dtype, "popcount", (operand,)), frame_of(x))


@word
def index_to_coordinates(index: Value, shape: Sequence[Value]) -> list[Value]:
    """The coordinates of element number `index` of a row-major array of `shape`.

    Parameters
    ----------
    index : an integer.
    shape : extents.

    Examples
    --------
    >>> y, x = T.index_to_coordinates(bx * 8, (64, 64))
    >>> C[y, x] = 1
    """
    coordinates: list[Value] = []
    for size in reversed(tuple(shape)):
        coordinates.append(floormod(index, size))
        index = floordiv(index, size)
    return coordinates[::-1]


@stand_in("round")
def _round(value: Any, *digits: Any) -> object:
    return FUNCTIONS["round"](value) if isinstance(value, Scalar) and not digits else builtins.round(value, *digits)
