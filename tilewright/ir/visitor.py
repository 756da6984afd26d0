"""Walking and rebuilding programs.

Dispatch is by node class through dictionaries made from ``visit_<Class>`` methods; the default visits
everything.  A rewrite that changes nothing returns the very node it was given, so ``is`` tells whether a
pass did anything.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

from tilewright.ir import nodes as ir

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

Rewritten: TypeAlias = "ir.Statement | Sequence[ir.Statement] | None"
"""What may stand in a statement's place: another, several, or nothing."""


_FIELDS: dict[type, tuple[str, ...]] = {}


def fields_of(cls: type) -> tuple[str, ...]:
    """Names of a node class's fields, ``span`` and ``dtype`` apart, in order."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(f.name for f in dataclasses.fields(cls) if f.name not in ("span", "dtype"))
    return _FIELDS[cls]


@functools.cache
def _all_fields(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.init)


_PARTS: dict[type, tuple[str, ...]] = {}


def _parts_of(cls: type) -> tuple[str, ...]:
    """Names of the fields in which nodes may lie: by its type no other holds any."""
    plain = {"str", "int", "bool", "float", "None", "tuple"}
    kinds = {f.name: set(re.findall(r"\w+", str(f.type))) for f in dataclasses.fields(cls)}
    _PARTS[cls] = tuple(name for name in fields_of(cls) if not kinds[name] <= plain)
    return _PARTS[cls]


_LEAF, _NODE, _SEQ, _TUPLE = 1, 2, 3, 4
"""What a field of a node holds, as far as traversal cares."""

_KINDS: dict[type, int] = {}


def _kind_of(cls: type) -> int:
    """The kind of a value's class, worked out once a class: traversal is where compiling spends its time."""
    if issubclass(cls, ir.Seq):
        kind = _SEQ
    elif issubclass(cls, (ir.Expr, ir.Statement, ir.Region, ir.Buffer, ir.Function)):
        kind = _NODE
    else:
        kind = _TUPLE if issubclass(cls, tuple) else _LEAF
    _KINDS[cls] = kind
    return kind


def children(node: Any) -> tuple[ir.Record, ...]:  # any field's value may be asked
    """Expressions, statements, regions and buffers directly under `node`, in order of evaluation."""
    try:
        return node.below
    except AttributeError:
        cls = type(node)
        if cls not in _BELOW:
            _BELOW[cls] = _below_of(cls)
        below = _BELOW[cls](node)
        _set_below(node, below)  # nodes never change, and passes share them
        return below


_set_below, _set_kinds = (vars(ir.Record)[name].__set__ for name in ("below", "kinds"))

_BELOW: dict[type, Callable[[Any], tuple[ir.Record, ...]]] = {}
"""What finds the nodes directly under one of a class."""


def _below_of(cls: type) -> Callable[[Any], tuple[ir.Record, ...]]:
    names = _PARTS[cls] if cls in _PARTS else _parts_of(cls)
    types = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    if not names:
        return lambda node: ()
    if all(types[name] == "Expr" for name in names):  # operators, most of a program: always nodes
        parts: Callable[[object], Any] = operator.attrgetter(*names)  # a tuple, or of one name what it has
        return parts if len(names) > 1 else lambda node: (parts(node),)

    def find_below(node: Any) -> tuple[ir.Record, ...]:
        found: list[ir.Record] = []
        _collect([getattr(node, name) for name in names], found)
        if isinstance(node, ir.Allocate) and node.buffer.placed:
            _collect((*node.buffer.shape, *(node.buffer.strides or ())), found)  # what the kernel works out there
        return tuple(found)

    return find_below


def _collect(values: Sequence[Any], found: list[ir.Record]) -> None:
    for value in values:
        kind = _KINDS.get(type(value)) or _kind_of(type(value))
        if kind == _TUPLE:
            _collect(value, found)
        elif kind != _LEAF:
            found.append(value)


def walk(node: object, enter: Callable[[ir.Record], bool] | None = None) -> Iterator[ir.Record]:
    """`node` and all below it, before their children.

    Buffers are yielded where they are mentioned, but their shapes are not entered.  `enter` says whether to
    go below a node.
    """
    waiting: list[Any] = [node]
    buffer = ir.Buffer
    while waiting:
        one = waiting.pop()
        yield one
        if type(one) is buffer or (enter is not None and not enter(one)):
            continue
        try:
            below = one.below
        except AttributeError:
            below = children(one)
        if below:
            waiting += below[::-1]


_BITS: dict[type, int] = {}
_MASKS: dict[tuple[Any, ...], int] = {}
_NEW_BIT = threading.Lock()


def _bit_of(cls: type) -> int:
    """One bit for each class of nodes that has been met."""
    with _NEW_BIT:
        if cls not in _BITS:
            _BITS[cls] = 1 << len(_BITS)
            _MASKS.clear()
        return _BITS[cls]


def _mask_of(classes: tuple[Any, ...]) -> int:
    with _NEW_BIT:
        mask = _MASKS[classes] = sum(bit for cls, bit in _BITS.items() if issubclass(cls, classes))
        return mask


def _kinds(node: Any) -> int:
    """The bits of the classes of a node and all below it, remembered in each."""
    try:
        return node.kinds
    except AttributeError:
        cls = type(node)
        kinds = _BITS.get(cls) or _bit_of(cls)
        if cls is not ir.Buffer:
            for child in children(node):
                try:
                    kinds |= child.kinds
                except AttributeError:
                    kinds |= _kinds(child)
        _set_kinds(node, kinds)
        return kinds


@overload
def find(node: object, first: type[A], /) -> Iterator[A]: ...
@overload
def find(node: object, first: type[A], second: type[B], /) -> Iterator[A | B]: ...
@overload
def find(node: object, first: type[A], second: type[B], third: type[C], /) -> Iterator[A | B | C]: ...
@overload
def find(node: object, *classes: object) -> Iterator[Any]: ...  # whatever fields the classes share
def find(node: object, *classes: object) -> Iterator[Any]:  # said by the overloads
    """What `walk` finds of some classes; parts of a program that hold none are passed over."""
    held = _kinds(node)
    mask = _MASKS.get(classes)
    if mask is None:
        mask = _mask_of(classes)
    if not held & mask:
        return
    waiting: list[Any] = [node]
    while waiting:
        one = waiting.pop()
        cls = type(one)
        if _BITS[cls] & mask:
            yield one
        if cls is not ir.Buffer and one.below:
            waiting += [child for child in one.below[::-1] if child.kinds & mask]


def holds(node: object, *classes: object) -> bool:
    """Whether `node` or something below it is of one of the classes."""
    held = _kinds(node)
    mask = _MASKS.get(classes)
    return bool(held & (_mask_of(classes) if mask is None else mask))


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


def variables(node: object) -> set[ir.Var]:
    """Every variable mentioned in `node`."""
    return set(find(node, ir.Var))


def buffers(node: object) -> set[ir.Buffer]:
    """Every buffer mentioned in `node`."""
    return set(find(node, ir.Buffer))


def declared(node: object, *scopes: str) -> list[ir.Buffer]:
    """The buffers of some scopes that are declared in `node` and own their memory, in order."""
    buffers = [one.buffer for one in find(node, ir.Allocate)]
    return [one for one in buffers if one.scope in scopes and one.source is None]


def kernels(function: ir.Function) -> list[ir.Kernel]:
    """The kernels of a host program, in order."""
    outside = walk(
        function, lambda node: isinstance(node, (ir.Function, ir.Statement)) and not isinstance(node, ir.Kernel)
    )
    return [found for found in outside if isinstance(found, ir.Kernel)]
