"""Values that programs hold but the IR does not define, and how their printed text is read back.

Layouts, number formats and other records stand in fields of statements.  The printer writes them as Python
expressions; the room that owns such a class registers here how the parser gets the value back.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

LITERALS: dict[str, Callable[[str], object]] = {}
"""For the name that a value's text starts with: the function that reads the whole text."""

RECORDS: dict[str, type] = {}
"""Frozen dataclasses and enumerations that print and parse field by field."""


def register_literal(name: str, parse: Callable[[str], object]) -> None:
    """Let programs hold values whose ``str()`` is a Python expression that starts with `name`.

    Parameters
    ----------
    name : the first identifier of the text: ``"fragment"`` for ``fragment(...)`` or ``fragment.row(...)``.
    parse : the text to an equal value.
    """
    LITERALS[name] = parse


def register_record(cls: Class) -> Class:
    """Class decorator: a frozen dataclass prints as ``Name(field=value, ...)``, an enumeration as ``Name.MEMBER``."""
    RECORDS[cls.__name__] = cls
    return cls


def is_record(value: object) -> bool:
    """Whether `value` is of a registered record class."""
    return RECORDS.get(type(value).__name__) is type(value)


def record_fields(value: Any) -> list[tuple[str, object]]:
    """The fields of a dataclass that are printed and differ from their defaults, with their values, in order."""
    found = []
    for field in dataclasses.fields(value):
        if not field.metadata.get("printed", True):
            continue
        held: object = getattr(value, field.name)
        if field.metadata.get("spread"):
            found += record_fields(held)
            continue
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if default is dataclasses.MISSING or not _equal(held, default):
            found.append((field.name, held))
    return found


def shown_fields(cls: Any) -> dict[str, tuple[str, type] | None]:
    """The words by which programs show what a dataclass holds; for those of a record that it spreads (see
    `nodes.SPREAD`) the name of its field and its class."""
    shown: dict[str, tuple[str, type] | None] = {}
    for one in dataclasses.fields(cls):
        if one.metadata.get("spread"):
            shown |= dict.fromkeys(shown_fields(type(one.default)), (one.name, type(one.default)))
        elif one.metadata.get("printed", True) and one.name != "span":
            shown[one.name] = None
    return shown


def _equal(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def is_enumeration(value: object) -> bool:
    return isinstance(value, enum.Enum)
