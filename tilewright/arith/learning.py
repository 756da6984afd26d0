"""Turns conditions in canonical form into facts."""

from __future__ import annotations

from math import gcd

from tilewright.arith import intervals, linear
from tilewright.arith.comparison import slack
from tilewright.arith.facts import Conclusions
from tilewright.arith.linear import Linear
from tilewright.arith.proof import nonnegative
from tilewright.arith.ranges import Residue, interval_of, interval_of_form, residue_of_form
from tilewright.arith.rebuild import operation
from tilewright.arith.state import State, is_index
from tilewright.ir import COMPARISONS, OPPOSITE, Binary, Const, Expr, Unary, Var, walk


def learn(state: State, condition: Expr, truth: bool = True) -> None:
    """Take it as a fact that a unique, simplified condition is `truth`."""
    if isinstance(condition, Const):
        return
    state.facts.mentioned |= state.interner.variables(condition)
    state.facts.forget_conclusions()
    _learn(state, condition, truth)
    state.facts.forget_conclusions()


def start_binding(state: State, var: Var) -> None:
    """Forget what was known of a variable."""
    facts = state.facts
    known = var in facts.mentioned
    if known:
        facts.forget(var)
    # conclusions that cannot rest on the variable still hold
    known = known or var in facts.conclusions.met
    facts.conclusions = Conclusions() if known else facts.conclusions.copy()
    facts.mentioned.add(var)


def learn_ends(
    state: State, var: Var, low: Linear | intervals.Interval | None, high: Linear | intervals.Interval | None
) -> None:
    """A newly bound variable lies between two ends, inclusive, as far as they are known."""
    for end, sign in ((low, 1), (high, -1)):
        if isinstance(end, Linear):
            state.facts.mentioned.update(v for atom in end.atoms() for v in state.interner.variables(atom))
            # only the variable's own bounds: its ends outlive it, and a loop over nothing says nothing of them
            _learn_nonnegative(state, linear.scale(linear.add(linear.of_atom(var), end, -1), sign), about=var)
        elif end is not None:
            _narrow(state, var, (end[0], None) if sign > 0 else (None, end[1]))
    if isinstance(low, Linear) and isinstance(high, Linear) and low.equals(high):
        _keep_residue(state, var, residue_of_form(state, low))


def _learn(state: State, condition: Expr, truth: bool) -> None:
    if isinstance(condition, Unary) and condition.op == "not":
        return _learn(state, condition.value, not truth)
    if isinstance(condition, Binary):
        if condition.op == ("all" if truth else "any"):
            _learn(state, condition.left, truth)
            return _learn(state, condition.right, truth)
        if condition.op in COMPARISONS and is_index(condition.left.dtype):
            op = condition.op if truth else OPPOSITE[condition.op]
            state.facts.conditions[condition] = truth
            return _learn_comparison(state, op, state.form(condition.left), state.form(condition.right))
        if condition.op in COMPARISONS and condition.left.dtype.is_integer:
            _learn_range(state, condition, truth)
    state.facts.conditions[condition] = truth
    return None


def _learn_comparison(state: State, op: str, a: Linear, b: Linear) -> None:
    if op not in ("eq", "ne"):
        return _learn_nonnegative(state, _with_known(state, slack(op, a, b)))
    form = _with_known(state, linear.add(a, b, -1))
    opposite = linear.scale(form, -1)
    if op == "eq":
        _learn_zero(state, form)
    elif nonnegative(state, form):
        _learn_nonnegative(state, linear.shift(form, -1))
    elif nonnegative(state, opposite):
        _learn_nonnegative(state, linear.shift(opposite, -1))
    return None


def _learn_nonnegative(state: State, form: Linear, about: Expr | None = None) -> None:
    """``form >= 0``; what follows for the bounds of single atoms is kept for `about`, or for all of them."""
    form = linear.tightened(form)
    for monomial, coefficient in form.terms.items():
        if len(monomial) != 1 or (about is not None and monomial[0] is not about):
            continue
        # k*atom >= -rest, and the rest is at most its highest value
        rest = Linear(form.constant, {m: c for m, c in form.terms.items() if m is not monomial})
        highest = interval_of_form(state, rest)[1]
        if highest is not None:
            low, high = (-(highest // coefficient), None) if coefficient > 0 else (None, highest // -coefficient)
            _narrow(state, monomial[0], (low, high))
    if len(form.terms) > 1 or any(len(monomial) > 1 for monomial in form.terms):
        state.facts.add_nonnegative(form)


def _narrow(state: State, atom: Expr, bounds: intervals.Interval) -> None:
    known = state.facts.intervals.get(atom, intervals.UNKNOWN)
    state.facts.intervals[atom] = intervals.intersect(known, bounds)


def _learn_range(state: State, condition: Binary, truth: bool) -> None:
    """Bounds of an integer that is not an index, from its comparison with a literal."""
    if not isinstance(condition.right, Const):
        return
    value = int(condition.right.value)
    bounds: dict[str, intervals.Interval] = {
        "lt": (None, value - 1),
        "le": (None, value),
        "gt": (value + 1, None),
        "ge": (value, None),
        "eq": (value, value),
    }
    found = bounds.get(condition.op if truth else OPPOSITE[condition.op])
    if found is not None:
        _narrow(state, condition.left, found)


def _learn_zero(state: State, form: Linear) -> None:
    """``form == 0``: a variable to replace, a remainder, or two inequalities."""
    _learn_residue(state, form)
    solved = _solved(state, form)
    if solved is None:
        _learn_nonnegative(state, form)
        _learn_nonnegative(state, linear.scale(form, -1))
        return
    var, value = solved
    facts = state.facts
    bounds = interval_of(state, var)
    forms = facts.nonnegative.pop(var, ())
    facts.equal = {atom: state.replaced(known, var, value) for atom, known in facts.equal.items()}
    facts.equal[var] = value
    for bound in forms:
        _learn_nonnegative(state, state.replaced(bound, var, value))
    if bounds[0] is not None:
        _learn_nonnegative(state, linear.shift(value, -bounds[0]))
    if bounds[1] is not None:
        _learn_nonnegative(state, linear.shift(linear.scale(value, -1), bounds[1]))


def _solved(state: State, form: Linear) -> tuple[Expr, Linear] | None:
    """A variable (or the only atom) of coefficient 1 or -1 and what it equals; of several, the last by name."""
    best: tuple[Expr, Linear] | None = None
    for monomial, coefficient in form.terms.items():
        atom = monomial[0]
        if len(monomial) != 1 or abs(coefficient) != 1 or not (isinstance(atom, Var) or len(form.terms) == 1):
            continue
        value = linear.scale(linear.add(form, linear.of_atom(atom), -coefficient), -coefficient)
        if any(found is atom for inner in value.atoms() for found in walk(inner)):
            continue
        if best is None or state.interner.text(atom) > state.interner.text(best[0]):
            best = atom, value
    return best


def _with_known(state: State, form: Linear) -> Linear:
    """`form` with the atoms replaced that an earlier part of the same condition made equal to something."""
    for atom in dict.fromkeys(form.atoms()):
        value = state.facts.equal.get(atom)
        if value is not None:
            form = state.replaced(form, atom, value)
    return form


def _learn_residue(state: State, form: Linear) -> None:
    """``(atom + s) % m == r`` says what the atom is modulo m."""
    single = form.single_atom()
    if single is None or abs(single[1]) != 1 or not isinstance(single[0], Binary) or single[0].op != "floormod":
        return
    operands = state.interner.operands.get(single[0])
    if operands is None or operands[1].terms or operands[1].constant <= 0:
        return
    dividend, modulus = operands[0], operands[1].constant
    inner = dividend.single_atom()
    if inner is None or abs(inner[1]) != 1:
        return
    remainder = (-form.constant * single[1] - dividend.constant) * inner[1]
    known = state.facts.residues.get(inner[0], (1, 0))
    _keep_residue(state, inner[0], _joined(known, (modulus, remainder % modulus)))


def _keep_residue(state: State, atom: Expr, residue: Residue) -> None:
    modulus, remainder = residue
    if modulus <= 1:
        return
    state.facts.residues[atom] = residue
    quotient = operation(state, "floordiv", linear.of_atom(atom), linear.constant(modulus), atom.dtype)
    state.facts.stretched[atom] = Linear(remainder, {(quotient,): modulus})


def _joined(a: Residue, b: Residue) -> Residue:
    """Both at once, by the Chinese remainder theorem; the new one alone where they contradict each other."""
    (m, r), (n, s) = a, b
    common = gcd(m, n)
    if (r - s) % common:
        return b
    step = n // common
    times = (s - r) // common * pow(m // common, -1, step) if step > 1 else 0
    modulus = m * step
    return modulus, (r + m * times) % modulus
