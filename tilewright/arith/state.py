"""What the parts of an analyzer share: unique expressions and the facts of the current scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.arith import linear
from tilewright.arith.facts import Facts
from tilewright.arith.interning import Interner
from tilewright.arith.linear import Linear
from tilewright.ir import Const, DType, Expr


def is_index(dtype: DType) -> bool:
    """Whether arithmetic on the type is index arithmetic, which is taken not to overflow."""
    return (dtype.name == "int32" or dtype.name == "int64") and dtype.lanes == 1


def wrapped(value: int, dtype: DType) -> int:
    """`value` modulo ``2**bits``, in the range of an integer type."""
    if dtype.minimum <= value <= dtype.maximum:
        return value
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.maximum else value


class Knowledge:
    """What analyzers may have in common: unique expressions, and what is known where nothing is given, with what
    follows."""

    def __init__(self) -> None:
        self.interner = Interner()
        self.facts = Facts()


_common: ContextVar[Knowledge | None] = ContextVar("common knowledge of analyzers", default=None)


@contextmanager
def common_knowledge() -> Iterator[None]:
    """Analyzers made inside have what they find out in common: passes ask much the same of the same places."""
    token = _common.set(Knowledge())
    try:
        yield
    finally:
        _common.reset(token)


class State:
    """Unique expressions, and facts by scope."""

    def __init__(self) -> None:
        common = _common.get() or Knowledge()
        self.interner, self.facts = common.interner, common.facts
        self.searches = True
        """Whether signs that intervals leave open are searched for: not of what is about to be taken as true."""

    def form(self, expr: Expr) -> Linear:
        """The linear form of a unique expression of an index type."""
        known = self.interner.forms.get(expr)
        if known is not None:
            return known
        return linear.constant(int(expr.value)) if isinstance(expr, Const) else linear.of_atom(expr)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Facts learnt inside are forgotten at its end."""
        outer = self.facts
        self.facts = outer.copy()
        try:
            yield
        finally:
            self.facts = outer

    def product(self, a: Linear, b: Linear) -> Linear:
        return linear.multiply(a, b, self.interner.rank)

    def replaced(self, form: Linear, atom: Expr, by: Linear) -> Linear:
        """`form` with another form in the place of an atom, where that stands to the first power."""
        split = linear.coefficient_of(form, atom)
        return form if split is None else linear.add(self.product(split[0], by), split[1])
