"""Sample assignments that satisfy the facts of a scope: one that makes a form negative ends its proof at once.

A model chooses a value for every variable and opaque atom when it is first asked for, within the bounds that
the facts leave once the atoms they mention have theirs.  A model that turns out to contradict a fact, or to
divide by zero, says nothing any more.  Models only ever refute, so they cannot make an answer wrong.
"""

from __future__ import annotations

from tilewright.arith.folding import fold_binary
from tilewright.arith.intervals import Interval, intersect
from tilewright.arith.linear import Linear
from tilewright.arith.ranges import interval_of
from tilewright.arith.state import State, is_index
from tilewright.ir.nodes import COMPARISONS, Binary, Expr, Select

_FAR = 100_003
"""How far from its known end a model puts a value that has no other end."""


class Contradiction(Exception):
    """The choices made so far satisfy no value."""


class Model:
    """One assignment, made as it is asked for.

    Parameters
    ----------
    high : whether values with two known ends take their highest.
    far : whether values with one known end lie far from it.
    """

    def __init__(self, state: State, high: bool, far: bool) -> None:
        self._state, self._high, self._far = state, high, far
        self._values: dict[Expr, int] = {}
        self._busy: set[Expr] = set()
        self._dead = False

    def refutes(self, form: Linear, state: State) -> bool:
        """Whether `form` is negative in this model; `state` is one in which the model's facts hold."""
        if self._dead:
            return False
        self._state = state
        try:
            return self._of_form(form) < 0
        except Contradiction:
            self._dead = True
            return False

    def _of_form(self, form: Linear) -> int:
        total = form.constant
        for monomial, coefficient in form.terms.items():
            for atom in monomial:
                coefficient *= self._of(atom)
            total += coefficient
        return total

    def _of(self, atom: Expr) -> int:
        found = self._values.get(atom)
        if found is None:
            self._busy.add(atom)
            found = self._computed(atom)
            if found is None:
                found = self._chosen(atom)
            self._busy.discard(atom)
            self._values[atom] = found
        return found

    def _computed(self, atom: Expr) -> int | None:
        """The value of an operation, from the values of its operands; it must keep to the facts about it."""
        operands = self._state.interner.operands.get(atom)
        if operands is not None and isinstance(atom, Binary):
            left, right = (self._of_form(form) for form in operands)
            value = fold_binary(atom.op, left, right, atom.dtype)
        elif isinstance(atom, Select):
            condition = self._truth(atom.condition)
            value = self._of_form(self._state.form(atom.then if condition else atom.otherwise))
        else:
            return None
        if value is None:
            raise Contradiction
        low, high = self._bounds(atom)
        if (low is not None and value < low) or (high is not None and value > high):
            raise Contradiction
        return int(value)

    def _truth(self, condition: Expr) -> bool:
        if isinstance(condition, Binary) and condition.op in COMPARISONS and is_index(condition.left.dtype):
            left, right = (self._of_form(self._state.form(side)) for side in (condition.left, condition.right))
            return bool(fold_binary(condition.op, left, right, condition.left.dtype))
        return True

    def _chosen(self, atom: Expr) -> int:
        low, high = self._bounds(atom)
        modulus, remainder = self._state.facts.residues.get(atom, (1, 0))
        if low is None and high is None:
            low, high = (-_FAR, _FAR) if self._far else (0, None)
        if low is None or high is None:
            known = low if low is not None else high
            assert known is not None
            direction = 1 if low is not None else -1
            value = known + direction * (_FAR if self._far else 0)
            step = (remainder - value) % modulus if direction > 0 else -((value - remainder) % modulus)
            return value + step
        value = high - (high - remainder) % modulus if self._high else low + (remainder - low) % modulus
        if not low <= value <= high:
            raise Contradiction
        return value

    def _bounds(self, atom: Expr) -> Interval:
        """The ends that the facts leave, given what has been chosen or can be."""
        bounds = interval_of(self._state, atom)
        for form in self._state.facts.nonnegative.get(atom, ()):
            coefficient = form.terms.get((atom,))
            if coefficient is None or any(other in self._busy and other is not atom for other in form.atoms()):
                continue
            rest = Linear(form.constant, {m: c for m, c in form.terms.items() if m != (atom,)})
            if any(other is atom for other in rest.atoms()):
                continue
            slack = self._of_form(rest)  # coefficient * atom >= -slack
            end = (-(slack // coefficient), None) if coefficient > 0 else (None, slack // -coefficient)
            if not _intersect(bounds, end):
                raise Contradiction
            bounds = intersect(bounds, end)
        return bounds


def _intersect(a: Interval, b: Interval) -> bool:
    """Whether some value lies in both."""
    lows, highs = [i[0] for i in (a, b) if i[0] is not None], [i[1] for i in (a, b) if i[1] is not None]
    return not lows or not highs or max(lows) <= min(highs)


def some_models(state: State) -> tuple[Model, ...]:
    """The models of the scope's facts that are worth asking."""
    models: tuple[Model, ...] | None = state.facts.conclusions.models
    if models is None:
        models = tuple(Model(state, high, far) for high, far in ((True, False), (False, True), (False, False)))
        state.facts.conclusions.models = models
    return models
