"""Walking programs: what lies in a node, and what of some classes does."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

from tilewright.ir import nodes as ir

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


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


def variables(node: object) -> set[ir.Var]:
    """Every variable mentioned in `node`."""
    return set(find(node, ir.Var))


def bound_variables(node: object) -> set[ir.Var]:
    """Every variable that a statement at or below `node` binds."""
    bound = {one.var for one in find(node, ir.Let, ir.For, ir.Pipelined)}
    bound.update(var for one in find(node, ir.Parallel) for var in one.vars)
    bound.update(var for one in find(node, ir.Kernel) for var in (*one.block_vars, *one.thread_vars))
    return bound.union(one.index for one in find(node, ir.Role) if one.index is not None)


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
