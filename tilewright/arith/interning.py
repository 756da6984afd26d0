"""Unique expressions: structurally equal nodes become one object, so that equality is identity.

A table also remembers, for each atom that is an operation on indices, its operands in canonical form, and
gives every atom a *text* by which terms are ordered, so that results do not depend on what was asked before.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

from tilewright.arith.linear import Linear
from tilewright.ir import Binary, Buffer, Call, Cast, Const, DType, Expr, Load, Record, Region, Select, Unary, Var
from tilewright.ir.walking import children, fields_of, find

Name: TypeAlias = "Var | Buffer | str"
"""What facts can be about: variables, what buffers hold, what functions give."""

_NOTHING: frozenset[Name] = frozenset()


class _Shape:
    """The structure of an expression, as an object of its own."""

    __slots__ = ()


class Interner:
    """The unique expressions of one analyzer."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, Expr] = {}
        self._binaries: dict[tuple[str, Expr, Expr], Binary] = {}
        self._literals: dict[Hashable, Const] = {}
        self._rank: dict[Expr, int] = {}
        self._text: dict[Expr, str] = {}
        self._variables: dict[Expr, frozenset[Var]] = {}
        self._names: dict[Record, frozenset[Name]] = {}
        self._shapes: dict[object, Hashable] = {}
        self._numbers: dict[Hashable, Hashable] = {}
        self.operands: dict[Expr, tuple[Linear, Linear]] = {}
        """Canonical operands of the atoms that are binary operations on indices."""
        self.forms: dict[Expr, Linear] = {}
        """Linear forms of the expressions that were made from one."""

    def node(self, cls: type, dtype: DType, *fields: Any) -> Any:
        """The unique node of `cls` with these fields, whose expressions are unique already."""
        if cls is Binary:
            return self.binary(dtype, *fields)
        key = (cls, dtype.name, dtype.lanes, *map(_field_key, fields))
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = cls(dtype, *fields)
        return found

    def binary(self, dtype: DType, op: str, left: Expr, right: Expr) -> Binary:
        key = (op, left, right)  # the operands decide the type
        found = self._binaries.get(key)
        if found is None:
            found = self._binaries[key] = Binary(dtype, op, left, right)
        return found

    def literal(self, dtype: DType, value: int | float | bool) -> Const:
        # repr tells -0.0 from 0.0, and a NaN equals itself in it
        key = (dtype.name, dtype.lanes, value if dtype.kind != "float" else repr(value))
        found = self._literals.get(key)
        if found is None:
            found = self._literals[key] = Const(dtype, value)
        return found

    def rank(self, atom: Expr) -> int:
        """The place of an atom in products."""
        found = self._rank.get(atom)
        if found is None:
            found = self._rank[atom] = len(self._rank)
        return found

    def variables(self, expr: Expr) -> frozenset[Var]:
        """The variables that a unique expression mentions."""
        found = self._variables.get(expr)
        if found is None:
            found = self._variables[expr] = frozenset(node for node in find(expr, Var))
        return found

    def names(self, node: Record) -> frozenset[Name]:
        """What an expression mentions that facts can be about: mostly what its parts do, which are known already."""
        if isinstance(node, Const):
            return _NOTHING
        found = self._names.get(node)
        if found is None:
            found = frozenset((node,)) if isinstance(node, (Var, Buffer)) else _NOTHING
            for part in () if isinstance(node, Buffer) else children(node):
                of_part = self.names(part)
                if not of_part <= found:
                    found = found | of_part if found else of_part
            if isinstance(node, Call):
                found |= {node.function}
            self._names[node] = found
        return found

    def shape(self, value: object) -> Hashable:
        """Something short that expressions of one structure share; variables and buffers are compared by identity."""
        if not isinstance(value, (Expr, Region, tuple)) or isinstance(value, Var):
            return value
        found = self._shapes.get(value)
        if found is None:
            if isinstance(value, tuple):
                key: Hashable = tuple(map(self.shape, value))
            elif isinstance(value, Const):
                return (value.dtype.name, value.dtype.lanes, type(value.value), repr(value.value))
            else:
                parts = (self.shape(getattr(value, name)) for name in fields_of(type(value)))
                kind = (value.dtype.name, value.dtype.lanes) if isinstance(value, Expr) else None
                key = (type(value), kind, *parts)
            found = self._numbers.setdefault(key, _Shape())
            if not isinstance(value, tuple):
                self._shapes[value] = found
        return found

    def text(self, expr: Expr) -> str:
        """What orders terms: the expression, spelt out."""
        found = self._text.get(expr)
        if found is None:
            found = self._text[expr] = _spell(self, expr)
        return found


def _field_key(value: object) -> Hashable:
    if isinstance(value, Region):
        return (value.buffer, *map(_field_key, value.starts), *map(_field_key, value.extents))
    if isinstance(value, tuple):
        return tuple(map(_field_key, value))
    return value


def _spell(table: Interner, expr: Expr) -> str:
    match expr:
        case Var():
            return expr.name
        case Const():
            return str(expr.value)
        case Binary():
            return f"({table.text(expr.left)} {expr.op} {table.text(expr.right)})"
        case Unary():
            return f"{expr.op}({table.text(expr.value)})"
        case Cast():
            return f"{expr.dtype}({table.text(expr.value)})"
        case Select():
            parts = (expr.condition, expr.then, expr.otherwise)
            return f"select({', '.join(map(table.text, parts))})"
        case Load():
            return f"{expr.buffer.name}[{', '.join(map(table.text, expr.indices))}]"
        case Call():
            return f"{expr.function}({_spell_field(table, expr.arguments)})"
    parts_of = (_spell_field(table, getattr(expr, name)) for name in fields_of(type(expr)))
    return f"{type(expr).__name__}({', '.join(parts_of)})"


def _spell_field(table: Interner, value: object) -> str:
    if isinstance(value, Expr):
        return table.text(value)
    if isinstance(value, Buffer):
        return value.name
    if isinstance(value, Region):
        return f"{value.buffer.name}[{_spell_field(table, value.starts)}:{_spell_field(table, value.extents)}]"
    if isinstance(value, tuple):
        return ", ".join(_spell_field(table, item) for item in value)
    return str(value)
