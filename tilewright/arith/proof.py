"""Proofs that a linear form cannot be negative.

A form is non-negative where its interval says so.  Otherwise an atom is traded for a bound of it: if
``form = p * atom + rest``, ``lever = k * atom + r`` is known to be non-negative and ``p / k`` is positive, then
``k * form - p * lever`` no longer mentions the atom, and if it is non-negative then so is the form.  Levers are
the facts of the scope (``i <= M - 1``) and the definitions of atoms (``c * (x // c) <= x``).  The search is
small and bounded: what it does not find is not proved.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arith import linear
from tilewright.arith.linear import Linear
from tilewright.arith.models import some_models
from tilewright.arith.ranges import interval_of, interval_of_form
from tilewright.arith.state import State
from tilewright.ir.nodes import Binary, Expr, Select

_DEPTH = 6
"""Atoms that one proof may trade, one after another."""

_BUDGET = 120
"""Forms that one proof may look at."""


def nonnegative(state: State, form: Linear) -> bool:
    """Whether ``form >= 0`` is certain."""
    if not form.terms:
        return form.constant >= 0
    low, high = interval_of_form(state, form)
    if low is not None and low >= 0:
        return True
    if (high is not None and high < 0) or not state.searches:
        return False
    known = state.facts.conclusions.signs.get(form.key)
    if known is None:
        refuted = any(model.refutes(form, state) for model in some_models(state))
        known = not refuted and _Search(state).proves(stretch(state, form), _DEPTH)
        state.facts.conclusions.signs[form.key] = known
    return known


def stretch(state: State, form: Linear) -> Linear:
    """`form` with every atom of known residue written as ``m * (atom // m) + r``."""
    stretched = state.facts.stretched
    if not stretched:
        return form
    for atom in dict.fromkeys(form.atoms()):
        if atom in stretched:
            form = state.replaced(form, atom, stretched[atom])
    return form


class _Search:
    """One bounded search."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.budget = _BUDGET
        self.refuted: set[object] = set()

    def proves(self, form: Linear, depth: int, kept: frozenset[Expr] = frozenset()) -> bool:
        """Whether ``form >= 0`` follows from at most `depth` trades of atoms other than those `kept`.

        Trades can be made in any order, so an atom that was tried is kept while the ones after it are.
        """
        form = linear.tightened(form)
        if not form.terms:
            return form.constant >= 0
        low, high = interval_of_form(self.state, form)
        if low is not None and low >= 0:
            return True
        key = (form.key, kept)
        if (high is not None and high < 0) or depth == 0 or self.budget <= 0 or key in self.refuted:
            return False
        self.budget -= 1
        for atom in reversed(list(dict.fromkeys(form.atoms()))):
            if atom in kept:
                continue
            split = linear.coefficient_of(form, atom)
            if split is not None and self._trade(form, atom, *split, depth - 1, kept):
                return True
            kept = kept | {atom}
        self.refuted.add(key)
        return False

    def _trade(self, form: Linear, atom: Expr, factor: Linear, rest: Linear, depth: int, kept: frozenset[Expr]) -> bool:
        sign = _sign(self.state, factor)
        if self._by_cases(atom, factor, rest, sign, depth, kept):
            return True
        if factor.terms and sign:
            low, high = interval_of(self.state, atom)
            bound = low if sign > 0 else high
            if bound is not None and self.proves(linear.add(rest, factor, bound), depth, kept):
                return True
        for own, lever in levers(self.state, atom):
            reduced = self._reduced(form, factor, sign, own, lever)
            if reduced is not None and self.proves(reduced, depth, kept):
                return True
        return False

    def _reduced(self, form: Linear, factor: Linear, sign: int, own: Linear, lever: Linear) -> Linear | None:
        """`form` less a non-negative multiple of `lever` that takes the atom out; None where signs forbid it.

        The atom stands with coefficient `factor` in the form, whose sign is `sign`, and `own` in the lever.
        """
        if not own.terms:
            if own.constant * sign <= 0:
                return None
            multiple = self.state.product(linear.scale(factor, sign), lever)
            return linear.add(linear.scale(form, abs(own.constant)), multiple, -1)
        ratio = _positive_ratio(factor, own)
        if ratio is None:
            return None
        return linear.add(linear.scale(form, ratio[1]), lever, -ratio[0])

    def _by_cases(self, atom: Expr, factor: Linear, rest: Linear, sign: int, depth: int, kept: frozenset[Expr]) -> bool:
        """A minimum, a maximum or a select is one of its operands: all of them must do."""
        if isinstance(atom, Select):
            options = [self.state.form(atom.then), self.state.form(atom.otherwise)]
        elif isinstance(atom, Binary) and (sign, atom.op) in ((1, "min"), (-1, "max")):
            options = list(self.state.interner.operands.get(atom, ()))
        else:
            return False
        return bool(options) and all(
            self.proves(linear.add(self.state.product(factor, stretch(self.state, option)), rest), depth, kept)
            for option in options
        )


def levers(state: State, atom: Expr) -> tuple[tuple[Linear, Linear], ...]:
    """Forms that mention `atom` and cannot be negative, each after its coefficient of `atom`."""
    found = state.facts.conclusions.levers.get(atom)
    if found is None:
        splits = ((linear.coefficient_of(form, atom), form) for form in _mentioning(state, atom))
        found = tuple((split[0], form) for split, form in splits if split is not None and not split[0].is_zero)
        state.facts.conclusions.levers[atom] = found
    return found


def _mentioning(state: State, atom: Expr) -> Iterator[Linear]:
    for form in state.facts.nonnegative.get(atom, ()):
        yield stretch(state, form)
    operands = state.interner.operands.get(atom)
    if operands is not None and isinstance(atom, Binary):
        for form in _definition(state, atom, *operands):
            yield stretch(state, form)
        if atom.op == "floordiv" and atom.left in state.facts.stretched:
            # the quotient stands for its dividend in stretched forms, so the dividend's facts are its own
            for form in state.facts.nonnegative.get(atom.left, ()):
                yield stretch(state, form)


def _definition(state: State, atom: Binary, left: Linear, right: Linear) -> Iterator[Linear]:
    """What an atom's operation says about it, as non-negative forms."""
    itself = linear.of_atom(atom)
    if atom.op == "min":
        yield linear.add(left, itself, -1)
        yield linear.add(right, itself, -1)
    elif atom.op == "max":
        yield linear.add(itself, left, -1)
        yield linear.add(itself, right, -1)
    elif atom.op == "floordiv" and _sign(state, right) > 0:
        product = state.product(right, itself)
        remainder = linear.add(left, product, -1)
        yield remainder
        yield linear.add(linear.shift(right, -1), remainder, -1)
    elif atom.op == "floormod" and _sign(state, right) > 0:
        yield linear.add(linear.shift(right, -1), itself, -1)
        low = interval_of_form(state, left)[0]
        if low is not None and low >= 0:
            yield linear.add(left, itself, -1)


def _sign(state: State, form: Linear) -> int:
    """1 where a form is positive or zero, -1 where negative or zero, 0 where that is not known."""
    if not form.terms:
        return (form.constant > 0) - (form.constant < 0)
    low, high = interval_of_form(state, form)
    if low is not None and low >= 0:
        return 1
    return -1 if high is not None and high <= 0 else 0


def _positive_ratio(a: Linear, b: Linear) -> tuple[int, int] | None:
    """``(n, e)``, both positive, with ``e * a == n * b``; None where there are none."""
    if a.terms.keys() != b.terms.keys() or not b.terms:
        return None
    monomial = next(iter(b.terms))
    n, e = a.terms[monomial], b.terms[monomial]
    if n * e <= 0:
        return None
    n, e = abs(n), abs(e)
    return (n, e) if linear.scale(a, e).equals(linear.scale(b, n)) else None
