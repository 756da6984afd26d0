"""Bounds and residues of canonical values, from their structure and the facts of the scope."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, TypeAlias

from tilewright.arith import intervals
from tilewright.arith.intervals import Interval
from tilewright.arith.linear import Linear
from tilewright.arith.state import State, is_index
from tilewright.ir import Binary, Call, Cast, Const, DType, Expr, Select, Unary

Residue: TypeAlias = "tuple[int, int]"
"""``(m, r)``: the value is ``r`` modulo ``m``; it is ``r`` itself where ``m`` is 0, anything where it is 1."""


# Bounds -----------------------------------------------------------------------------------------


def interval_of_form(state: State, form: Linear) -> Interval:
    """Bounds of a linear form."""
    low: int | None = form.constant
    high: int | None = form.constant
    for monomial, coefficient in form.terms.items():
        term = interval_of(state, monomial[0])
        if len(monomial) > 1:
            term = _product(state, monomial)
        term_low, term_high = term if coefficient > 0 else (term[1], term[0])
        low = None if low is None or term_low is None else low + coefficient * term_low
        high = None if high is None or term_high is None else high + coefficient * term_high
        if low is None and high is None:
            break
    return low, high


def _product(state: State, monomial: tuple[Expr, ...]) -> Interval:
    result: Interval = (1, 1)
    for atom in dict.fromkeys(monomial):
        power = monomial.count(atom)
        single = interval_of(state, atom)
        term = single
        for _ in range(power - 1):
            term = intervals.multiply(term, single)
        if power % 2 == 0:
            term = intervals.intersect(term, (0, None))
        result = intervals.multiply(result, term)
    return result


def interval_of(state: State, expr: Expr) -> Interval:
    """Bounds of a unique expression of an integer type or bool."""
    form = state.interner.forms.get(expr)
    if form is not None and not (len(form.terms) == 1 and (expr,) in form.terms):
        return interval_of_form(state, form)
    known = state.facts.conclusions.intervals.get(expr)
    if known is None:
        rule = _BOUNDS.get(type(expr))
        known = rule(state, expr) if rule is not None else _range_of_type(expr.dtype)
        given = state.facts.intervals.get(expr)
        if given is not None:
            known = intervals.intersect(known, given)
        state.facts.conclusions.intervals[expr] = known
    return known


def _range_of_type(dtype: DType) -> Interval:
    if is_index(dtype) or dtype.is_float:
        return intervals.UNKNOWN
    return int(dtype.minimum), int(dtype.maximum)


def _within_type(bounds: Interval, dtype: DType) -> Interval:
    """`bounds` where no wrapping can have happened, else those of the type."""
    if is_index(dtype) or intervals.within(bounds, dtype):
        return bounds
    return _range_of_type(dtype)


def _power(exponent: Interval) -> Interval | None:
    """Powers of two; None where shifts by such amounts are not understood."""
    low, high = exponent
    if low is None or high is None or low < 0 or high > 64:
        return None
    return 1 << low, 1 << high


def _shift_left(a: Interval, b: Interval) -> Interval:
    factor = _power(b)
    return intervals.UNKNOWN if factor is None else intervals.multiply(a, factor)


def _shift_right(a: Interval, b: Interval) -> Interval:
    divisor = _power(b)
    return intervals.UNKNOWN if divisor is None else intervals.floordiv(a, divisor)


_OPERATIONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": intervals.add, "sub": lambda a, b: intervals.add(a, intervals.negate(b)), "mul": intervals.multiply,
    "floordiv": intervals.floordiv, "floormod": intervals.floormod, "min": intervals.minimum,
    "max": intervals.maximum, "and": intervals.bitwise_and, "or": intervals.bitwise_or_xor,
    "xor": intervals.bitwise_or_xor, "shl": _shift_left, "shr": _shift_right,
}  # fmt: skip


def _of_binary(state: State, expr: Binary) -> Interval:
    operation = _OPERATIONS.get(expr.op)
    if operation is None or not expr.dtype.is_integer or expr.dtype.lanes != 1:
        return _range_of_type(expr.dtype)
    operands = state.interner.operands.get(expr)
    if operands is not None:
        left, right = (interval_of_form(state, form) for form in operands)
    else:
        left, right = interval_of(state, expr.left), interval_of(state, expr.right)
    bounds = operation(left, right)
    if expr.op == "shl" and is_index(expr.dtype) and not intervals.within(bounds, expr.dtype):
        return intervals.UNKNOWN  # shifting bits out is how bit patterns are taken apart
    return _within_type(bounds, expr.dtype)


def _of_cast(state: State, expr: Cast) -> Interval:
    inner = expr.value.dtype
    if inner.is_float or inner.lanes != 1 or expr.dtype.is_float:
        return _range_of_type(expr.dtype)
    if expr.dtype.kind == "bool":
        return intervals.BOOLEAN
    bounds = interval_of(state, expr.value)
    return bounds if intervals.within(bounds, expr.dtype) else _range_of_type(expr.dtype)


def _of_select(state: State, expr: Select) -> Interval:
    if expr.dtype.is_float:
        return intervals.UNKNOWN
    return intervals.union(interval_of(state, expr.then), interval_of(state, expr.otherwise))


def _of_const(state: State, expr: Const) -> Interval:
    return intervals.UNKNOWN if expr.dtype.is_float else (int(expr.value), int(expr.value))


def _of_unary(state: State, expr: Unary) -> Interval:
    if expr.dtype.lanes != 1 or not expr.dtype.is_integer:
        return _range_of_type(expr.dtype)
    inner = interval_of(state, expr.value)
    bounds = intervals.negate(inner)
    if expr.op == "invert":
        bounds = intervals.add(bounds, (-1, -1))
    return _within_type(bounds, expr.dtype)


def _of_call(state: State, expr: Call) -> Interval:
    if expr.function == "popcount" and isinstance(expr.arguments[0], Expr):
        return 0, expr.arguments[0].dtype.bits
    return _range_of_type(expr.dtype)


_BOUNDS: dict[type, Callable[[State, Any], Interval]] = {
    Binary: _of_binary,
    Cast: _of_cast,
    Select: _of_select,
    Const: _of_const,
    Unary: _of_unary,
    Call: _of_call,
}


# Residues ---------------------------------------------------------------------------------------


def residue_of_form(state: State, form: Linear) -> Residue:
    """What a linear form is modulo what."""
    modulus, remainder = 0, form.constant
    for monomial, coefficient in form.terms.items():
        m, r = 0, coefficient
        for atom in monomial:
            other_m, other_r = residue_of(state, atom)
            m, r = gcd(m * other_m, m * other_r, r * other_m), r * other_r
        modulus, remainder = gcd(modulus, m), remainder + r
        if modulus == 1:
            return 1, 0
    return modulus, remainder % modulus if modulus else remainder


def residue_of(state: State, atom: Expr) -> Residue:
    """What an atom is modulo what."""
    known = state.facts.conclusions.residues.get(atom)
    if known is None:
        known = _residue_of_structure(state, atom)
        given = state.facts.residues.get(atom)
        if given is not None:
            known = _sharpest(known, given)
        state.facts.conclusions.residues[atom] = known
    return known


def _sharpest(a: Residue, b: Residue) -> Residue:
    """The stronger of two true residues (joining them by the Chinese remainder theorem is not worth it)."""
    if a[0] == 0 or b[0] == 0:
        return a if a[0] == 0 else b
    return a if a[0] >= b[0] else b


def _residue_of_structure(state: State, atom: Expr) -> Residue:
    if isinstance(atom, Select) and is_index(atom.dtype):
        return _join(*(residue_of_form(state, state.form(branch)) for branch in (atom.then, atom.otherwise)))
    operands = state.interner.operands.get(atom)
    if operands is None or not isinstance(atom, Binary):
        return 1, 0
    left, right = operands
    if atom.op in ("min", "max"):
        return _join(residue_of_form(state, left), residue_of_form(state, right))
    if right.terms or right.constant <= 0:
        return 1, 0
    divisor = right.constant
    modulus, remainder = residue_of_form(state, left)
    if atom.op == "floormod":
        modulus = gcd(modulus, divisor)
        return modulus, remainder % modulus
    if atom.op == "floordiv" and modulus % divisor == 0:
        return modulus // divisor, remainder // divisor
    return 1, 0


def _join(a: Residue, b: Residue) -> Residue:
    modulus = gcd(a[0], b[0], a[1] - b[1])
    return modulus, a[1] % modulus if modulus else a[1]
