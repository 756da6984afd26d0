"""What is known about atoms in one scope, and what was concluded from it.

Facts only grow within a scope, except that binding a variable anew forgets the old one.  Conclusions are kept
beside the facts they rest on: a new fact starts empty ones, and leaving a scope brings back the old.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from tilewright.arith.intervals import Interval
from tilewright.arith.linear import Linear
from tilewright.ir import Expr, Var, walk


@dataclass(slots=True)
class Conclusions:
    """Results that hold under the facts of a scope, so that nothing is worked out twice."""

    values: dict[Expr, Any] = field(default_factory=dict)
    """Canonical value of an expression, by the node's identity."""
    quotients: dict[Hashable, Linear] = field(default_factory=dict)
    remainders: dict[Hashable, Linear] = field(default_factory=dict)
    comparisons: dict[Hashable, Expr] = field(default_factory=dict)
    rebuilt: dict[Hashable, Expr] = field(default_factory=dict)
    """Expressions made of linear forms."""
    intervals: dict[Expr, Interval] = field(default_factory=dict)
    residues: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    signs: dict[Hashable, bool] = field(default_factory=dict)
    """Whether a linear form is proved to be non-negative."""
    levers: dict[Expr, tuple[tuple[Linear, Linear], ...]] = field(default_factory=dict)
    """Forms known to be non-negative that mention an atom, with its coefficient in each."""
    met: set[Var] = field(default_factory=set)
    """Variables that some conclusion may rest on."""
    models: tuple[Any, ...] | None = None
    """Assignments that satisfy the facts."""

    def copy(self) -> Conclusions:
        """The same conclusions, for a scope with a new variable that none of them mentions."""
        return Conclusions(
            dict(self.values),
            dict(self.quotients),
            dict(self.remainders),
            dict(self.comparisons),
            dict(self.rebuilt),
            dict(self.intervals),
            dict(self.residues),
            dict(self.signs),
            dict(self.levers),
            set(self.met),
        )


@dataclass(slots=True)
class Facts:
    """The facts of a scope.

    Attributes
    ----------
    intervals : bounds given for an atom, beyond those of its structure.
    residues : ``atom -> (m, r)`` with ``atom % m == r``.
    equal : atoms that are known to equal a linear form.
    stretched : ``atom -> m * (atom // m) + r`` for every residue, the form in which proofs use it.
    nonnegative : linear forms known to be at least zero, by each of the atoms they mention.
    conditions : truth of conditions that are not comparisons of indices, and of ``!=``.
    mentioned : variables that some fact mentions, or has mentioned.
    after : the facts that these became by one more, so that the next pass that comes to the same place finds them,
        with all that was concluded there.
    """

    intervals: dict[Expr, Interval] = field(default_factory=dict)
    residues: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    equal: dict[Expr, Linear] = field(default_factory=dict)
    stretched: dict[Expr, Linear] = field(default_factory=dict)
    nonnegative: dict[Expr, tuple[Linear, ...]] = field(default_factory=dict)
    conditions: dict[Expr, bool] = field(default_factory=dict)
    mentioned: set[Var] = field(default_factory=set)
    conclusions: Conclusions = field(default_factory=Conclusions)
    after: dict[Hashable, Facts] = field(default_factory=dict)

    def copy(self) -> Facts:
        """The facts for an inner scope; conclusions are shared until a fact is added."""
        return Facts(
            dict(self.intervals),
            dict(self.residues),
            dict(self.equal),
            dict(self.stretched),
            dict(self.nonnegative),
            dict(self.conditions),
            set(self.mentioned),
            self.conclusions,
        )

    def forget_conclusions(self) -> None:
        """Called with every new fact."""
        self.conclusions = Conclusions()

    def forget(self, var: Var) -> None:
        """Drop every fact that mentions a variable, since it is bound anew."""
        self.intervals = _without(self.intervals, var)
        self.residues = _without(self.residues, var)
        self.conditions = _without(self.conditions, var)
        self.equal = _without(self.equal, var)
        self.stretched = _without(self.stretched, var)
        self.equal = {atom: form for atom, form in self.equal.items() if not _form_mentions(form, var)}
        self.nonnegative = {
            atom: tuple(form for form in forms if not _form_mentions(form, var))
            for atom, forms in _without(self.nonnegative, var).items()
        }

    def add_nonnegative(self, form: Linear) -> None:
        for atom in dict.fromkeys(form.atoms()):
            known = self.nonnegative.get(atom, ())
            if not any(form.equals(other) for other in known):
                self.nonnegative[atom] = (*known, form)


def mentions(expr: Expr, var: Var) -> bool:
    """Whether a variable stands in an expression."""
    return expr is var or any(found is var for found in walk(expr))


def _form_mentions(form: Linear, var: Var) -> bool:
    return any(mentions(atom, var) for atom in form.atoms())


def _without(table: dict[Expr, Any], var: Var) -> dict[Expr, Any]:
    return {atom: fact for atom, fact in table.items() if not mentions(atom, var)}
