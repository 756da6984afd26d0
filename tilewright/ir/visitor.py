"""Rebuilding programs.

Dispatch is by node class through dictionaries made from ``visit_<Class>`` methods; the default visits
everything.  A rewrite that changes nothing returns the very node it was given, so ``is`` tells whether a
pass did anything.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

from tilewright.ir import nodes as ir
from tilewright.ir.walking import _BITS, _KINDS, _LEAF, _NODE, _PARTS, _SEQ, _all_fields, _kind_of, _kinds, _parts_of

T = TypeVar("T")

Rewritten: TypeAlias = "ir.Statement | Sequence[ir.Statement] | None"
"""What may stand in a statement's place: another, several, or nothing."""


@contextmanager
def having(owner: object, **values: object) -> Iterator[None]:
    """Inside, attributes of an object have other values: what holds while a part of a program is visited."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    yield
    for name, value in before.items():
        setattr(owner, name, value)


_METHODS: dict[tuple[type, str, type], Callable[..., Any] | None] = {}


def method_of(owner: type, prefix: str, cls: type) -> Callable[..., Any] | None:
    """The method of `owner` that is named after a class, or the nearest of its bases, behind a prefix; None where there
    is none."""
    key = owner, prefix, cls
    if key not in _METHODS:
        names = (f"{prefix}{base.__name__}" for base in cls.__mro__)
        _METHODS[key] = next((getattr(owner, name) for name in names if hasattr(owner, name)), None)
    return _METHODS[key]


class Rewriter:
    """Rebuilds a program bottom-up; subclasses define ``visit_<Class>(self, node)`` for what they change.

    A method that wants the children rewritten first calls ``self.generic(node)``.  A statement method may
    return None (drop it) or a list (put several in its place).  Buffers and variables are replaced through
    `map_buffer` and `map_var`.  Parts of a program that hold nothing for which there is a method are not visited.

    Attributes
    ----------
    alone_nothing : names of classes whose methods, as inherited, do nothing where nothing below is for another method.
    """

    alone_nothing: ClassVar[frozenset[str]] = frozenset()
    _methods: dict[type, Callable[[object, object], object] | None]
    _wanted: dict[int, int]

    def __init_subclass__(cls) -> None:
        cls._methods, cls._wanted = {}, {}

    @classmethod
    def _mask(cls) -> int:
        """The bits of the classes of nodes that have a method of their own, as far as any have been met."""
        known = dict(_BITS)
        mask = sum(bit for kind, bit in known.items() if cls._has_method(kind))
        cls._wanted[len(known)] = mask
        return mask

    @classmethod
    def _has_method(cls, kind: type) -> bool:
        name = next((base.__name__ for base in kind.__mro__ if hasattr(cls, f"visit_{base.__name__}")), None)
        if name is None:
            return False
        owner = next(base for base in cls.__mro__ if f"visit_{name}" in base.__dict__)
        if owner is Rewriter:
            mapped = {"Var": "map_var", "Buffer": "map_buffer"}.get(name)
            return mapped is not None and getattr(cls, mapped) is not getattr(Rewriter, mapped)
        return not (name in cls.alone_nothing and "alone_nothing" in owner.__dict__)

    def __call__(self, node: T) -> T:
        result: Any = self.visit(node)
        if isinstance(node, ir.Seq) and not isinstance(result, ir.Seq):
            result = ir.Seq(tuple(listed(result)), span=node.span)
        return result

    @overload
    def visit(self, node: ir.Expr) -> ir.Expr: ...
    @overload
    def visit(self, node: ir.Statement) -> Rewritten: ...
    @overload
    def visit(self, node: T) -> T: ...
    def visit(self, node: Any) -> Any:  # said by the overloads
        try:
            held = node.kinds
        except AttributeError:
            held = _kinds(node)
        wanted = self._wanted.get(len(_BITS))
        if not held & (self._mask() if wanted is None else wanted):
            return node
        cls = type(node)
        if cls not in self._methods:
            self._methods[cls] = method_of(type(self), "visit_", cls)
        method = self._methods[cls]
        return self.generic(node) if method is None else method(self, node)

    def visit_Buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        return self.map_buffer(buffer)

    def visit_Var(self, var: ir.Var) -> ir.Expr:
        return self.map_var(var)

    def visit_Const(self, const: ir.Const) -> ir.Expr:
        return const

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        """The buffer to put in place of `buffer`."""
        return buffer

    def map_var(self, var: ir.Var) -> ir.Expr:
        """The expression to put in place of a use of `var`; where `var` is bound, this must be a Var."""
        return var

    def generic(self, node: T) -> T:
        """`node` with its children rewritten; the same object where none changed."""
        changes: dict[str, object] = {}
        cls: type = type(node)
        for name in _PARTS[cls] if cls in _PARTS else _parts_of(cls):
            old = getattr(node, name)
            kind = _KINDS.get(type(old)) or _kind_of(type(old))
            if kind != _LEAF:
                new = self.visit(old) if kind == _NODE else self(old) if kind == _SEQ else self._tuple(old)
                if new is not old:
                    changes[name] = new
        if not changes:
            return node
        return cls(**{name: changes[name] if name in changes else getattr(node, name) for name in _all_fields(cls)})

    def _tuple(self, value: tuple[Any, ...]) -> tuple[object, ...]:
        statements = bool(value) and isinstance(value[0], ir.Statement)
        items: list[object] = []
        changed = False
        for item in value:
            kind = _KINDS.get(type(item)) or _kind_of(type(item))
            if kind == _LEAF:
                items.append(item)
                continue
            new = self.visit(item) if kind == _NODE else self(item) if kind == _SEQ else self._tuple(item)
            if statements and (new is None or isinstance(new, list)):
                items.extend(listed(new))
                changed = True
            else:
                items.append(new)
                changed = changed or new is not item
        return tuple(items) if changed else value


Rewriter._methods, Rewriter._wanted = {}, {}


def with_statements(body: ir.Seq, made: Sequence[ir.Statement]) -> ir.Seq:
    """A sequence of other statements; the very one where they are its own."""
    same = len(made) == len(body.statements) and all(map(lambda a, b: a is b, made, body.statements))
    return body if same else dataclasses.replace(body, statements=tuple(made))


def listed(made: Rewritten) -> list[ir.Statement]:
    """What stands in a statement's place, as a list."""
    if made is None:
        return []
    return [made] if isinstance(made, ir.Statement) else [one for part in made for one in listed(part)]


S = TypeVar("S", bound=ir.Statement)

Change: TypeAlias = Callable[[Any], object]
"""A function of a node of the class that is asked for, which gives what stands in its place."""


class _Changing(Rewriter):
    def __init__(self, by: Change) -> None:
        self.by = by

    def change(self, node: ir.Record) -> object:
        made = self.by(node)
        return self.generic(node) if made is node else made


@functools.cache
def _changing(classes: tuple[type, ...]) -> type[_Changing]:
    return type("_Changing", (_Changing,), {f"visit_{one.__name__}": _Changing.change for one in classes})


def changed(node: T, *classes: type, by: Change) -> T:
    """`node` with nodes of some classes changed by a function, which gives what stands in the place of one.

    Where it gives the node itself, that stays, and its parts are looked at.
    """
    made: T = _changing(classes)(by)(node)
    return made


def put(node: T, places: Mapping[S, Rewritten]) -> T:
    """`node` with other statements in the places of some; None drops one."""
    classes = sorted({type(one) for one in places}, key=lambda cls: cls.__name__)
    return changed(node, *classes, by=lambda one: places.get(one, one)) if places else node


def without_tiles(node: T, unused: Collection[ir.Buffer]) -> T:
    """`node` without the declarations of some buffers, a kernel also without their layouts."""
    node = changed(node, ir.Allocate, by=lambda one: None if one.buffer in unused else one)
    if not isinstance(node, ir.Kernel):
        return node
    return dataclasses.replace(node, layouts=tuple(pair for pair in node.layouts if pair[0] not in unused))
