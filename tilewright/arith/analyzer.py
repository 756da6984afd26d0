"""`Analyzer`: what the rest of the compiler asks about index expressions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tilewright.arith import linear as forms
from tilewright.arith.facts import Conclusions
from tilewright.arith.intervals import Interval
from tilewright.arith.learning import learn, learn_ends, start_binding
from tilewright.arith.proof import nonnegative
from tilewright.arith.ranges import interval_of, interval_of_form, residue_of_form
from tilewright.arith.rebuild import rebuild
from tilewright.arith.simplifier import form_of, simplified
from tilewright.arith.state import State, is_index
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import Binary, Buffer, Call, Const, Expr, Extent, Load, Var, expr, index_binary
from tilewright.ir.visitor import same, walk


class Analyzer:
    """Simplifies and decides expressions under what is known about their variables.

    Arithmetic on int32 and int64 is taken to be *index arithmetic*: it does not overflow its type (the choice of
    index width guarantees that), so sums, products, quotients and comparisons follow the laws of the integers.
    Literals alone still fold with wrapping.  Unsigned and narrower integers wrap, floats round; for them only
    laws hold that are exact for every value.  Shifts to the left are multiplications only where no bit is lost.

    Expressions are compared as evaluated at one moment: two loads of one element are equal.  Conditions that
    read memory are not kept as facts, since memory changes, unless every buffer they read is in
    `constant_buffers`.

    Parameters
    ----------
    constant_buffers : buffers that are never written while the facts hold.
    """

    def __init__(self, constant_buffers: Collection[Buffer] = ()) -> None:
        self._state = State()
        self._constant_buffers = frozenset(constant_buffers)

    # Facts ------------------------------------------------------------------------------------

    def bind(self, var: Var, low: Extent | None = None, high: Extent | None = None) -> None:
        """`var` ranges over ``low .. high``, both inclusive, either may be None.

        This is what a loop does: all that was known of the variable before is forgotten.
        """
        start_binding(self._state, var)
        ends = [None if bound is None else self._end(var, bound) for bound in (low, high)]
        learn_ends(self._state, var, *ends)

    def _end(self, var: Var, bound: Extent) -> forms.Linear | Interval:
        """A bound as a form; as an interval where it may change before the variable does, or is no index."""
        if not isinstance(bound, int) and (self._may_change(bound) or not is_index(bound.dtype)):
            return self.bounds(bound)
        if not is_index(var.dtype):
            return self.bounds(bound)
        return forms.constant(bound) if isinstance(bound, int) else form_of(self._state, bound)

    def bind_extent(self, var: Var, extent: Extent) -> None:
        """``0 <= var < extent``."""
        self.bind(var, 0, extent - 1 if isinstance(extent, int) else index_binary("sub", extent, 1))

    def assume(self, condition: Expr) -> None:
        """Take `condition` as true: comparisons, ``x % 8 == 0``, conjunctions of such."""
        if self._may_change(condition):
            return
        with self._state.scope():  # what is concluded without searching is for this alone
            self._state.facts.conclusions = Conclusions()
            self._state.searches = False
            try:
                condition = simplified(self._state, condition)
            finally:
                self._state.searches = True
        learn(self._state, condition)

    def _may_change(self, condition: Expr) -> bool:
        for found in walk(condition):
            if isinstance(found, Load) and found.buffer not in self._constant_buffers:
                return True
            if isinstance(found, Call):
                record = INTRINSICS.get(found.function)
                if record is None or not record.pure:
                    return True
        return False

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Facts added inside hold to the end of the ``with`` block."""
        with self._state.scope():
            yield

    # Questions --------------------------------------------------------------------------------

    def simplify(self, expression: Expr) -> Expr:
        """An equal expression in canonical form; `expression` itself where it is that already.

        The result has the same dtype, evaluates no load that `expression` does not, and simplifies to itself.
        """
        if isinstance(expression, (Const, Var)) and not self._state.facts.equal and not self._state.facts.conditions:
            return expression
        result = simplified(self._state, expression)
        return expression if _is_same(result, expression) else result

    def bounds(self, expression: Extent) -> Interval:
        """The least and greatest value that are certain, either may be None.  Booleans count as 0 and 1."""
        if isinstance(expression, int):
            return expression, expression
        if is_index(expression.dtype):
            return interval_of_form(self._state, form_of(self._state, expression))
        if expression.dtype.is_float or expression.dtype.lanes != 1:
            return None, None
        return interval_of(self._state, simplified(self._state, expression))

    def prove(self, condition: Expr | bool) -> bool:
        """Whether `condition` certainly holds."""
        if isinstance(condition, bool):
            return condition
        result = simplified(self._state, condition)
        return isinstance(result, Const) and bool(result.value)

    def divides(self, expression: Extent, divisor: Extent) -> bool:
        """Whether `expression` is certainly a multiple of `divisor`."""
        if isinstance(expression, int) and isinstance(divisor, int):
            return divisor != 0 and expression % divisor == 0
        if isinstance(divisor, int):
            form = self._form(expr(expression))
            if divisor == 0 or form is None:
                return False
            modulus, remainder = residue_of_form(self._state, form)
            if modulus % divisor == 0 and remainder % divisor == 0:
                return True
        remainder_of = simplified(self._state, index_binary("floormod", expression, divisor))
        return isinstance(remainder_of, Const) and remainder_of.value == 0

    def equal(self, a: Extent, b: Extent) -> bool:
        """Whether `a` and `b` certainly have the same value."""
        left, right = expr(a), expr(b)
        if not left.dtype.is_integer or not right.dtype.is_integer:
            return left.dtype == right.dtype and simplified(self._state, left) is simplified(self._state, right)
        return self.prove(index_binary("eq", left, right))

    def linear(self, expression: Expr) -> tuple[dict[Expr, int], int]:
        """An index expression as ``(coefficients, constant)``.

        The keys are variables, products and opaque terms (``x // 4``, loads), each equal to itself by identity
        within this analyzer.  An expression of another type is its own single term.
        """
        form = self._form(expression)
        if form is None:
            return {simplified(self._state, expression): 1}, 0
        products = {
            rebuild(self._state, forms.Linear(0, {monomial: 1}), expression.dtype): coefficient
            for monomial, coefficient in form.terms.items()
        }
        return products, form.constant

    def stride(self, expression: Expr, var: Var) -> Expr | None:
        """``s`` where ``expression == s * var + rest`` and neither mentions `var`; None where there is no such."""
        form = self._form(expression)
        split = None if form is None else forms.coefficient_of(form, var)
        if split is None or any(any(n is var for n in walk(atom)) for part in split for atom in part.atoms()):
            return None
        return rebuild(self._state, split[0], expression.dtype)

    def _form(self, expression: Expr) -> forms.Linear | None:
        return form_of(self._state, expression) if is_index(expression.dtype) else None

    def nonnegative(self, expression: Extent) -> bool:
        """Whether an index expression is certainly not negative."""
        if isinstance(expression, int):
            return expression >= 0
        form = self._form(expression)
        if form is None:
            low = self.bounds(expression)[0]
            return low is not None and low >= 0
        return nonnegative(self._state, form)


def _is_same(a: Expr, b: Expr) -> bool:
    """`same`, quick on what index expressions are made of."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is Binary:
        return a.op == b.op and _is_same(a.left, b.left) and _is_same(a.right, b.right)  # type: ignore[attr-defined]
    return same(a, b)
