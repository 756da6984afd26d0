"""Reads the table of rules and applies it to unique expressions."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tilewright.arith.rules import RULES, Rule
from tilewright.arith.state import State
from tilewright.ir import BOOL, Binary, Const, DType, Expr, Select, Unary, result_dtype
from tilewright.ir.expression_parser import OPERATORS

Pattern = tuple[Any, ...]
"""``("any", name)``, ``("literal", name)``, ``("value", v)``, or ``(node class, op, *patterns)``."""

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_DOMAINS: dict[str, Callable[[DType], bool]] = {
    "integer": lambda dtype: dtype.is_integer,
    "bits": lambda dtype: dtype.is_integer or dtype.kind == "bool",
    "float": lambda dtype: dtype.name in _FLOATS,
    "bool": lambda dtype: dtype.kind == "bool",
    "any": lambda dtype: True,
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule, read: patterns as tuples, and the condition on its literals as code."""

    pattern: Pattern
    result: Pattern
    domain: Callable[[DType], bool]
    where: CodeType | None


def read(text: str) -> Pattern:
    """The pattern that a line of Python spells."""
    return _read(ast.parse(text, mode="eval").body)


def _read(tree: ast.expr) -> Pattern:
    match tree:
        case ast.Name(id=name):
            return ("literal" if name in "cd" else "any", name)
        case ast.Constant(value=value):
            return ("value", value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return ("value", -value)
        case ast.UnaryOp(op=op, operand=operand):
            return (Unary, OPERATORS[type(op)], _read(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return (Binary, OPERATORS[type(op)], _read(left), _read(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return (Binary, OPERATORS[type(op)], _read(left), _read(right))
        case ast.BoolOp(op=op, values=[left, right]):
            return (Binary, OPERATORS[type(op)], _read(left), _read(right))
        case ast.Call(func=ast.Name(id="select"), args=args):
            return (Select, "", *map(_read, args))
        case ast.Call(func=ast.Name(id=name), args=args):
            return (Binary, name, *map(_read, args))
    raise ValueError(f"not a pattern: {ast.unparse(tree)}")


@functools.cache
def table() -> dict[tuple[type, str], tuple[Compiled, ...]]:
    """The rules by the class and operator at the root of their patterns."""
    rules: dict[tuple[type, str], list[Compiled]] = {}
    for rule in RULES:
        compiled = _compile(rule)
        rules.setdefault((compiled.pattern[0], compiled.pattern[1]), []).append(compiled)
    return {root: tuple(compiled) for root, compiled in rules.items()}


def _compile(rule: Rule) -> Compiled:
    where = compile(rule.where, f"<rule {rule.pattern}>", "eval") if rule.where else None
    return Compiled(read(rule.pattern), read(rule.result), _DOMAINS[rule.domain], where)


def rewrite(state: State, expr: Expr) -> Expr | None:
    """What the first rule that applies makes of a unique expression, or None."""
    op = expr.op if isinstance(expr, (Binary, Unary)) else ""
    for rule in table().get((type(expr), op), ()):
        bindings: dict[str, Expr] = {}
        if not _matches(rule.pattern, expr, bindings):
            continue
        operand = _domain_of(expr, bindings)
        if not rule.domain(operand) or operand.lanes != 1:
            continue
        if rule.where is not None and not _holds(rule.where, bindings, operand):
            continue
        return _build(state, rule.result, bindings, expr.dtype, operand)
    return None


def _domain_of(expr: Expr, bindings: dict[str, Expr]) -> DType:
    """The type of the operands that a pattern speaks of."""
    for name in "xyz":
        if name in bindings:
            return bindings[name].dtype
    return expr.dtype


def _holds(where: CodeType, bindings: dict[str, Expr], operand: DType) -> bool:
    names = {name: found.value for name, found in bindings.items() if isinstance(found, Const)}
    return bool(eval(where, {"__builtins__": {}}, {**names, "bits": operand.bits}))


def _matches(pattern: Pattern, expr: Expr, bindings: dict[str, Expr]) -> bool:
    kind = pattern[0]
    if kind == "any" or kind == "literal":
        if kind == "literal" and type(expr) is not Const:
            return False
        return bindings.setdefault(pattern[1], expr) is expr
    if kind == "value":
        return type(expr) is Const and _is_literal(expr, pattern[1])
    if type(expr) is not kind:
        return False
    parts: tuple[Expr, ...]
    if isinstance(expr, Binary) and expr.op == pattern[1]:
        parts = (expr.left, expr.right)
    elif isinstance(expr, Unary) and expr.op == pattern[1]:
        parts = (expr.value,)
    elif isinstance(expr, Select):
        parts = (expr.condition, expr.then, expr.otherwise)
    else:
        return False
    return all(_matches(inner, part, bindings) for inner, part in zip(pattern[2:], parts))


def _is_literal(found: Const, value: int | float | bool) -> bool:
    if found.value != value or isinstance(value, bool) != isinstance(found.value, bool):
        return False
    return not isinstance(value, float) or math.copysign(1, found.value) == math.copysign(1, value)


def _build(state: State, pattern: Pattern, bindings: dict[str, Expr], dtype: DType, operand: DType) -> Expr:
    kind = pattern[0]
    if kind == "any" or kind == "literal":
        return bindings[pattern[1]]
    if kind == "value":
        value = pattern[1]
        return state.interner.literal(BOOL if isinstance(value, bool) else dtype, value)
    parts = [_build(state, inner, bindings, dtype, operand) for inner in pattern[2:]]
    if kind is Binary:
        return state.interner.node(Binary, result_dtype(pattern[1], parts[0].dtype), pattern[1], *parts)
    if kind is Unary:
        return state.interner.node(Unary, parts[0].dtype, pattern[1], *parts)
    return state.interner.node(Select, parts[1].dtype, *parts)
