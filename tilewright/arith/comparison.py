"""Comparisons, minima and maxima of index values: decided where that can be proved, else in canonical form."""

from __future__ import annotations

from tilewright.arith import linear
from tilewright.arith.linear import Linear
from tilewright.arith.proof import nonnegative
from tilewright.arith.ranges import interval_of_form, residue_of_form
from tilewright.arith.rebuild import commutative, rebuild, type_of
from tilewright.arith.state import State
from tilewright.ir import BOOL, Binary, DType, Expr


def slack(op: str, a: Linear, b: Linear) -> Linear:
    """The form that is non-negative exactly where ``a op b`` holds, for an ordering."""
    if op in ("gt", "ge"):
        a, b = b, a
    difference = linear.add(b, a, -1)
    return linear.shift(difference, -1) if op in ("lt", "gt") else difference


def compare(state: State, op: str, a: Linear, b: Linear, dtype: DType) -> Expr:
    """``a op b`` as a unique expression: a literal where it is certain."""
    key = (op, a.key, b.key, dtype.name)
    found = state.facts.conclusions.comparisons.get(key)
    if found is None:
        if op in ("eq", "ne"):
            found = _equality(state, op, linear.add(a, b, -1), dtype)
        else:
            found = _ordering(state, slack(op, a, b), dtype)
        truth = state.facts.conditions.get(found)
        if truth is not None:
            found = state.interner.literal(BOOL, truth)
        state.facts.conclusions.comparisons[key] = found
    return found


def _ordering(state: State, form: Linear, dtype: DType) -> Expr:
    """``form >= 0``."""
    if nonnegative(state, form):
        return state.interner.literal(BOOL, True)
    if nonnegative(state, linear.shift(linear.scale(form, -1), -1)):
        return state.interner.literal(BOOL, False)
    form = linear.tightened(form)
    multiplied = _without_quotient(state, form)
    if multiplied is not form:
        return _ordering(state, multiplied, dtype)
    positive, negative = linear.signs(form)
    dtype = type_of((positive, negative), dtype)
    if not negative.terms:  # p + c >= 0
        right: Linear = linear.constant(-form.constant)
        return _comparison(state, "ge", positive, right, dtype)
    if form.constant == 0:
        return _comparison(state, "le", negative, positive, dtype)
    if form.constant < 0:  # n + (-c - 1) < p
        return _comparison(state, "lt", linear.shift(negative, -form.constant - 1), positive, dtype)
    return _comparison(state, "lt", negative, linear.shift(positive, form.constant + 1), dtype)


def _without_quotient(state: State, form: Linear) -> Linear:
    """``x // c >= e`` as ``x >= c*e``, and ``x // c <= e`` as ``x <= c*e + c - 1``."""
    for monomial, coefficient in form.terms.items():
        atom = monomial[0]
        if len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(atom, Binary) or atom.op != "floordiv":
            continue
        operands = state.interner.operands.get(atom)
        if operands is None or operands[1].terms or operands[1].constant <= 0:
            continue
        dividend, c = operands[0], operands[1].constant
        others = linear.scale(linear.add(form, linear.of_atom(atom), -coefficient), c)
        result = linear.add(others, dividend, coefficient)
        return linear.tightened(result if coefficient > 0 else linear.shift(result, c - 1))
    return form


def _equality(state: State, op: str, form: Linear, dtype: DType) -> Expr:
    """``form == 0`` or ``form != 0``."""
    equal = _is_zero(state, form)
    if equal is not None:
        return state.interner.literal(BOOL, equal == (op == "eq"))
    form = linear.exact_quotient(form, form.content)
    positive, negative = linear.signs(form)
    if not positive.terms:
        positive, negative, form = negative, positive, linear.scale(form, -1)
    # of the two ways round, the one whose left side comes first by name
    dtype = type_of((positive, negative), dtype)
    sides = [positive, negative]
    if negative.terms:
        sides.sort(key=lambda side: state.interner.text(rebuild(state, side, dtype)))
        if sides[0] is negative:
            form = linear.scale(form, -1)
    left, right = sides
    if form.constant > 0 and right.terms:
        return _comparison(state, op, linear.shift(left, form.constant), right, dtype)
    return _comparison(state, op, left, linear.shift(right, -form.constant), dtype)


def _is_zero(state: State, form: Linear) -> bool | None:
    """Whether a form is certainly zero, certainly not, or neither."""
    if not form.terms:
        return form.constant == 0
    if form.constant % form.content:
        return False
    low, high = interval_of_form(state, form)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    modulus, remainder = residue_of_form(state, form)
    if modulus > 1 and remainder:
        return False
    opposite = linear.scale(form, -1)
    if nonnegative(state, form):
        if nonnegative(state, opposite):
            return True
        return False if nonnegative(state, linear.shift(form, -1)) else None
    return False if nonnegative(state, linear.shift(opposite, -1)) else None


def _comparison(state: State, op: str, left: Linear, right: Linear, dtype: DType) -> Expr:
    return state.interner.node(Binary, BOOL, op, rebuild(state, left, dtype), rebuild(state, right, dtype))


def extremum(state: State, op: str, a: Linear, b: Linear, dtype: DType) -> Linear:
    """``min(a, b)`` or ``max(a, b)``."""
    difference = linear.add(b, a, -1)
    smaller = None
    if nonnegative(state, difference):
        smaller, larger = a, b
    elif nonnegative(state, linear.scale(difference, -1)):
        smaller, larger = b, a
    if smaller is not None:
        return smaller if op == "min" else larger
    return linear.of_atom(commutative(state, op, a, b, dtype))
