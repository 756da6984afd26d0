"""Functions that are made of others: the text of a record's formula, as numbers and as an expression.

A formula speaks of ``x``, ``y`` and ``z``, numbers, the four operations, functions of the table and choices
(``a if x < 0 else b``). It is computed in the type of its arguments, narrow ones in float32 and rounded once.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtypes import BOOL, FLOAT32, DType
from tilewright.ir.expressions import Binary, Broadcast, Call, Const, Expr, Select, Unary, cast

NAMES = ("x", "y", "z")
_OPERATIONS: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.Lt: ("lt", operator.lt), ast.Gt: ("gt", operator.gt),
    ast.LtE: ("le", operator.le), ast.GtE: ("ge", operator.ge), ast.Eq: ("eq", operator.eq),
}  # fmt: skip


@dataclass(frozen=True)
class _Arithmetic:
    """What the parts of a formula are made with."""

    number: Callable[[float], Any]
    negative: Callable[[Any], Any]
    operation: Callable[[str, Callable[[Any, Any], Any], Any, Any], Any]
    function: Callable[[str, Sequence[Any]], Any]
    choice: Callable[[Any, Any, Any], Any]

    def of(self, node: ast.expr, given: Mapping[str, object]) -> Any:
        """A part of a formula."""
        match node:
            case ast.Name():
                return given[node.id]
            case ast.Constant(value=int() | float() as value):
                return self.number(float(value))
            case ast.UnaryOp(op=ast.USub()):
                return self.negative(self.of(node.operand, given))
            case ast.BinOp():
                name, function = _OPERATIONS[type(node.op)]
                return self.operation(name, function, self.of(node.left, given), self.of(node.right, given))
            case ast.Compare(ops=[op], comparators=[right]):
                name, function = _OPERATIONS[type(op)]
                return self.operation(name, function, self.of(node.left, given), self.of(right, given))
            case ast.IfExp():
                return self.choice(*(self.of(part, given) for part in (node.test, node.body, node.orelse)))
            case ast.Call(func=ast.Name(id=name)):
                return self.function(name, [self.of(part, given) for part in node.args])
        raise ValueError(f"a formula cannot say {ast.unparse(node)}")


@functools.cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def numbers(formula: str, references: Callable[[str], Callable[..., Any]], *given: object) -> Any:
    """A formula's values in NumPy's arithmetic; `references` gives the functions of its names."""
    made = _Arithmetic(
        number=lambda value: value,
        negative=operator.neg,
        operation=lambda _, function, left, right: function(left, right),
        function=lambda name, values: references(name)(*values),
        choice=np.where,
    )
    with np.errstate(all="ignore"):
        return made.of(_parsed(formula), dict(zip(NAMES, given)))


def expanded(formula: str, call: Call) -> Expr:
    """A call of a function with a formula, as its formula says it."""
    dtype = call.dtype if call.dtype.bits >= 32 else FLOAT32.with_lanes(call.dtype.lanes)
    arguments = [cast(value, dtype) for value in call.operands]
    value: Expr = _expressions(dtype).of(_parsed(formula), dict(zip(NAMES, arguments)))
    return cast(value, call.dtype)


def _expressions(dtype: DType) -> _Arithmetic:
    truth = BOOL.with_lanes(dtype.lanes)

    def number(value: float) -> Expr:
        made = Const(dtype.scalar, value)
        return Broadcast(dtype, made) if dtype.lanes > 1 else made

    def operation(name: str, _: object, left: Expr, right: Expr) -> Expr:
        return Binary(truth if name in ("lt", "gt", "le", "ge", "eq") else dtype, name, left, right)

    return _Arithmetic(
        number=number,
        negative=lambda value: Unary(dtype, "neg", value),
        operation=operation,
        function=lambda name, values: Call(dtype, name, tuple(values)),
        choice=lambda test, one, other: Select(dtype, test, one, other),
    )
