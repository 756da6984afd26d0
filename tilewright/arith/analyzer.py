"""`Analyzer`: what the rest of the compiler asks about index expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.arith import linear as forms
from tilewright.arith.division import recombine
from tilewright.arith.facts import Conclusions, Facts
from tilewright.arith.interning import Name
from tilewright.arith.intervals import Interval
from tilewright.arith.learning import learn, learn_ends, start_binding
from tilewright.arith.proof import nonnegative
from tilewright.arith.ranges import interval_of, interval_of_form, residue_of_form
from tilewright.arith.rebuild import rebuild
from tilewright.arith.simplifier import form_of, simplified
from tilewright.arith.state import State, is_index
from tilewright.ir import INTRINSICS, find, same
from tilewright.ir.nodes import Binary, Buffer, Call, Const, Expr, Extent, Load, Var, expr, index_binary, is_literal


@dataclass(slots=True, eq=False)
class _Fact:
    """A fact as it was given, and what its expressions say of it once somebody asks.

    Attributes
    ----------
    learn, arguments : the method that learns it, and what of.
    defines : the variable that it gives a value.
    names : what it mentions.
    reaches : the names of which it says something.  A definition says nothing of what it rests on, and what is known of
        defined names says nothing of sizes (what is bound outside all scopes).
    shape : what facts share that say the same; None before the fact is learnt.
    """

    learn: Callable[..., None]
    arguments: tuple[object, ...]
    defines: Var | None
    names: frozenset[Name] = frozenset()
    reaches: frozenset[Name] = frozenset()
    shape: Hashable = None


class Analyzer:
    """Simplifies and decides expressions under what is known about their variables.

    Arithmetic on int32 and int64 is taken to be *index arithmetic*: it does not overflow its type (the choice of
    index width guarantees that), so sums, products, quotients and comparisons follow the laws of the integers.
    Literals alone still fold with wrapping.  Unsigned and narrower integers wrap, floats round; for them only
    laws hold that are exact for every value.  Shifts to the left are multiplications only where no bit is lost.

    Expressions are compared as evaluated at one moment: two loads of one element are equal.  Conditions that
    read memory are not kept as facts, since memory changes, unless every buffer they read is in
    `constant_buffers`.

    Facts are learnt when a question is asked that they may bear on, which is told by the variables they have in common,
    one fact leading to the next. So a place where nobody asks costs nothing, and passes that come to the same place
    with the same question find what the first one concluded.

    Parameters
    ----------
    constant_buffers : buffers that are never written while the facts hold.
    """

    def __init__(self, constant_buffers: Collection[Buffer] = ()) -> None:
        self._state = State()
        self._nothing = self._state.facts
        self._constant_buffers = frozenset(constant_buffers)
        self._given: list[_Fact] = []
        self._told = 0
        self._depth = 0
        self._sizes: set[Var] = set()
        self._about: dict[Name, list[_Fact]] = {}
        self._relevant: dict[frozenset[Name], Facts] = {}

    def _relevant_facts(self, *questions: Expr) -> State:
        """The state with only the facts that are relevant to some expressions."""
        state = self._state
        if self._told < len(self._given):
            self._tell()
        names = state.interner.names(questions[0])
        for other in questions[1:]:
            names |= state.interner.names(other)
        facts = self._relevant.get(names)
        if facts is None:
            facts = self._relevant[names] = self._learnt(names)
        state.facts = facts
        return state

    def _tell(self) -> None:
        """Enter the facts that are new under the names of which they say something."""
        for fact in self._given[self._told :]:
            stated = [argument for argument in fact.arguments if isinstance(argument, Expr)]
            fact.names = frozenset[Name]().union(*map(self._state.interner.names, stated))
            if fact.defines is not None:
                fact.reaches = frozenset((fact.defines,))
            elif fact.learn == self._assume and any(map(self._is_defined, fact.names)):
                fact.reaches = frozenset(n for n in fact.names if n not in self._sizes or self._is_defined(n))
            else:
                fact.reaches = fact.names
            for name in fact.reaches:
                self._about.setdefault(name, []).append(fact)
        self._told = len(self._given)
        self._relevant = {}

    def _is_defined(self, name: Name) -> bool:
        return any(fact.defines is name for fact in self._about.get(name, ()))

    def _learnt(self, names: frozenset[Name]) -> Facts:
        """What follows from the facts that bear on some names, learnt in the order in which they were given."""
        waiting, met = list(names), set(names)
        bearing: set[_Fact] = set()
        while waiting:
            for fact in self._about.get(waiting.pop(), ()):
                if fact not in bearing:
                    bearing.add(fact)
                    waiting += fact.names - met
                    met |= fact.names
        state = self._state
        state.facts = self._nothing
        if bearing:
            for fact in self._given:
                if fact in bearing:
                    state.facts = self._with(fact)
        return state.facts

    def _with(self, fact: _Fact) -> Facts:
        """The state's facts and one more."""
        state, before = self._state, self._state.facts
        if fact.shape is None:
            shapes = map(state.interner.shape, fact.arguments)
            fact.shape = (fact.learn.__name__, self._constant_buffers, *shapes)
        known = before.after.get(fact.shape)
        if known is None:
            state.facts = before.copy()
            fact.learn(*fact.arguments)
            known = before.after[fact.shape] = state.facts
        return known

    # Facts ------------------------------------------------------------------------------------

    def bind(self, var: Var, low: Extent | None = None, high: Extent | None = None) -> None:
        """`var` ranges over ``low .. high``, both inclusive, either may be None.

        This is what a loop does: all that was known of the variable before is forgotten.
        """
        if not self._depth:
            self._sizes.add(var)
        self._given.append(_Fact(self._bind, (var, low, high), var if low is high else None))

    def _bind(self, var: Var, low: Extent | None, high: Extent | None) -> None:
        start_binding(self._state, var)
        ends = [None if bound is None else self._end(var, bound) for bound in (low, high)]
        learn_ends(self._state, var, *ends)

    def _end(self, var: Var, bound: Extent) -> forms.Linear | Interval:
        """A bound as a form; as an interval where it may change before the variable does, or is no index."""
        if not isinstance(bound, int) and (_may_change(bound, self._constant_buffers) or not is_index(bound.dtype)):
            return _bounds(self._state, bound)
        if not is_index(var.dtype):
            return _bounds(self._state, bound)
        return forms.constant(bound) if isinstance(bound, int) else form_of(self._state, bound)

    def bind_extent(self, var: Var, extent: Extent) -> None:
        """``0 <= var < extent``."""
        self.bind(var, 0, extent - 1 if isinstance(extent, int) else index_binary("sub", extent, 1))

    def assume(self, condition: Expr) -> None:
        """Take `condition` as true: comparisons, ``x % 8 == 0``, conjunctions of such."""
        if isinstance(condition, Binary) and condition.op == "all":  # each part bears on questions of its own
            self.assume(condition.left)
            self.assume(condition.right)
        else:
            self._given.append(_Fact(self._assume, (condition,), None))

    def _assume(self, condition: Expr) -> None:
        if _may_change(condition, self._constant_buffers):
            return
        with self._state.scope():  # what is concluded without searching is for this alone
            self._state.facts.conclusions = Conclusions()
            self._state.searches = False
            try:
                condition = simplified(self._state, condition)
            finally:
                self._state.searches = True
        learn(self._state, condition)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Facts added inside hold to the end of the ``with`` block."""
        count, told, relevant = len(self._given), self._told, self._relevant
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._forget(count)
            if self._told == told:
                self._relevant = relevant

    def _forget(self, count: int) -> None:
        """Drop all but the first facts."""
        for fact in reversed(self._given[count:]):
            for name in fact.reaches:
                self._about[name].pop()
        if self._told > count:
            self._told, self._relevant = count, {}
        del self._given[count:]

    # Questions --------------------------------------------------------------------------------

    def simplify(self, expression: Expr) -> Expr:
        """An equal expression in canonical form; `expression` itself where it is that already.

        The result has the same dtype, evaluates no load that `expression` does not, and simplifies to itself.
        """
        if isinstance(expression, Const):
            return expression
        state = self._relevant_facts(expression)
        result = simplified(state, expression)
        return expression if _is_same(result, expression) else result

    def bounds(self, expression: Extent) -> Interval:
        """The least and greatest value that are certain, either may be None.  Booleans count as 0 and 1."""
        if isinstance(expression, int):
            return expression, expression
        return _bounds(self._relevant_facts(expression), expression)

    def distance(self, a: Expr, b: Expr) -> Interval:
        """The bounds of ``a - b`` for two indices, without making that expression."""
        state = self._relevant_facts(a, b)
        difference = forms.add(form_of(state, a), form_of(state, b), -1)
        return interval_of_form(
            state, recombine(state, difference, a.dtype if a.dtype.bits > b.dtype.bits else b.dtype)
        )

    def apart(self, a: Expr, count: int, b: Expr, other: int) -> bool:
        """Whether the `count` numbers from `a` on, and the `other` ones from `b` on, have certainly none in common."""
        low, high = self.distance(a, b)
        return (low is not None and low >= other) or (high is not None and -high >= count)

    def prove(self, condition: Expr | bool) -> bool:
        """Whether `condition` certainly holds."""
        if isinstance(condition, bool):
            return condition
        result = simplified(self._relevant_facts(condition), condition)
        return isinstance(result, Const) and bool(result.value)

    def divides(self, expression: Extent, divisor: Extent) -> bool:
        """Whether `expression` is certainly a multiple of `divisor`."""
        if isinstance(expression, int) and isinstance(divisor, int):
            return divisor != 0 and expression % divisor == 0
        remainder = index_binary("floormod", expression, divisor)
        state = self._relevant_facts(remainder)
        if isinstance(divisor, int):
            if divisor == 0 or not is_index(expr(expression).dtype):
                return False
            modulus, rest = residue_of_form(state, form_of(state, expr(expression)))
            if modulus % divisor == 0 and rest % divisor == 0:
                return True
        found = simplified(state, remainder)
        return is_literal(found, 0)

    def equal(self, a: Extent, b: Extent) -> bool:
        """Whether `a` and `b` certainly have the same value."""
        left, right = expr(a), expr(b)
        if not left.dtype.is_integer or not right.dtype.is_integer:
            state = self._relevant_facts(left, right)
            return left.dtype == right.dtype and simplified(state, left) is simplified(state, right)
        return self.prove(index_binary("eq", left, right))

    def linear(self, expression: Expr) -> tuple[dict[Expr, int], int]:
        """An index expression as ``(coefficients, constant)``.

        The keys are variables, products and opaque terms (``x // 4``, loads), each equal to itself by identity
        within this analyzer.  An expression of another type is its own single term.
        """
        state = self._relevant_facts(expression)
        if not is_index(expression.dtype):
            return {simplified(state, expression): 1}, 0
        form = form_of(state, expression)
        products = {
            rebuild(state, forms.Linear(0, {monomial: 1}), expression.dtype): coefficient
            for monomial, coefficient in form.terms.items()
        }
        return products, form.constant

    def stride(self, expression: Expr, var: Var) -> Expr | None:
        """``s`` where ``expression == s * var + rest`` and neither mentions `var`; None where there is no such."""
        if not is_index(expression.dtype):
            return None
        state = self._relevant_facts(expression)
        split = forms.coefficient_of(form_of(state, expression), var)
        if split is None or any(var in state.interner.names(atom) for part in split for atom in part.atoms()):
            return None
        return rebuild(state, split[0], expression.dtype)

    def nonnegative(self, expression: Extent) -> bool:
        """Whether an index expression is certainly not negative."""
        if isinstance(expression, int):
            return expression >= 0
        state = self._relevant_facts(expression)
        if not is_index(expression.dtype):
            low = _bounds(state, expression)[0]
            return low is not None and low >= 0
        return nonnegative(state, form_of(state, expression))


def _bounds(state: State, expression: Extent) -> Interval:
    """The least and greatest value that are certain under the facts of a state."""
    if isinstance(expression, int):
        return expression, expression
    if is_index(expression.dtype):
        return interval_of_form(state, form_of(state, expression))
    if expression.dtype.is_float or expression.dtype.lanes != 1:
        return None, None
    return interval_of(state, simplified(state, expression))


def _may_change(condition: Expr, constant_buffers: frozenset[Buffer]) -> bool:
    for found in find(condition, Load, Call):
        if isinstance(found, Load):
            if found.buffer not in constant_buffers:
                return True
        else:
            record = INTRINSICS.get(found.function)
            if record is None or not record.pure:
                return True
    return False


def _is_same(a: Expr, b: Expr) -> bool:
    """`same`, quick on what index expressions are made of."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Binary) and isinstance(b, Binary):
        return a.op == b.op and _is_same(a.left, b.left) and _is_same(a.right, b.right)
    return same(a, b)
