"""What the operators on stand-ins record: promotion, then one node of the IR.

The last lines give every operator of Python to `Scalar`, from one table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL, FLOAT32, INT32
from tilewright.language.mistakes import IntegerDivision, NumberExpected, TensorOperand
from tilewright.language.promotion import literal_dtype, promote
from tilewright.language.proxies import (
    Scalar,
    Value,
    as_expr,
    condition,
    convert,
    describe,
    frame_of,
    is_number,
    literal,
    plain,
)


def operands(what: str, left: object, right: object) -> tuple[ir.Expr, ir.Expr]:
    """Two numbers, at least one symbolic, as expressions of one dtype."""
    left, right = plain(left), plain(right)
    for value in (left, right):
        if not isinstance(value, (Scalar, bool, int, float)):
            if hasattr(value, "description"):
                raise TensorOperand(what, describe(value))
            raise NumberExpected(f"an operand of {what}", "a number", describe(value))
    if isinstance(left, (bool, int, float)):
        b = as_expr(right)
        a = as_expr(left, literal_dtype(left, b.dtype))
    else:
        a = as_expr(left)
        b = as_expr(right, literal_dtype(right, a.dtype) if isinstance(right, (bool, int, float)) else None)
    common = promote(a.dtype, b.dtype)
    return convert(a, common), convert(b, common)


def combine(op: str, left: object, right: object) -> Scalar:
    """``left op right`` with promotion; arithmetic on two bools is done in int32."""
    a, b = operands(f"`{ir.BINARY[op]}`", left, right)
    if a.dtype == BOOL and op not in ("eq", "ne"):
        a, b = convert(a, INT32), convert(b, INT32)
    return Scalar(ir.binary(op, a, b), frame_of(left, right))


def divide(left: object, right: object) -> Scalar:
    """``left / right``; an error on two integers, since the author may mean either division."""
    a, b = operands("`/`", left, right)
    if not a.dtype.is_float:
        raise IntegerDivision()
    return Scalar(ir.binary("div", a, b), frame_of(left, right))


def floor_divide(left: object, right: object) -> Scalar:
    """``left // right``, rounding towards minus infinity on floats too."""
    a, b = operands("`//`", left, right)
    _refuse_zero("`//`", right)
    if a.dtype.is_float:
        return Scalar(ir.Call(a.dtype, "floor", (ir.binary("div", a, b),)), frame_of(left, right))
    return combine("floordiv", left, right)


def floor_modulo(left: object, right: object) -> Scalar:
    """``left % right`` with the sign of the divisor."""
    a, b = operands("`%`", left, right)
    _refuse_zero("`%`", right)
    if a.dtype.is_float:
        quotient = ir.Call(a.dtype, "floor", (ir.binary("div", a, b),))
        return Scalar(ir.binary("sub", a, ir.binary("mul", quotient, b)), frame_of(left, right))
    return combine("floormod", left, right)


def _refuse_zero(what: str, divisor: object) -> None:
    value = divisor.known() if isinstance(divisor, Scalar) else divisor
    if value is not None and value == 0:
        raise NumberExpected(f"the divisor of {what}", "a number other than zero", "0")


def power(left: object, right: object) -> object:
    """``left ** right``: multiplications for a small known exponent, else the function ``pow``."""
    exponent = right.known() if isinstance(right, Scalar) else plain(right)
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and 0 <= exponent <= 4:
        if exponent == 0:
            return Scalar(literal(1, as_expr(left).dtype))
        result = left
        for _ in range(int(exponent) - 1):
            result = combine("mul", result, left)
        return result
    a, b = operands("`**`", left, right)
    if not a.dtype.is_float:
        a, b = convert(a, FLOAT32), convert(b, FLOAT32)
    return Scalar(ir.Call(a.dtype, "pow", (a, b)), frame_of(left, right))


def negative(value: Scalar) -> Scalar:
    """``-value``; of a literal, a literal."""
    operand = as_expr(value)
    if operand.dtype == BOOL:
        operand = convert(operand, INT32)
    if isinstance(operand, ir.Const) and operand.dtype.minimum <= -operand.value <= operand.dtype.maximum:
        return Scalar(ir.Const(operand.dtype, -operand.value), value.frame)
    if isinstance(operand, ir.Const) and operand.dtype.is_float:
        return Scalar(ir.Const(operand.dtype, -operand.value), value.frame)
    return Scalar(ir.Unary(operand.dtype, "neg", operand), value.frame)


def absolute(x: Value) -> Value:
    """``abs(x)``.

    Parameters
    ----------
    x : a number; of a float the sign bit goes, of NaN and -0 too.

    Examples
    --------
    >>> C[i, 0] = T.abs(A[i, 0])
    """
    if not isinstance(x, Scalar):
        if not is_number(x):
            raise NumberExpected("what T.abs is given", "a number", describe(x))
        return abs(x)
    operand = as_expr(x)
    if operand.dtype.kind == "uint" or operand.dtype == BOOL:
        return x
    return Scalar(ir.Call(operand.dtype, "abs", (operand,)), x.frame)


def bitwise(op: str, left: object, right: object) -> Scalar:
    """``&``, ``|``, ``^`` on integers; on bools the logical operators."""
    a, b = operands(f"`{ir.BINARY[op]}`", left, right)
    if a.dtype.is_float:
        raise NumberExpected(f"an operand of `{ir.BINARY[op]}`", "integers or bools", f"a {a.dtype}")
    if a.dtype == BOOL:
        op = {"and": "all", "or": "any", "xor": "ne"}[op]
    return Scalar(ir.binary(op, a, b), frame_of(left, right))


def shift(op: str, left: object, right: object) -> Scalar:
    """``left << right`` and ``left >> right`` in the dtype of what is shifted."""
    if isinstance(left, Scalar):
        a = as_expr(left)
        b = as_expr(right, a.dtype, "the shift")
    else:
        b, number = as_expr(right), plain(left)
        dtype = literal_dtype(number, b.dtype) if isinstance(number, (bool, int, float)) else None
        a = as_expr(left, dtype, "what is shifted")
        b = convert(b, a.dtype)
    if not (a.dtype.is_integer and b.dtype.is_integer):
        raise NumberExpected(
            f"an operand of `{ir.BINARY[op]}`", "integers", f"a {a.dtype if a.dtype.is_float else b.dtype}"
        )
    return Scalar(ir.binary(op, a, b), frame_of(left, right))


def select(test: object, then: object, otherwise: object) -> Scalar:
    """``then if test else otherwise`` on a symbolic test."""
    for way in (then, otherwise):
        if hasattr(way, "description"):
            raise NumberExpected(
                "a choice by `... if ... else ...` or T.if_then_else",
                "numbers: for tiles write an `if` with an operator on each side, or choose element by element",
                describe(way),
            )
    if isinstance(then, Scalar) or isinstance(otherwise, Scalar):
        a, b = operands("a choice", then, otherwise)
    else:
        a, b = as_expr(then, what="a choice"), as_expr(otherwise, what="a choice")
        common = promote(a.dtype, b.dtype)
        a, b = convert(a, common), convert(b, common)
    return Scalar(ir.Select(a.dtype, condition(test), a, b), frame_of(test, then, otherwise))


def invert(value: Scalar) -> Scalar:
    """``~value``; of a bool its negation."""
    operand = as_expr(value)
    if operand.dtype.is_float:
        raise NumberExpected("the operand of `~`", "an integer or a bool", describe(value))
    return Scalar(ir.Unary(operand.dtype, "not" if operand.dtype == BOOL else "invert", operand), value.frame)


Operation = Callable[[Any, Any], Any]

COMPARE: dict[str, Operation] = {
    "Eq": lambda a, b: a == b, "NotEq": lambda a, b: a != b, "Lt": lambda a, b: a < b, "LtE": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b, "GtE": lambda a, b: a >= b, "Is": lambda a, b: a is b, "IsNot": lambda a, b: a is not b,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip
"""Comparison operators by the name of their syntax node."""


def _binary(name: str, function: Callable[..., object], *first: str) -> None:
    """Give Scalar an operator and its reflection."""
    setattr(Scalar, f"__{name}__", lambda self, other: function(*first, self, other))
    setattr(Scalar, f"__r{name}__", lambda self, other: function(*first, other, self))


for _name in ("add", "sub", "mul"):
    _binary(_name, combine, _name)
for _name, _function in {"truediv": divide, "floordiv": floor_divide, "mod": floor_modulo, "pow": power}.items():
    _binary(_name, _function)
for _name in ("and", "or", "xor"):
    _binary(_name, bitwise, _name)
for _name, _op in {"lshift": "shl", "rshift": "shr"}.items():
    _binary(_name, shift, _op)
_binary("divmod", lambda a, b: (floor_divide(a, b), floor_modulo(a, b)))


def _comparison(op: str) -> Callable[[Scalar, object], object]:
    """``==`` and ``!=`` leave what is no number (None, a text) to Python; the others do not."""

    def compare(self: Scalar, other: object) -> Value:
        if op in ("eq", "ne") and not is_number(other):
            return NotImplemented
        return combine(op, self, other)

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Scalar, f"__{_name}__", _comparison(_name))
for _name, _unary in {"neg": negative, "pos": lambda value: value, "abs": absolute, "invert": invert}.items():
    setattr(Scalar, f"__{_name}__", _unary)
