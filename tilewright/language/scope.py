"""What rewritten functions call while they run: names, and control flow that may be Python's or the program's.

Names are immutable values, as in Python without reassignment across iterations: inside one statement list a name
may be rebound (the later uses mean the later value), but a loop or a branch of the program may not rebind a name
of an outer list, because it is traced once while it runs any number of times.  Mutable scalars are made by
`T.alloc_var`; assigning to their name stores into them.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL
from tilewright.language import branches
from tilewright.language.buffers import BufferProxy, vector_in
from tilewright.language.dtypes import NumberType
from tilewright.language.mistakes import SymbolicIteration, UnsupportedContext, UnsupportedStatement, WrongUnpacking
from tilewright.language.mistakes_of_scopes import EffectInExpression, ImmutableName, SymbolicExit, WrongReturn
from tilewright.language.operators import COMPARE, select
from tilewright.language.proxies import (
    Element,
    Scalar,
    Variable,
    as_expr,
    check_scope,
    condition,
    describe,
    frame_of,
    is_number,
    literal,
)
from tilewright.language.recording import Builder, Frame, current, statement_here
from tilewright.language.tensor_proxies import TensorProxy
from tilewright.language.vectors import Vector, VectorVariable, kept

INLINE_NODES = 24
"""Index arithmetic up to this many nodes stays an expression when it is given a name, so that passes see through
the name; what loads, what is longer and what computes with floats becomes a `Let`."""

OWN = {"contextlib", "__main__"}
"""Modules of Python's whose context managers are made of an author's functions."""

MUTABLE = (Variable, VectorVariable)
"""What an assignment to its name stores into."""


OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "Add": (operator.add, operator.iadd), "Sub": (operator.sub, operator.isub), "Mult": (operator.mul, operator.imul),
    "Div": (operator.truediv, operator.itruediv), "FloorDiv": (operator.floordiv, operator.ifloordiv),
    "Mod": (operator.mod, operator.imod), "Pow": (operator.pow, operator.ipow),
    "LShift": (operator.lshift, operator.ilshift), "RShift": (operator.rshift, operator.irshift),
    "BitAnd": (operator.and_, operator.iand), "BitOr": (operator.or_, operator.ior),
    "BitXor": (operator.xor, operator.ixor), "MatMult": (operator.matmul, operator.imatmul),
}  # fmt: skip
"""Augmented assignment by the name of its syntax node: the operator, and the one that changes its operand."""


class Scope:
    """Names and control flow of one call of a rewritten function.

    Parameters
    ----------
    kind : ``function`` (a kernel) or ``macro``.
    values : the parameters.
    """

    def __init__(self, kind: str, values: dict[str, object]) -> None:
        self.kind = kind
        self.builder: Builder = current(kind)
        self.base = self.builder.frame.control
        self.result_name = self.builder.result_name
        self.bindings: dict[str, tuple[object, Frame | None]] = {}
        for name, value in values.items():
            self.bindings[name] = (value, self.base)
            if isinstance(value, MUTABLE):
                value.is_fresh = False

    # Names --------------------------------------------------------------------------------------

    def naming(self, *names: str) -> object:
        """Say which names the value about to be computed will get; the names again."""
        self.builder.pending_names = names
        return names[0] if len(names) == 1 else names

    def assign(self, name: str, value: object) -> Any:
        """``name = value``; what the name means from now on."""
        self.builder.pending_names = ()
        old, owner = self.bindings.get(name, (None, None))
        fresh = isinstance(value, MUTABLE) and value.is_fresh
        if isinstance(old, MUTABLE) and (old.frame is None or old.frame.is_open) and not fresh:
            self._store(old, value)
            return old
        control = self.builder.frame.control
        is_outer = name in self.bindings and owner is not control and (owner is None or owner.is_open)
        # A tensor's name given to a number here is the number's till the end of the loop or branch, and then nobody's.
        if is_outer and (not isinstance(old, TensorProxy) or isinstance(value, TensorProxy)):
            assert control is not None
            other = f"{name} is {describe(old)}: take another name" if isinstance(old, TensorProxy) else None
            raise ImmutableName(name, control.describe(), hint=other)
        value = settle(value, name)
        self.bindings[name] = (value, control)
        return value

    def declare(self, name: str, value: object) -> object:
        """Note a name that ``for``, ``with`` or an annotation has bound."""
        self.bindings[name] = (value, self.builder.frame.control)
        return value

    def unpack(self, names: tuple[str, ...], value: object) -> Any:
        """The right side of ``a, b = ...``: every element is read before any name or element is written."""
        self.builder.pending_names = ()
        if isinstance(value, Scalar):
            raise WrongUnpacking(describe(value), 1, len(names))
        if isinstance(value, TensorProxy):
            raise SymbolicIteration(describe(value))
        if isinstance(value, (tuple, list)):
            return [
                item
                if isinstance(item, MUTABLE) and item.is_fresh
                else settle(item, names[i] if i < len(names) else "value")
                for i, item in enumerate(value)
            ]
        return value

    def _store(self, variable: Variable | VectorVariable, value: object) -> None:
        if isinstance(variable, VectorVariable):
            variable.store(vector_in(value))
            return
        check_scope(variable.frame)
        dtype = variable.buffer.dtype
        expr = as_expr(value, dtype, f"the value of {variable.name!r}")
        self.builder.append(ir.Store(variable.buffer, variable.indices, expr, span=statement_here()))

    def augment(self, name: str, op: str, old: object, value: object) -> Any:
        """``name op= value``: Python's own operator on Python's own objects."""
        plain, in_place = OPERATIONS[op]
        symbolic = isinstance(old, Scalar) or isinstance(value, Scalar)
        return self.assign(name, (plain if symbolic else in_place)(old, value))

    def augment_item(self, target: Any, key: Any, op: str, value: Any) -> None:
        """``target[key] op= value``."""
        plain, in_place = OPERATIONS[op]
        target[key] = (plain if isinstance(target, BufferProxy) else in_place)(target[key], value)

    def after(self, name: str) -> object:
        """What a name means after a loop or branch of the program that assigned it."""
        value, owner = self.bindings.get(name, (None, None))
        if name not in self.bindings:
            return branches.Escaped(name, None)
        if owner is None or owner.is_open:
            return value
        return branches.Escaped(name, owner)

    def annotate(self, name: str, annotation: object, value: object) -> object:
        """``name: annotation``, a declaration of a parameter of the direct style."""
        return self.declare(name, self.builder.declaration(name, annotation, value))

    def typed(self, name: str, annotation: Callable[[], object], value: object) -> object:
        """``name: annotation = value``: converted where the annotation is a number type."""
        try:
            found = annotation()
        except NameError:
            found = None
        if isinstance(found, NumberType) and is_number(value) and not isinstance(value, MUTABLE):
            dtype = found.record
            value = Scalar(as_expr(value, dtype), getattr(value, "frame", None))
        elif isinstance(found, NumberType) and found.lanes > 1:
            value = vector_in(value, found.record)
        return self.assign(name, value)

    # Control flow -------------------------------------------------------------------------------

    def branch(self, test: object) -> branches.Branch:
        return branches.Branch(test)

    def matched(self, subject: object) -> object:
        """What ``match`` compares with patterns: Python does, so it knows the value."""
        if branches.is_symbolic(subject):
            raise UnsupportedStatement("`match` of a value of the program", "write `if`, `elif`, `else`")
        return subject

    def loop(self, iterable: Iterable[object], *names: str) -> branches.Loop:
        self.builder.pending_names = ()
        return branches.Loop(iterable, names)

    def while_loop(self, forever: bool) -> branches.WhileLoop:
        return branches.WhileLoop(forever)

    def enter(self, context: object, *names: str) -> Any:
        """What ``with`` enters: a part of the program, or a context manager of an author's own, which works while the
        kernel is traced."""
        if isinstance(context, branches.BlockContext):
            context.names = names
        elif not hasattr(type(context), "__exit__") or type(context).__module__ in sys.stdlib_module_names - OWN:
            raise UnsupportedContext(describe(context))
        return context

    def leaves(self, loop: branches.Loop | branches.WhileLoop, word: str) -> bool:
        """``break`` and ``continue``: True where Python's own loop is meant, else the statement is recorded."""
        if not loop.symbolic:
            if self.builder.frame.control is not loop.control:
                raise SymbolicExit(word, self.builder.frame.describe())
            return True
        branches.check_exit(self.builder, word)
        self.builder.append((ir.Break if word == "break" else ir.Continue)(span=statement_here()))
        return False

    def returns(self, value: object = None) -> bool:
        """``return``: True where the Python function is done, else the statement is recorded."""
        if self.builder.frame.control is self.base:
            return True
        where = self.builder.frame.control
        if value is not None or self.kind != "function" or self.builder.kernel is None:
            raise WrongReturn(
                "`return` of a value stands in " + (where.describe() if where else "control flow of the program"),
                "a macro or a kernel returns its value at its end; use T.if_then_else or T.alloc_var to choose one",
            )
        self.builder.append(ir.Return(span=statement_here()))
        return False

    def result(self, value: object) -> Any:
        """What ``return`` hands to the caller of a macro: values as they are now."""
        return value if self.kind == "function" else settle(value, self.result_name)

    def before_raise(self) -> None:
        """``raise`` is Python's: it may not depend on values of the program."""
        if self.builder.frame.control is not self.base:
            raise UnsupportedStatement(
                "`raise` under a symbolic condition", "write T.device_assert(condition, message)"
            )

    def check(self, test: object, message: Callable[[], object]) -> None:
        """``assert``: the program's on a symbolic condition, else Python's."""
        if branches.is_symbolic(test):
            text = message()
            self.builder.append(ir.Assert(condition(test), "" if text is None else str(text), span=statement_here()))
        elif not test:
            raise AssertionError(*([] if message() is None else [message()]))

    # Expressions --------------------------------------------------------------------------------

    def choose(self, test: object, then: Callable[[], object], otherwise: Callable[[], object]) -> object:
        """``then if test else otherwise``."""
        if not branches.is_symbolic(test):
            return then() if test else otherwise()
        return select(test, self._pure(then), self._pure(otherwise))

    def all_of(self, first: object, *others: Callable[[], object]) -> object:
        """``first and ...``."""
        return self._logical("all", True, first, others)

    def any_of(self, first: object, *others: Callable[[], object]) -> object:
        """``first or ...``."""
        return self._logical("any", False, first, others)

    def _logical(self, op: str, neutral: bool, value: object, others: tuple[Callable[[], object], ...]) -> object:
        for other in others:
            if not branches.is_symbolic(value):
                if bool(value) is not neutral:
                    return value
                value = other()
                continue
            right = self._pure(other)
            if not branches.is_symbolic(right):
                if bool(right) is neutral:
                    value = Scalar(condition(value), frame_of(value))
                    continue
                return Scalar(literal(not neutral, BOOL))
            deeper = frame_of(value, right)
            value = Scalar(ir.binary(op, condition(value), condition(right)), deeper)
        return value

    def negate(self, value: object) -> object:
        """``not value``."""
        if not branches.is_symbolic(value):
            return not value
        return Scalar(ir.Unary(BOOL, "not", condition(value)), value.frame)

    def chain(self, first: object, *links: tuple[str, Callable[[], object]]) -> object:
        """``a < b < c``, every operand evaluated once."""
        result: object = True
        left = first
        for op, operand in links:
            if not branches.is_symbolic(result) and not result:
                return result
            right = operand()
            link = COMPARE[op](left, right)
            result = self._logical("all", True, result, (functools.partial(_same, link),))
            left = right
        return result

    def _pure(self, operand: Callable[[], object]) -> object:
        """An operand that is evaluated only under a condition: it may not record statements."""
        before = len(self.builder.frame.statements)
        value = operand()
        if len(self.builder.frame.statements) != before:
            raise EffectInExpression("an operand that is evaluated only under a condition")
        return value

    def builtin(self, function: object) -> object:
        """The function to call for one of Python's built-in names."""
        return branches.BUILTINS.get(id(function), function)

    key = type("Key", (), {"__getitem__": staticmethod(lambda key: key)})()
    """``key[a:b, c]`` is the index that Python would pass."""


def settle(value: object, name: str) -> object:
    """`value` as it is now, to be called `name`: what loads or computes gets a `Let`, sequences element by element."""
    if isinstance(value, MUTABLE) and value.is_fresh:
        value.is_fresh = False
        return value
    if isinstance(value, Scalar):
        return _let(value, name)
    if isinstance(value, Vector):
        return kept(value, name)
    if type(value) is list:
        value[:] = [settle(item, f"{name}_{i}") for i, item in enumerate(value)]
    elif type(value) is tuple:
        return tuple(settle(item, f"{name}_{i}") for i, item in enumerate(value))
    return value


def _let(value: Scalar, name: str) -> Scalar:
    check_scope(value.frame)
    expr = value.expr
    if _stays_inline(expr):
        return Scalar(expr, value.frame) if isinstance(value, (Element, Variable)) else value
    builder = current("a value")
    var = ir.Var(expr.dtype, name)
    builder.append(ir.Let(var, expr, span=statement_here()))
    return Scalar(var, builder.frame)


def _same(value: object) -> object:
    return value


def _stays_inline(expr: ir.Expr) -> bool:
    if expr.dtype.is_float and not isinstance(expr, (ir.Const, ir.Var)):
        return False
    return _count(expr, INLINE_NODES) >= 0


def _count(expr: ir.Expr, left: int) -> int:
    """`left` less the nodes of `expr`; negative where it has too many or may change between two evaluations."""
    if isinstance(expr, (ir.Const, ir.Var)):
        return left - 1
    if isinstance(expr, (ir.Load, ir.Call)) or left <= 0:
        return -1
    for part in _PARTS[type(expr)](expr):
        left = _count(part, left)
        if left < 0:
            return -1
    return left - 1


_PARTS: dict[type[ir.Expr], Callable[[Any], tuple[ir.Expr, ...]]] = {
    ir.Binary: lambda e: (e.left, e.right),
    ir.Unary: lambda e: (e.value,),
    ir.Cast: lambda e: (e.value,),
    ir.Reinterpret: lambda e: (e.value,),
    ir.Broadcast: lambda e: (e.value,),
    ir.Select: lambda e: (e.condition, e.then, e.otherwise),
}
