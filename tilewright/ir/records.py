"""Programs as JSON: a table in which each node, each tuple and each plain value stands once, behind what it is made of.

An entry is a plain value (a string, a number, a truth, None) or a list: the number of a class among `Table.classes`,
then the numbers of the entries that are its fields. What compares by identity (nodes) has an entry for each object,
what compares by value an entry for each value; so a program read back shares what it shared, and equal programs have
equal tables in every process.

A table may go on from another: what the passes made of a function is written behind the function itself, and mentions
its variables by their numbers. Reading makes records of this package and nothing else: no code runs that a file could
choose.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.ir.dtypes import DType, of_lanes

_PACKAGE = __name__.partition(".")[0] + "."
_SCALARS: frozenset[type] = frozenset({str, int, bool, float, type(None)})
_COLLECTIONS: dict[type, str] = {tuple: "tuple", list: "list", frozenset: "frozenset", dict: "dict", DType: "dtype"}
_NAME_OF = "function"
"""Class of what has only a name: functions, which a key may mention and a file may not."""


class Unwritable(TilewrightError):
    """A value that is no record of this package, and so has no form on disk."""


class Unreadable(TilewrightError):
    """A text that no table wrote."""


class Table:
    """Values by number.

    Attributes
    ----------
    values : what was added or read.
    entries : what JSON says of each.
    classes : names of the classes that entries mention: of a collection, or module and name of a record.
    """

    def __init__(self) -> None:
        self.values: list[object] = []
        self.entries: list[Any] = []
        self.classes: list[str] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        self._contents: dict[object, int] = {}
        self._class_numbers: dict[str, int] = {}

    def add(self, value: Any) -> int:  # any field's value
        """The number of a value, which is added with all that it is made of.  Raises Unwritable."""
        found = self._numbers.get(id(value))
        if found is not None:
            return found
        cls: Any = type(value)
        entry: Any
        content: Any
        if cls in _SCALARS:
            entry, content = value, (cls, value.hex() if cls is float else value)
        else:
            name, parts, is_node = _taken_apart(cls)
            entry = [self._class_number(name), *map(self.add, parts(value))]
            content = None if is_node else tuple(entry)
        number = None if content is None else self._contents.get(content)
        if number is None:
            number = len(self.values)
            self.values.append(value)
            self.entries.append(entry)
            if content is not None:
                self._contents[content] = number
        self._numbers[id(value)] = number
        self._alive.append(value)  # an identity that is looked up must not become another's
        return number

    def _class_number(self, name: str) -> int:
        number = self._class_numbers.setdefault(name, len(self.classes))
        if number == len(self.classes):
            self.classes.append(name)
        return number

    def text(self, value: int, behind: int = 0) -> str:
        """JSON from which `read` makes the value of that number: the table, or its entries behind so many that the
        reader has."""
        return json.dumps([self.classes, behind, value, self.entries[behind:]], separators=(",", ":"))


def read(text: str, before: Sequence[object] = ()) -> Any:  # what was written
    """The value that a text was made for.

    Parameters
    ----------
    before : values of the table that the text goes on from.

    Raises
    ------
    Unreadable : the text is none of a table that goes on from that one.
    """
    try:
        classes, behind, wanted, entries = json.loads(text)
        if behind != len(before):
            raise Unreadable("a table that goes on from another one")
        makers = [_maker(name) for name in classes]
        values = list(before)
        for entry in entries:
            if type(entry) is list:
                values.append(makers[entry[0]]([values[number] for number in entry[1:]]))
            else:
                values.append(entry)
        return values[wanted]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Unreadable(f"no table of records: {error}") from None


@functools.cache
def _taken_apart(cls: Any) -> tuple[str, Callable[[Any], Any], bool]:
    """Of a class: its name, what gives its parts, and whether it compares by identity.  Raises Unwritable."""
    if cls in _COLLECTIONS:
        return _COLLECTIONS[cls], _PARTS.get(cls, tuple), False
    if cls is FunctionType:
        return _NAME_OF, _function_name, False
    if not _is_record(cls):
        raise Unwritable(f"{cls.__module__}.{cls.__qualname__} has no form on disk")
    names = [field.name for field in dataclasses.fields(cls)]
    # One name gives its value, several a tuple of them, in one call.
    parts: Any = (
        operator.attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]
    )
    return f"{cls.__module__}:{cls.__qualname__}", parts, cls.__eq__ is object.__eq__


def _is_record(cls: object) -> bool:
    """Whether a class is a dataclass of this package's, with a name by which it is found again."""
    return (
        isinstance(cls, type)
        and dataclasses.is_dataclass(cls)
        and cls.__module__.startswith(_PACKAGE)
        and "." not in cls.__qualname__
    )


def _function_name(function: FunctionType) -> tuple[str, ...]:
    """A function of this package that is found by its name; what it does is part of the package's state."""
    if not function.__module__.startswith(_PACKAGE) or "<" in function.__qualname__:
        raise Unwritable(f"the function {function.__qualname__} has no form on disk")
    return function.__module__, function.__qualname__


_PARTS: dict[type, Callable[[Any], Any]] = {
    frozenset: lambda value: sorted(value, key=repr),  # a set's order differs from process to process
    dict: lambda value: value.items(),
    DType: lambda value: (value.name, value.lanes),  # each is one object in a process
}


@functools.cache
def _maker(name: str) -> Callable[[list[object]], object]:
    """What makes a value of a class from its parts.  Raises Unreadable."""
    for cls, called in _COLLECTIONS.items():
        if name == called:
            return cls if cls is not DType else _number_type
    module, _, qualified = name.partition(":")
    if not module.startswith(_PACKAGE):
        raise Unreadable(f"{name!r} is no class of a record")
    try:
        record = getattr(importlib.import_module(module), qualified, None)
    except ImportError:
        record = None
    if not _is_record(record):
        raise Unreadable(f"{name!r} is no class of a record")
    return _restored(record)


def _number_type(parts: list[Any]) -> DType:  # as they were written
    return of_lanes(*parts)


def _restored(cls: Any) -> Callable[[list[Any]], Any]:
    """What was checked when it was made is not made again, but given its fields: through its slots, which is
    fastest."""
    names = [field.name for field in dataclasses.fields(cls)]
    slots: list[Any] = [getattr(cls, name, None) for name in names]
    setters = [
        slot.__set__ if hasattr(slot, "__set__") else functools.partial(_set, name)
        for name, slot in zip(names, slots, strict=True)
    ]
    new = object.__new__

    def make(parts: list[Any]) -> Any:
        made = new(cls)
        for setter, part in zip(setters, parts, strict=True):
            setter(made, part)
        return made

    return make


def _set(name: str, made: object, value: object) -> None:
    object.__setattr__(made, name, value)
