"""Floor division and remainder on linear forms, and sums in which the two cancel.

Index arithmetic does not overflow, so forms here stand for mathematical integers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tilewright.arith import linear
from tilewright.arith.linear import Linear
from tilewright.arith.proof import nonnegative
from tilewright.arith.ranges import interval_of_form, residue_of, residue_of_form
from tilewright.arith.rebuild import operation
from tilewright.arith.state import State
from tilewright.ir import Binary, DType, Expr


def floordiv(state: State, x: Linear, divisor: Linear, dtype: DType) -> Linear:
    """``x // divisor``."""
    return _memoised(state.facts.conclusions.quotients, "floordiv", _quotient, state, x, divisor, dtype)


def floormod(state: State, x: Linear, divisor: Linear, dtype: DType) -> Linear:
    """``x % divisor``."""
    return _memoised(state.facts.conclusions.remainders, "floormod", _remainder, state, x, divisor, dtype)


def _memoised(
    table: dict,
    op: str,
    by_constant: Callable[[State, Linear, int, DType], Linear],
    state: State,
    x: Linear,
    divisor: Linear,
    dtype: DType,
) -> Linear:
    key = (x.key, divisor.key, dtype.name)
    found: Linear | None = table.get(key)
    if found is None:
        if divisor.terms or divisor.constant == 0:
            found = _symbolic(state, op, x, divisor, dtype)
        else:
            found = by_constant(state, x, divisor.constant, dtype)
        table[key] = found
    return found


# Division by a constant -------------------------------------------------------------------------


def _quotient(state: State, x: Linear, c: int, dtype: DType) -> Linear:
    if c < 0:  # x // -c == -x // c
        return floordiv(state, linear.scale(x, -1), linear.constant(-c), dtype)
    if c == 1:
        return x
    # (c*a + b) // c == a + b // c
    whole, rest = _split(x, c)
    if not rest:
        return Linear(x.constant // c, whole)
    offset = _least_offset(state, rest, x.constant, c)
    quotient = Linear(offset // c, whole)
    return linear.add(quotient, _proper_quotient(state, Linear(offset % c, rest), c, dtype))


def _split(x: Linear, c: int) -> tuple[dict, dict]:
    """Terms of ``x // c`` that divide out, and what is left of the others (of the same sign, smaller than c)."""
    whole, rest = {}, {}
    for monomial, coefficient in x.terms.items():
        times = abs(coefficient) // c if coefficient > 0 else -(abs(coefficient) // c)
        left = coefficient - times * c
        if times:
            whole[monomial] = times
        if left:
            rest[monomial] = left
    return whole, rest


def _least_offset(state: State, rest: dict, offset: int, c: int) -> int:
    """The least constant that gives the same quotient: the dividend may be known modulo a factor of c."""
    modulus, remainder = residue_of_form(state, Linear(0, rest))
    step = gcd(modulus, c)
    return offset - (remainder + offset) % step if step > 1 else offset


def _proper_quotient(state: State, x: Linear, c: int, dtype: DType) -> Linear:
    """``x // c`` where every coefficient and the constant are smaller than c."""
    low, high = interval_of_form(state, x)
    if low is not None and high is not None and low // c == high // c:
        return linear.constant(low // c)
    # (g*a + b) // (g*d) == a // d for 0 <= b < g
    parts = _coarser(state, x, c)
    if parts is not None:
        factor, coarse, _ = parts
        return floordiv(state, coarse, linear.constant(c // factor), dtype)
    single = x.single_atom()
    if single is not None and single[1] == 1 and isinstance(single[0], Binary):
        inner = state.interner.operands.get(single[0])
        if inner is not None and not inner[1].terms and inner[1].constant > 0:
            dividend, d = inner[0], inner[1].constant
            # (y // d + r) // c == (y + r*d) // (d*c)
            if single[0].op == "floordiv":
                return floordiv(state, linear.shift(dividend, x.constant * d), linear.constant(d * c), dtype)
            # (y % d) // c == (y // c) % (d // c) where c divides d
            if single[0].op == "floormod" and x.constant == 0 and d % c == 0:
                digits = floordiv(state, dividend, linear.constant(c), dtype)
                return floormod(state, digits, linear.constant(d // c), dtype)
    return linear.of_atom(operation(state, "floordiv", x, linear.constant(c), dtype))


def _coarser(state: State, x: Linear, c: int) -> tuple[int, Linear, Linear] | None:
    """``(g, a, b)`` with ``x == g*a + b``, ``0 <= b < g`` and g a factor of c above one, the largest there is."""
    for factor in sorted({gcd(coefficient, c) for coefficient in x.terms.values()} - {1}, reverse=True):
        coarse = {m: k for m, k in x.terms.items() if k % factor == 0}
        fine = Linear(x.constant % factor, {m: k for m, k in x.terms.items() if k % factor})
        low, high = interval_of_form(state, fine)
        if low is not None and low >= 0 and high is not None and high < factor:
            whole = Linear(x.constant - x.constant % factor, coarse)
            return factor, linear.exact_quotient(whole, factor), fine
    return None


def _remainder(state: State, x: Linear, c: int, dtype: DType) -> Linear:
    if c < 0:  # x % -c == -(-x % c)
        return linear.scale(floormod(state, linear.scale(x, -1), linear.constant(-c), dtype), -1)
    if c == 1:
        return linear.ZERO
    x = _reduced(state, x, c)
    if not x.terms:
        return linear.constant(x.constant % c)
    low, high = interval_of_form(state, x)
    if low is not None and high is not None and low // c == high // c:
        return linear.shift(x, -(low // c) * c)
    # (g*a + b) % (g*d) == g*(a % d) + b for 0 <= b < g
    parts = _coarser(state, x, c)
    if parts is not None:
        factor, coarse, fine = parts
        digits = floormod(state, coarse, linear.constant(c // factor), dtype)
        return linear.add(fine, digits, factor)
    return linear.of_atom(operation(state, "floormod", x, linear.constant(c), dtype))


def _reduced(state: State, x: Linear, c: int) -> Linear:
    """`x` without what is certainly a multiple of c; coefficients and the constant smaller than c."""
    constant = x.constant
    terms: dict = {}
    again = False
    for monomial, coefficient in x.terms.items():
        coefficient -= (abs(coefficient) // c) * (c if coefficient > 0 else -c)
        if not coefficient:
            continue
        if len(monomial) == 1:
            atom = monomial[0]
            modulus, remainder = residue_of(state, atom)
            if coefficient * modulus % c == 0:
                constant += coefficient * remainder
                continue
            # k*(y % d) is k*y modulo c where c divides k*d
            dividend = _dividend_modulo(state, atom, coefficient, c)
            if dividend is not None:
                again = True
                for m, k in dividend.terms.items():
                    terms[m] = terms.get(m, 0) + coefficient * k
                constant += coefficient * dividend.constant
                continue
        terms[monomial] = terms.get(monomial, 0) + coefficient
    reduced = Linear(constant % c, {m: k for m, k in terms.items() if k})
    return _reduced(state, reduced, c) if again else reduced


def _dividend_modulo(state: State, atom: Expr, coefficient: int, c: int) -> Linear | None:
    """``y`` where the atom is ``y % d`` and c divides ``coefficient * d``."""
    operands = state.interner.operands.get(atom)
    if operands is None or not isinstance(atom, Binary) or atom.op != "floormod" or operands[1].terms:
        return None
    return operands[0] if operands[1].constant and coefficient * operands[1].constant % c == 0 else None


# Division by an expression ----------------------------------------------------------------------


def _symbolic(state: State, op: str, x: Linear, divisor: Linear, dtype: DType) -> Linear:
    """Quotient (``floordiv``) or remainder (``floormod``)."""
    if x.is_zero:
        return x
    quotient, rest = _divide_by_form(x, divisor)
    less = linear.shift(linear.add(divisor, rest, -1), -1)
    if rest.is_zero or (nonnegative(state, rest) and nonnegative(state, less)):  # 0 <= rest < divisor
        return quotient if op == "floordiv" else rest
    left = linear.of_atom(operation(state, op, rest, divisor, dtype))
    return linear.add(quotient, left) if op == "floordiv" else left


def _divide_by_form(x: Linear, divisor: Linear) -> tuple[Linear, Linear]:
    """``(q, r)`` with ``x == q * divisor + r``, taking out what plainly divides."""
    if len(divisor.terms) == 1 and divisor.constant == 0:
        ((factor, c),) = divisor.terms.items()
        quotient: dict = {}
        rest: dict = {}
        constant = 0
        for monomial, coefficient in x.terms.items():
            others = linear.remove_factor(monomial, factor) if coefficient % c == 0 else None
            if others is None:
                rest[monomial] = coefficient
            elif others:
                quotient[others] = coefficient // c
            else:
                constant = coefficient // c
        return Linear(constant, quotient), Linear(x.constant, rest)
    times = {x.terms.get(monomial, 0) // c for monomial, c in divisor.terms.items()}
    if len(times) == 1 and divisor.terms:
        (ratio,) = times
        if all(x.terms.get(monomial, 0) == ratio * c for monomial, c in divisor.terms.items()):
            return linear.constant(ratio), linear.add(x, divisor, -ratio)
    return linear.ZERO, x


# Sums in which quotients and remainders cancel ---------------------------------------------------


def recombine(state: State, x: Linear, dtype: DType) -> Linear:
    """`x` with digits put together again: ``(y // c) * c + y % c == y`` and
    ``(y // c % d) * c + y % c == y % (c*d)``."""
    operands = state.interner.operands
    if len(x.terms) + (x.constant != 0) < 2 and not any(c != 1 and c != -1 for c in x.terms.values()):
        return x
    while True:
        for monomial, coefficient in x.terms.items():
            if len(monomial) != 1 or monomial[0] not in operands:
                continue
            atom = monomial[0]
            rule = _RECOMBINATIONS.get(atom.op) if isinstance(atom, Binary) else None
            joined = rule(state, x, atom, coefficient, dtype) if rule is not None else None
            if joined is not None:
                x = joined
                break
        else:
            return x


def _join_remainder(state: State, x: Linear, atom: Expr, coefficient: int, dtype: DType) -> Linear | None:
    """For ``k * (y % d)``: find ``k * d * (y // d)``, or the next digit, among the other terms."""
    y, divisor = state.interner.operands[atom]
    quotient = floordiv(state, y, divisor, dtype)
    target = linear.scale(state.product(divisor, quotient), coefficient)
    if target.terms and linear.contains(x, target):
        x = linear.add(x, target, -1)
        return linear.add(linear.add(x, linear.of_atom(atom), -coefficient), y, coefficient)
    if divisor.terms:
        return None
    for monomial, other in x.terms.items():
        if len(monomial) == 1 and other == coefficient * divisor.constant and isinstance(monomial[0], Binary):
            following = state.interner.operands.get(monomial[0])
            if following is None or monomial[0].op != "floormod" or following[1].terms:
                continue
            if following[0].equals(quotient):
                x = linear.add(x, linear.of_atom(atom), -coefficient)
                x = linear.add(x, linear.of_atom(monomial[0]), -other)
                joint = linear.constant(divisor.constant * following[1].constant)
                return linear.add(x, floormod(state, y, joint, dtype), coefficient)
    return None


def _join_quotient(state: State, x: Linear, atom: Expr, coefficient: int, dtype: DType) -> Linear | None:
    """For ``k * d * (y // d)``: find ``k * (y % d)`` among the other terms."""
    y, divisor = state.interner.operands[atom]
    if divisor.terms or not divisor.constant or coefficient % divisor.constant:
        return None
    k = coefficient // divisor.constant
    remainder = linear.scale(floormod(state, y, divisor, dtype), k)
    if not linear.contains(x, remainder):
        return None
    x = linear.add(linear.add(x, linear.of_atom(atom), -coefficient), remainder, -1)
    return linear.add(x, y, k)


_RECOMBINATIONS: dict[str, Callable[[State, Linear, Expr, int, DType], Linear | None]] = {
    "floormod": _join_remainder,
    "floordiv": _join_quotient,
}
