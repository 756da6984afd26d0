"""The canonical form of an integer: a constant plus whole multiples of products of opaque terms.

Two index expressions that differ only by the laws of a commutative ring have the same `Linear`.  A term that
is not a sum or a product (a variable, ``x // 4``, a load) is an *atom*: an expression made unique by
`interning`, so that atoms are compared and hashed by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from math import gcd
from typing import TypeAlias

from tilewright.ir.nodes import Expr

Monomial: TypeAlias = "tuple[Expr, ...]"
"""A product of atoms, in the order of their ranks."""


class Linear:
    """``constant + sum(coefficient * product(monomial))``; never changed once made.

    Attributes
    ----------
    constant : the term without atoms.
    terms : coefficients by monomial; none is zero.
    """

    __slots__ = ("_key", "constant", "terms")

    def __init__(self, constant: int, terms: dict[Monomial, int]) -> None:
        self.constant, self.terms = constant, terms
        self._key: Hashable = None

    @property
    def key(self) -> Hashable:
        """A hashable value that equal forms share."""
        if self._key is None:
            self._key = (self.constant, frozenset(self.terms.items()))
        return self._key

    @property
    def content(self) -> int:
        """The greatest common divisor of the coefficients, the constant apart; 0 where there are none."""
        return gcd(*self.terms.values())

    def equals(self, other: Linear) -> bool:
        return self.constant == other.constant and self.terms == other.terms

    @property
    def is_zero(self) -> bool:
        return not self.terms and self.constant == 0

    def atoms(self) -> Iterator[Expr]:
        """Every atom, once for each monomial and power it stands in."""
        for monomial in self.terms:
            yield from monomial

    def single_atom(self) -> tuple[Expr, int] | None:
        """The atom and its coefficient where there is one term of degree one, whatever the constant."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if len(monomial) == 1:
                return monomial[0], coefficient
        return None

    def __repr__(self) -> str:
        products = [f"{c}*{'*'.join(getattr(a, 'name', '?') for a in m)}" for m, c in self.terms.items()]
        return "Linear(" + " + ".join([*products, str(self.constant)]) + ")"


ZERO = Linear(0, {})


def constant(value: int) -> Linear:
    """The form of a literal."""
    return Linear(value, {})


def of_atom(atom: Expr) -> Linear:
    """The form of an atom."""
    return Linear(0, {(atom,): 1})


def add(a: Linear, b: Linear, factor: int = 1) -> Linear:
    """``a + factor * b``."""
    if factor == 0:
        return a
    terms = dict(a.terms)
    for monomial, coefficient in b.terms.items():
        total = terms.get(monomial, 0) + factor * coefficient
        if total:
            terms[monomial] = total
        else:
            del terms[monomial]
    return Linear(a.constant + factor * b.constant, terms)


def shift(a: Linear, value: int) -> Linear:
    """``a + value``."""
    return Linear(a.constant + value, a.terms) if value else a


def scale(a: Linear, factor: int) -> Linear:
    """``factor * a``."""
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return Linear(a.constant * factor, {m: c * factor for m, c in a.terms.items()})


def multiply(a: Linear, b: Linear, rank: Callable[[Expr], int]) -> Linear:
    """``a * b``, with the atoms of each product put in the order of `rank`."""
    if not b.terms:
        return scale(a, b.constant)
    if not a.terms:
        return scale(b, a.constant)
    terms: dict[Monomial, int] = {}
    for left, p in (*a.terms.items(), ((), a.constant)):
        if not p:
            continue
        for right, q in (*b.terms.items(), ((), b.constant)):
            if not q:
                continue
            monomial = tuple(sorted(left + right, key=rank)) if left and right else left + right
            terms[monomial] = terms.get(monomial, 0) + p * q
    total = terms.pop((), 0)
    return Linear(total, {m: c for m, c in terms.items() if c})


def exact_quotient(a: Linear, divisor: int) -> Linear:
    """``a / divisor`` where every coefficient is a multiple of it; the constant is rounded down."""
    if divisor == 1:
        return a
    return Linear(a.constant // divisor, {m: c // divisor for m, c in a.terms.items()})


def tightened(form: Linear) -> Linear:
    """A form divided by the common factor of its coefficients: of integers that are not negative, the constant may be
    rounded down."""
    return exact_quotient(form, max(form.content, 1))


def signs(form: Linear) -> tuple[Linear, Linear]:
    """The terms with coefficients above zero, and those below it as if they were above."""
    positive = {m: c for m, c in form.terms.items() if c > 0}
    return Linear(0, positive), Linear(0, {m: -c for m, c in form.terms.items() if c < 0})


def remove_factor(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """`monomial` without the atoms of `factor`, or None where it does not contain them all."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def contains(whole: Linear, part: Linear) -> bool:
    """Whether every term of `part` stands in `whole` with just that coefficient."""
    return all(whole.terms.get(monomial) == coefficient for monomial, coefficient in part.terms.items())


def coefficient_of(a: Linear, atom: Expr) -> tuple[Linear, Linear] | None:
    """``(p, rest)`` with ``a == p * atom + rest`` and no `atom` left; None where it stands to a higher power."""
    product: dict[Monomial, int] = {}
    constant_part = 0
    rest: dict[Monomial, int] = {}
    for monomial, c in a.terms.items():
        count = monomial.count(atom)
        if count == 0:
            rest[monomial] = c
        elif count > 1:
            return None
        elif len(monomial) == 1:
            constant_part += c
        else:
            others = tuple(other for other in monomial if other is not atom)
            product[others] = product.get(others, 0) + c
    return Linear(constant_part, product), Linear(a.constant, rest)
