"""Expressions, regions and other values as Python text.

The text is a Python expression with Python's precedence.  A literal is bare where its dtype follows from its
place (its neighbour's, or int32, float32, bool); else the dtype is written: ``float16(1.0)``.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.errors import InternalError
from tilewright.ir import dtypes
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, INT64, DType, dtype
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.literals import is_enumeration, is_record, record_fields
from tilewright.ir.regions import known_extent
from tilewright.ir.structure import same
from tilewright.ir.visitor import method_of

RESERVED = frozenset({*keyword.kwlist, "inf", "nan", *dtypes.ALL})
"""Words that mean something where a variable could stand."""

_VECTOR_DTYPE = re.compile(rf"({'|'.join(dtypes.ALL)})x\d+")


class Names:
    """Names of variables and buffers, scope by scope.

    A name is free again where the scope of its owner ends.  What is mentioned without being declared (in an
    invalid program) gets a name of its own for good.
    """

    def __init__(self) -> None:
        self._of: dict[ir.Var | ir.Buffer, str] = {}
        self._taken: set[str] = set()
        self._declared: list[list[ir.Var | ir.Buffer]] = [[]]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names declared inside are forgotten at the end."""
        self._declared.append([])
        yield
        for owner in self._declared.pop():
            self._taken.discard(self._of.pop(owner, ""))

    def declare(self, owner: ir.Var | ir.Buffer) -> str:
        """A fresh name for `owner` in the current scope; the one it has where it is in scope already."""
        if owner not in self._of:
            self._assign(owner)
            self._declared[-1].append(owner)
        return self._of[owner]

    def __call__(self, owner: ir.Var | ir.Buffer) -> str:
        """The name of `owner`."""
        if owner not in self._of:
            self._assign(owner)
        return self._of[owner]

    def _assign(self, owner: ir.Var | ir.Buffer) -> None:
        wanted = re.sub(r"\W", "_", owner.name) or "_"
        if not wanted.isidentifier():
            wanted = f"_{wanted}"
        name, count = wanted, 0
        while name in self._taken or name in RESERVED or _VECTOR_DTYPE.fullmatch(name):
            count += 1
            name = f"{wanted}_{count}"
        self._of[owner] = name
        self._taken.add(name)


PRECEDENCE = {
    "any": 2, "all": 3, "not": 4,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), 5),
    "or": 6, "xor": 7, "and": 8, "shl": 9, "shr": 9, "add": 10, "sub": 10,
    **dict.fromkeys(("mul", "div", "floordiv", "floormod"), 11),
    "neg": 12, "invert": 12,
}  # fmt: skip
TERNARY, UNARY, ATOM = 1, 12, 13

FUNCTION_WORDS = frozenset({"min", "max", "neg", "reinterpret", "broadcast", "call", "buffer"})
"""Function names of the text form itself; an intrinsic of the same name prints as ``call("name", ...)``."""


def literal_dtype(value: int | float | bool, expected: DType | None) -> DType:
    """The dtype of a bare literal in a place where `expected` is expected (None: nothing is)."""
    if isinstance(value, bool):
        return dtype("bool")
    if expected is not None and expected.lanes == 1:
        if isinstance(value, float) and expected.is_float:
            return expected
        if isinstance(value, int) and expected.is_integer and expected.minimum <= value <= expected.maximum:
            return expected
    if isinstance(value, float):
        return dtype("float32")
    return INT32 if INT32.minimum <= value <= INT32.maximum else INT64


def number_text(value: int | float | bool) -> str:
    """An exact literal: ``repr`` for ints, bools and finite floats, ``inf`` and ``nan`` otherwise."""
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else str(value)


def quoted(text: str) -> str:
    """A string literal, in double quotes where it holds none."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown.startswith("'") and '"' not in text else shown


def literal(const: ir.Const) -> int | float | bool:
    """The constant's value in the Python type of its dtype."""
    if const.dtype.kind == "bool":
        return bool(const.value)
    return float(const.value) if const.dtype.is_float else const.value


def call_dtype(arguments: Sequence[object]) -> DType:
    """The dtype that a call has unless it says so: its first argument's, int32 without arguments."""
    return next((a.dtype for a in arguments if isinstance(a, (ir.Expr, ir.Region))), INT32)


def pilot_dtype(arguments: Sequence[object]) -> DType | None:
    """The dtype that bare literals among a call's arguments take: that of the first other expression."""
    return next((a.dtype for a in arguments if isinstance(a, ir.Expr) and not isinstance(a, ir.Const)), None)


class ExpressionText:
    """Prints expressions with the names of one program."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def __call__(self, value: ir.Expr, expected: DType | None = None) -> str:
        """The text of `value` where a value of `expected` is expected."""
        return self._at(value, 0, expected)

    def extent(self, extent: ir.Extent) -> str:
        return str(extent) if isinstance(extent, int) else self(extent)

    def group(self, items: Sequence[str]) -> str:
        """A tuple of texts."""
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def _at(self, value: ir.Expr, level: int, expected: DType | None = None) -> str:
        """The text of `value`, in parentheses where it binds less tightly than `level`."""
        text, binding = self._render(value, expected)
        return f"({text})" if binding < level else text

    def _render(self, value: ir.Expr, expected: DType | None) -> tuple[str, int]:
        if isinstance(value, ir.Const):
            return self._const(value, expected)
        renderer = method_of(ExpressionText, "render_", type(value))
        if renderer is None:
            raise InternalError(f"no printed form for the expression {type(value).__name__}")
        rendered: tuple[str, int] = renderer(self, value)
        return rendered

    def _const(self, const: ir.Const, expected: DType | None) -> tuple[str, int]:
        value = literal(const)
        if literal_dtype(value, expected) != const.dtype:
            return self.explicit(const), ATOM
        text = number_text(value)
        return text, UNARY if text.startswith("-") else ATOM

    def explicit(self, const: ir.Const) -> str:
        """A constant with its dtype."""
        return f"{const.dtype}({number_text(literal(const))})"

    def render_Var(self, var: ir.Var) -> tuple[str, int]:
        return self.names(var), ATOM

    def _pair(self, left: ir.Expr, right: ir.Expr) -> tuple[DType | None, DType | None]:
        """What is expected of two operands of one dtype: a literal takes the other's, unless both are constants."""
        if isinstance(left, ir.Const) and isinstance(right, ir.Const):
            return None, None
        return right.dtype, left.dtype

    def render_Binary(self, node: ir.Binary) -> tuple[str, int]:
        for_left, for_right = self._pair(node.left, node.right)
        if node.op in ("min", "max"):
            return f"{node.op}({self(node.left, for_left)}, {self(node.right, for_right)})", ATOM
        level = PRECEDENCE[node.op]
        left = self._at(node.left, level + (node.op in ir.COMPARISONS), for_left)
        return f"{left} {ir.BINARY[node.op]} {self._at(node.right, level + 1, for_right)}", level

    def render_Unary(self, node: ir.Unary) -> tuple[str, int]:
        if node.op == "neg" and isinstance(node.value, ir.Const):
            return f"neg({self(node.value)})", ATOM
        sign = {"neg": "-", "not": "not ", "invert": "~"}[node.op]
        level = PRECEDENCE[node.op]
        return sign + self._at(node.value, level), level

    def render_Cast(self, node: ir.Cast) -> tuple[str, int]:
        inner = self.explicit(node.value) if isinstance(node.value, ir.Const) else self(node.value)
        return f"{node.dtype}({inner})", ATOM

    def render_Reinterpret(self, node: ir.Reinterpret) -> tuple[str, int]:
        return f"reinterpret({node.dtype}, {self(node.value)})", ATOM

    def render_Select(self, node: ir.Select) -> tuple[str, int]:
        for_then, for_otherwise = self._pair(node.then, node.otherwise)
        then = self._at(node.then, TERNARY + 1, for_then)
        condition = self._at(node.condition, TERNARY + 1)
        return f"{then} if {condition} else {self._at(node.otherwise, TERNARY, for_otherwise)}", TERNARY

    def render_Call(self, node: ir.Call) -> tuple[str, int]:
        expected = pilot_dtype(node.arguments)
        arguments = [self._argument(argument, expected) for argument in node.arguments]
        if node.dtype != call_dtype(node.arguments):
            arguments.append(f"dtype={node.dtype}")
        plain = node.function in INTRINSICS and node.function not in FUNCTION_WORDS
        plain = plain and node.function not in ir.TILE_OPERATORS
        plain = plain and all(part.isidentifier() for part in node.function.split("."))
        if plain:
            return f"{node.function}({', '.join(arguments)})", ATOM
        return f"call({', '.join([quoted(node.function), *arguments])})", ATOM

    def _argument(self, argument: Any, expected: DType | None) -> str:
        if isinstance(argument, str):
            return quoted(argument)
        return self.region(argument) if isinstance(argument, ir.Region) else self(argument, expected)

    def render_Load(self, node: ir.Load) -> tuple[str, int]:
        return self.element(node.buffer, node.indices, node.dtype), ATOM

    def render_Broadcast(self, node: ir.Broadcast) -> tuple[str, int]:
        return f"broadcast({self(node.value)}, {node.dtype.lanes})", ATOM

    def render_TensorMap(self, node: ir.TensorMap) -> tuple[str, int]:
        box = self.group([str(extent) for extent in node.box])
        return f"tensor_map({self.names(node.tensor)}, box={box}, swizzle={node.swizzle})", ATOM

    def element(self, buffer: ir.Buffer, indices: Sequence[ir.Expr], of: DType) -> str:
        """``buffer[indices]``, with ``.x4`` behind it where four elements are meant."""
        text = f"{self.names(buffer)}[{', '.join(self(index) for index in indices) or '()'}]"
        if of == buffer.dtype:
            return text
        return f"{text}.x{of.lanes}" if of.scalar == buffer.dtype.scalar else f"{text}.{of}"

    def region(self, region: ir.Region) -> str:
        """``A`` for all of a buffer, else ``A[start : +extent, ...]`` with one index for an extent of one."""
        name = self.names(region.buffer)
        rank = len(region.starts)
        full = [self._is_full(region, d) for d in range(rank)]
        if all(full) and rank == region.buffer.rank:
            return name
        parts = [":" if full[d] else self._slice(region, d) for d in range(rank)]
        if not any(":" in part for part in parts):  # else it would read as one element
            parts[-1] += " : +1"
        return f"{name}[{', '.join(parts)}]"

    def _is_full(self, region: ir.Region, dimension: int) -> bool:
        start, extent = region.starts[dimension], known_extent(region.extents[dimension])
        if (
            dimension >= region.buffer.rank
            or not isinstance(start, ir.Const)
            or start.dtype != INT32
            or start.value != 0
        ):
            return False
        return same(extent, known_extent(region.buffer.shape[dimension]))

    def _slice(self, region: ir.Region, dimension: int) -> str:
        start, extent = region.starts[dimension], known_extent(region.extents[dimension])
        if extent == 1 and isinstance(extent, int):
            return self._at(start, TERNARY)
        size = str(extent) if isinstance(extent, int) else self._at(extent, UNARY)
        return f"{self(start)} : +{size}"

    def value(self, value: Any) -> str:
        """Any field of a statement: constants of the IR carry their dtype, plain Python numbers stand bare."""
        if isinstance(value, ir.Const):
            return self.explicit(value)
        if isinstance(value, ir.Expr):
            return self(value)
        if is_enumeration(value):
            return f"{type(value).__name__}.{value.name}"
        if is_record(value):
            fields = (f"{name}={self.value(held)}" for name, held in record_fields(value))
            return f"{type(value).__name__}({', '.join(fields)})"
        printer = _VALUES.get(type(value))
        return printer(self, value) if printer is not None else str(value)

    def _dict(self, value: dict[object, object]) -> str:
        return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items()) + "}"


_VALUES: dict[type, Callable[[ExpressionText, Any], str]] = {
    int: lambda text, value: number_text(value),
    float: lambda text, value: number_text(value),
    str: lambda text, value: quoted(value),
    ir.Region: lambda text, value: text.region(value),
    ir.Buffer: lambda text, value: f"buffer({text.names(value)})",
    tuple: lambda text, value: text.group([text.value(item) for item in value]),
    list: lambda text, value: f"[{', '.join(text.value(item) for item in value)}]",
    dict: ExpressionText._dict,
}
