"""`T.macro`: a helper whose body is traced into the caller, control flow on symbolic values included."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.language.mistakes import MacroExpected, TileExpected
from tilewright.language.proxies import Element, Scalar, Variable, describe
from tilewright.language.recording import current, expression_here, mismatch
from tilewright.language.rewriting import rewritten
from tilewright.language.scope import settle


class Ref:
    """Annotation of a macro's parameter that is passed by reference: assigning to it stores into the argument."""


class _IsVariable(type):
    """Lets a symbolic size be an instance of `Var`."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Scalar) and isinstance(value.expr, ir.Var)


class SizeVariable(Ref, metaclass=_IsVariable):
    """``T.Var``: what `isinstance` says of a size known only at launch; as the annotation of a macro's parameter,
    `Ref`."""


class Macro:
    """A function decorated with `T.macro`.

    Arguments are passed by value: what the caller changes later does not change them, and what the macro assigns
    stays inside.  A parameter annotated ``T.Ref`` takes a `T.alloc_var` or an element by reference.
    """

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._traced: FunctionType | None = None

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        builder = current(f"the macro {self.function.__name__}")
        problem = mismatch(self.function, arguments, keywords, self.function.__name__)
        if problem is not None:
            raise problem.at(expression_here())
        if self._traced is None:
            self._traced = rewritten(self.function, "macro")
        bound = inspect.signature(self.function).bind(*arguments, **keywords)
        references = self._references()
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._by_reference(name, value) if name in references else settle(value, name)
        names = builder.pending_names
        builder.result_name = names[0] if names else f"{self.function.__name__}_result"
        builder.pending_names = ()
        result = self._traced(*bound.args, **bound.kwargs)
        builder.pending_names = names
        return result

    def __get__(self, instance: object, owner: type | None = None) -> object:
        return self if instance is None else MethodType(self, instance)

    def _references(self) -> set[str]:
        annotations = self.function.__annotations__
        return {
            name
            for name, annotation in annotations.items()
            if annotation in (Ref, SizeVariable)
            or (isinstance(annotation, str) and annotation.split(".")[-1] in ("Ref", "Var"))
        }

    def _by_reference(self, name: str, value: object) -> Variable:
        if isinstance(value, Variable):
            return value
        if isinstance(value, Element):
            return Variable(value.buffer, value.indices, value.frame)
        raise TileExpected(f"the T.Ref parameter {name!r}", describe(value), "a T.alloc_var or an element such as A[i]")


def macro(func: Callable[..., object] | None = None) -> Any:
    """Decorator: a helper that is traced into its callers.

    Undecorated helpers may be called too; they are ordinary Python and cannot branch on symbolic values.

    Parameters
    ----------
    func : a Python function; without one, a decorator.

    Raises
    ------
    MacroExpected : what is decorated is no Python function.

    Examples
    --------
    >>> @T.macro
    ... def twice(a, c):
    ...     for y, x in T.Parallel(64, 64):
    ...         c[y, x] = 2 * a[y, x]
    >>> twice(A, C)
    """
    if func is None:
        return macro
    if not isinstance(func, FunctionType):
        raise MacroExpected(describe(func))
    return Macro(func)


inline = macro
