"""Every law of the table, one by one, on every value of small types and on awkward floats."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tilewright.arith import rules
from tilewright.arith.matching import _DOMAINS, Pattern, read
from tilewright.ir import Binary, DType, Select, Unary, dtypes

INTEGERS = [dtypes.dtype("uint4"), dtypes.dtype("int4")]
FLOATS = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3.0e38, 1e-40]


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


class Undefined(Exception):
    pass


def integer_value(pattern: Pattern, env: dict, dtype: DType) -> int | bool:
    kind = pattern[0]
    if kind in ("any", "literal"):
        return env[pattern[1]]
    if kind == "value":
        return pattern[1]
    if kind is Select:
        condition, then, otherwise = pattern[2:]
        return integer_value(then if integer_value(condition, env, dtype) else otherwise, env, dtype)
    if kind is Unary:
        value = integer_value(pattern[2], env, dtype)
        return (not value) if pattern[1] == "not" else wrap(-value if pattern[1] == "neg" else ~value, dtype)
    a, b = (integer_value(inner, env, dtype) for inner in pattern[2:])
    op = pattern[1]
    if op in ("all", "any"):
        return (a and b) if op == "all" else (a or b)
    if op in ("eq", "ne", "lt", "le", "gt", "ge"):
        return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op]
    if (op in ("floordiv", "floormod") and b == 0) or (op in ("shl", "shr") and not 0 <= b < dtype.bits):
        raise Undefined
    if isinstance(a, bool):
        return {"and": a and b, "or": a or b, "min": a and b, "max": a or b}[op]
    steps = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "floordiv": lambda: a // b,
        "floormod": lambda: a % b, "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b,
        "shl": lambda: a << b, "shr": lambda: a >> b, "min": lambda: min(a, b), "max": lambda: max(a, b),
    }  # fmt: skip
    return wrap(steps[op](), dtype)


def names_in(pattern: Pattern) -> set[str]:
    if pattern[0] in ("any", "literal"):
        return {pattern[1]}
    return set() if pattern[0] == "value" else set().union(*map(names_in, pattern[2:]))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: f"{rule.domain}: {rule.pattern}")
def test_rule_holds(rule: rules.Rule) -> None:
    if rule.domain == "float":
        check_float(rule)
        return
    pattern, result = read(rule.pattern), read(rule.result)
    assert names_in(result) <= names_in(pattern)
    for dtype in [dtype for dtype in [*INTEGERS, dtypes.BOOL] if _DOMAINS[rule.domain](dtype)]:
        assert check_integers(rule, pattern, result, dtype) > 0


def check_integers(rule: rules.Rule, pattern: Pattern, result: Pattern, dtype: DType) -> int:
    values = [False, True] if dtype.kind == "bool" else list(range(int(dtype.minimum), int(dtype.maximum) + 1))
    names = sorted(names_in(pattern))
    checked = 0
    for chosen in itertools.product(*([False, True] if name in "pq" else values for name in names)):
        env = dict(zip(names, chosen, strict=True))
        if rule.where and not eval(rule.where, {}, {**env, "bits": dtype.bits}):
            continue
        try:
            expected = integer_value(pattern, env, dtype)
        except Undefined:
            continue
        assert integer_value(result, env, dtype) == expected, env
        checked += 1
    return checked


def float_value(pattern: Pattern, env: dict[str, np.float32]) -> np.float32:
    if pattern[0] == "any":
        return env[pattern[1]]
    if pattern[0] == "value":
        return np.float32(pattern[1])
    if pattern[0] is Unary:
        return -float_value(pattern[2], env)
    assert pattern[0] is Binary
    a, b = (float_value(inner, env) for inner in pattern[2:])
    return {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[pattern[1]]


def check_float(rule: rules.Rule) -> None:
    pattern, result = read(rule.pattern), read(rule.result)
    for value in FLOATS:
        env = {"x": np.float32(value)}
        with np.errstate(all="ignore"):
            expected, found = float_value(pattern, env), float_value(result, env)
        assert repr(expected) == repr(found), value
