"""Loops, branches and blocks whose nature is decided while the rewritten function runs."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeGuard, TypeVar

from tilewright.ir import BOOL, Break, Const, If, Seq, Statement, Unary, While
from tilewright.language.mistakes import LoopOutsideKernel, SymbolicIteration
from tilewright.language.mistakes_of_scopes import EscapedName, LoopExit
from tilewright.language.proxies import Scalar, condition, describe
from tilewright.language.recording import Builder, Frame, current, statement_here
from tilewright.language.tensor_proxies import TensorProxy


class LoopContext:
    """Base of what ``for`` of the program iterates over; `loops.py` has the kinds."""

    word = "range"

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        """Open the loop, yield its variables once, close it."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise LoopOutsideKernel(self.word)


class BlockContext:
    """Base of what ``with`` accepts: `T.Kernel` and its like."""

    names: tuple[str, ...] = ()

    def __enter__(self) -> object:
        raise NotImplementedError

    def __exit__(self, *exception: object) -> None:
        raise NotImplementedError


class Escaped:
    """Takes the place of a value whose loop or branch has ended; whatever is done with it is an error."""

    def __init__(self, name: str, frame: Frame | None) -> None:
        self.__dict__["_why"] = (
            name,
            frame.describe() if frame else "a loop or branch that was not taken while tracing",
        )

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise EscapedName(*self.__dict__["_why"])


_OPERATIONS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs invert and "
    "rand or ror xor rxor lshift rlshift rshift rrshift eq ne lt le gt ge bool index int float iter hash len "
    "getitem setitem getattr setattr call enter exit"
)
for _name in _OPERATIONS.split():
    setattr(Escaped, f"__{_name}__", Escaped._fail)


class Branch:
    """An ``if`` whose condition is decided while the function runs."""

    def __init__(self, test: object) -> None:
        self.symbolic = is_symbolic(test)
        self.test = test
        if self.symbolic:
            self.condition = condition(test)
            self.span = statement_here()
            self.builder = current("if")

    def then(self) -> bool:
        if not self.symbolic:
            return bool(self.test)
        self.frame = self.builder.push("if", self.span)
        return True

    def otherwise(self) -> bool:
        if not self.symbolic:
            return not self.test
        self.taken = self.builder.pop(self.frame)
        self.frame = self.builder.push("if", self.span)
        return True

    def close(self) -> None:
        if self.symbolic:
            other = self.builder.pop(self.frame)
            self.builder.append(If(self.condition, self.taken, other if other.statements else None, span=self.span))


class Loop:
    """A ``for``: one of the program's loops, or Python's own over an ordinary iterable."""

    def __init__(self, iterable: Iterable[object], names: tuple[str, ...]) -> None:
        self.symbolic = isinstance(iterable, LoopContext)
        self.iterable, self.names = iterable, names
        if not self.symbolic and isinstance(iterable, (Scalar, TensorProxy)):
            raise SymbolicIteration(describe(iterable))

    def __iter__(self) -> Iterator[Any]:
        builder = current("for")
        if not isinstance(self.iterable, LoopContext):
            self.control = builder.frame.control
            yield from self.iterable
            return
        for value in self.iterable.iterate(self.names):
            self.control = builder.frame.control
            builder.frame.indices = value if isinstance(value, tuple) else (value,)
            yield value


class WhileLoop:
    """A ``while`` whose condition is decided while the function runs."""

    def __init__(self, forever: bool) -> None:
        self.symbolic = False
        self.forever = forever
        self.builder = current("while")
        self.span = statement_here()
        self.recorded = -1

    def again(self) -> bool:
        """Whether to evaluate the condition (once more): a loop of the program does so only once."""
        if self.symbolic:
            body = self.builder.pop(self.frame)
            self.builder.append(While(self.condition, body, span=self.span))
            return False
        self.recorded = len(self.builder.frame.statements)
        return True

    def test(self, value: object) -> bool:
        self.symbolic = is_symbolic(value) or (self.forever and self.builder.kernel is not None)
        self.control = self.builder.frame.control
        if not self.symbolic:
            return bool(value)
        self.condition = condition(value)
        statements = self.builder.frame.statements
        effects, statements[self.recorded :] = statements[self.recorded :], []
        self.frame = self.builder.push("while", self.span)
        self.control = self.frame
        if effects:
            self._begin_with(effects)
        return True

    def _begin_with(self, effects: list[Statement]) -> None:
        """A condition that has effects (an atomic load of a flag) is statements that every iteration begins with."""
        leave = If(Unary(BOOL, "not", self.condition), Seq((Break(span=self.span),)), None, span=self.span)
        self.frame.statements += [*effects, leave]
        self.condition = Const(BOOL, True)


F = TypeVar("F", bound=Callable[..., object])

BUILTINS: dict[int, Callable[..., Any]] = {}
"""Stand-ins for built-in functions that can act on symbolic values; filled by `math`, `annotations`, `loops`."""


def stand_in(name: str) -> Callable[[F], F]:
    """Decorator: the function takes the place of a built-in in rewritten code."""

    def register(function: F) -> F:
        BUILTINS[id(getattr(builtins, name))] = function
        return function

    return register


def check_exit(builder: Builder, word: str) -> None:
    """Refuse ``break`` and ``continue`` where iterations have no order, or where there is no loop."""
    loop = builder.enclosing("for", "while", "T.Parallel", "T.vectorized", "T.Pipelined", "T.unroll")
    if loop is None or loop.kind not in ("for", "while"):
        raise LoopExit(word, "a block" if loop is None else loop.kind)


def is_symbolic(value: object) -> TypeGuard[Scalar]:
    """Whether the truth of a value is known only where the program runs."""
    if isinstance(value, TensorProxy):
        bool(value)
    return isinstance(value, Scalar) and value.known() is None
