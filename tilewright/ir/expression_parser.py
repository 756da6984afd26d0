"""Reads expressions, regions and other values of printed programs back (see `expression_text`)."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, TypeVar

from tilewright.errors import ProgramSyntaxError, Span, near
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import ALL, DType, dtype
from tilewright.ir.expression_text import call_dtype, literal_dtype, pilot_dtype
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.literals import LITERALS, RECORDS, shown_fields
from tilewright.ir.printer import SCOPE_WORDS
from tilewright.ir.syntax import dotted, first_name, items
from tilewright.ir.visitor import method_of

OPERATORS: Mapping[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "floormod", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl",
    ast.RShift: "shr", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.And: "all", ast.Or: "any", ast.USub: "neg", ast.Not: "not", ast.Invert: "invert",
}  # fmt: skip
"""Operators by the nodes of Python's syntax that stand for them."""

SCOPES = {word: scope for scope, word in SCOPE_WORDS.items()}
"""Scopes of buffers by the words that make them."""

_FLOATS = {"inf": float("inf"), "nan": float("nan")}
_DTYPE = re.compile(rf"({'|'.join(ALL)})(x\d+)?")

T = TypeVar("T")


class ExpressionParser:
    """Turns Python syntax into IR, with the names in scope.

    Parameters
    ----------
    source : the whole text, for the values whose own rooms read them.
    file, first_line : where the text stands, for error messages.
    """

    def __init__(self, source: str, file: str, first_line: int) -> None:
        self.source, self.file, self.first_line = source, file, first_line
        self.scope: ChainMap[str, ir.Var | ir.Buffer] = ChainMap()
        self.read: set[ast.expr] = set()
        """The syntax that something was made of."""

    # Errors and names

    def span(self, node: ast.AST) -> Span:
        line: int = getattr(node, "lineno", 1)
        end = getattr(node, "end_col_offset", None) if getattr(node, "end_lineno", line) == line else None
        return Span(self.file, line + self.first_line - 1, getattr(node, "col_offset", 0), end)

    def fail(self, message: str, node: ast.AST, hint: str | None = None) -> ProgramSyntaxError:
        return ProgramSyntaxError(message, span=self.span(node), hint=hint)

    def lookup(self, node: ast.expr) -> ir.Var | ir.Buffer:
        """The variable or buffer that a name stands for."""
        self.read.add(node)
        if not isinstance(node, ast.Name):
            raise self.fail("expected a name", node)
        if node.id not in self.scope:
            raise self.fail(f"{node.id!r} is not in scope here", node, near(node.id, list(self.scope)) or None)
        return self.scope[node.id]

    def buffer(self, node: ast.expr) -> ir.Buffer:
        found = self.lookup(node)
        if not isinstance(found, ir.Buffer):
            raise self.fail(f"{found.name!r} is a variable; a buffer is expected", node)
        return found

    def dtype(self, node: ast.expr) -> DType:
        self.read.add(node)
        if isinstance(node, ast.Name) and _DTYPE.fullmatch(node.id):
            return dtype(node.id)
        raise self.fail("expected a dtype", node)

    def integer(self, node: ast.expr) -> int:
        value = self.number(node)
        if value is None or isinstance(value, (bool, float)):
            raise self.fail("expected an integer literal", node)
        return value

    # Numbers

    def number(self, node: ast.expr) -> int | float | bool | None:
        """The value of a bare literal, None for anything else."""
        self.read.add(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return node.value
        if isinstance(node, ast.Name) and node.id in _FLOATS:
            return _FLOATS[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.number(node.operand)
            return None if value is None or isinstance(value, bool) else -value
        return None

    def _constant(self, node: ast.expr) -> ir.Const | None:
        """A literal with its dtype, ``float16(1.0)``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _DTYPE.fullmatch(node.func.id):
            value = self.number(node.args[0]) if len(node.args) == 1 else None
            return None if value is None else ir.Const(dtype(node.func.id), value)
        return None

    def _is_constant(self, node: ast.expr) -> bool:
        return self.number(node) is not None or self._constant(node) is not None

    # Expressions

    def expression(self, node: ast.expr, expected: DType | None = None) -> ir.Expr:
        """The expression; `expected` gives a bare literal its dtype."""
        value = self.number(node)
        if value is not None:
            return ir.Const(literal_dtype(value, expected), value)
        reader = method_of(ExpressionParser, "read_", type(node))
        if reader is None:
            raise self.fail("this is not an expression of a program", node)
        made: ir.Expr = reader(self, node)
        return made

    def extent(self, node: ast.expr) -> ir.Extent:
        value = self.number(node)
        return value if isinstance(value, int) and not isinstance(value, bool) else self.expression(node)

    def _pair(self, left: ast.expr, right: ast.expr) -> tuple[ir.Expr, ir.Expr]:
        """Two operands of one dtype: a bare literal takes the other's, unless both are constants."""
        if self._is_constant(left) and not self._is_constant(right):
            second = self.expression(right)
            return self.expression(left, second.dtype), second
        first = self.expression(left)
        return first, self.expression(right, None if self._is_constant(left) else first.dtype)

    def _make(self, op: str, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        return ir.Binary(ir.result_dtype(op, left.dtype), op, left, right)

    def read_BinOp(self, node: ast.BinOp) -> ir.Expr:
        if type(node.op) not in OPERATORS:
            raise self.fail("no such operator", node)
        return self._make(OPERATORS[type(node.op)], *self._pair(node.left, node.right))

    def read_Compare(self, node: ast.Compare) -> ir.Expr:
        if len(node.ops) != 1 or type(node.ops[0]) not in OPERATORS:
            raise self.fail("a comparison has two sides", node, "join several with `and`")
        return self._make(OPERATORS[type(node.ops[0])], *self._pair(node.left, node.comparators[0]))

    def read_BoolOp(self, node: ast.BoolOp) -> ir.Expr:
        return reduce(partial(self._make, OPERATORS[type(node.op)]), map(self.expression, node.values))

    def read_UnaryOp(self, node: ast.UnaryOp) -> ir.Expr:
        if type(node.op) not in OPERATORS:
            raise self.fail("no such operator", node)
        value = self.expression(node.operand)
        return ir.Unary(value.dtype, OPERATORS[type(node.op)], value)

    def read_IfExp(self, node: ast.IfExp) -> ir.Expr:
        then, otherwise = self._pair(node.body, node.orelse)
        return ir.Select(then.dtype, self.expression(node.test), then, otherwise)

    def read_Name(self, node: ast.Name) -> ir.Expr:
        found = self.lookup(node)
        if isinstance(found, ir.Buffer):
            raise self.fail(f"{found.name!r} is a buffer; an element of it is written with an index", node)
        return found

    def read_Subscript(self, node: ast.Subscript) -> ir.Expr:
        buffer = self.buffer(node.value)
        return ir.Load(buffer.dtype, buffer, self.indices(node.slice))

    def indices(self, node: ast.expr) -> tuple[ir.Expr, ...]:
        return tuple(self.expression(item) for item in items(node))

    def read_Attribute(self, node: ast.Attribute) -> ir.Expr:
        """``A[i].x4``: four elements from there on."""
        if not isinstance(node.value, ast.Subscript):
            raise self.fail("only elements of buffers have lanes", node)
        buffer = self.buffer(node.value.value)
        return ir.Load(self.lanes(node, buffer), buffer, self.indices(node.value.slice))

    def lanes(self, node: ast.Attribute, buffer: ir.Buffer) -> DType:
        if re.fullmatch(r"x\d+", node.attr):
            return buffer.dtype.with_lanes(int(node.attr[1:]))
        return dtype(node.attr)

    # Calls

    def read_Call(self, node: ast.Call) -> ir.Expr:
        name = dotted(node.func)
        if not name:
            raise self.fail("expected the name of a function", node)
        if _DTYPE.fullmatch(name):
            self._count(node, 1)
            constant = self._constant(node)
            return ir.Cast(dtype(name), self.expression(node.args[0])) if constant is None else constant
        if name in _FUNCTIONS:
            count, read = _FUNCTIONS[name]
            self._count(node, count)
            return read(self, node)
        if name == "call":
            return self._named_call(node)
        if name not in INTRINSICS:
            raise self.fail(f"no function {name!r}", node, near(name, list(INTRINSICS)) or None)
        return self._intrinsic(name, node.args, node)

    def _count(self, node: ast.Call, count: int) -> None:
        if len(node.args) != count:
            raise self.fail(f"expected {count} arguments, not {len(node.args)}", node)

    def _intrinsic(self, name: str, given: list[ast.expr], node: ast.Call) -> ir.Expr:
        pilot = pilot_dtype([None if self._is_plain(item) else self.argument(item, None) for item in given])
        arguments = tuple(self.argument(item, pilot) for item in given)
        result = next((self.dtype(word.value) for word in node.keywords if word.arg == "dtype"), call_dtype(arguments))
        return ir.Call(result, name, arguments)

    def _is_plain(self, node: ast.expr) -> bool:
        return self._is_constant(node) or (isinstance(node, ast.Constant) and isinstance(node.value, str))

    def argument(self, node: ast.expr, expected: DType | None) -> ir.Expr | str | ir.Region:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.read.add(node)
            return node.value
        region = self.try_region(node)
        return region if region is not None else self.expression(node, expected)

    def _named_call(self, node: ast.Call) -> ir.Expr:
        if not node.args or not isinstance(node.args[0], ast.Constant) or not isinstance(node.args[0].value, str):
            raise self.fail("call() begins with the function's name in quotes", node)
        self.read.add(node.args[0])
        return self._intrinsic(node.args[0].value, node.args[1:], node)

    def _extremum(self, node: ast.Call) -> ir.Expr:
        return self._make(dotted(node.func), *self._pair(*node.args))

    def _negation(self, node: ast.Call) -> ir.Expr:
        value = self.expression(node.args[0])
        return ir.Unary(value.dtype, "neg", value)

    def _reinterpret(self, node: ast.Call) -> ir.Expr:
        return ir.Reinterpret(self.dtype(node.args[0]), self.expression(node.args[1]))

    def _broadcast(self, node: ast.Call) -> ir.Expr:
        value = self.expression(node.args[0])
        return ir.Broadcast(value.dtype.with_lanes(self.integer(node.args[1])), value)

    def _tensor_map(self, node: ast.Call) -> ir.Expr:
        return self.construct(ir.TensorMap, node, self.words(node), dtype("uint64"), self.buffer(node.args[0]))

    # Regions and other values

    def try_region(self, node: ast.expr) -> ir.Region | None:
        """The region that `node` writes, None where it is something else."""
        if isinstance(node, ast.Name) and isinstance(self.scope.get(node.id), ir.Buffer):
            return ir.whole(self.buffer(node))
        if isinstance(node, ast.Subscript) and any(isinstance(item, ast.Slice) for item in items(node.slice)):
            return self._region(node)
        return None

    def _region(self, node: ast.Subscript) -> ir.Region:
        buffer = self.buffer(node.value)
        starts: list[ir.Expr] = []
        extents: list[ir.Extent] = []
        for dimension, item in enumerate(items(node.slice)):
            if not isinstance(item, ast.Slice):
                starts.append(self.expression(item))
                extents.append(1)
            elif item.lower is None and item.upper is None:
                if dimension >= buffer.rank:
                    raise self.fail(f"{buffer.name!r} has {buffer.rank} dimensions", node)
                starts.append(ir.const(0))
                extents.append(buffer.shape[dimension])
            elif isinstance(item.upper, ast.UnaryOp) and isinstance(item.upper.op, ast.UAdd):
                starts.append(ir.const(0) if item.lower is None else self.expression(item.lower))
                extents.append(self.extent(item.upper.operand))
            else:
                raise self.fail("a part of a buffer is written `start : +extent`", item)
        return ir.Region(buffer, tuple(starts), tuple(extents))

    def value(self, node: ast.expr) -> Any:
        """A field of a statement: region, expression, Python number, text, dtype, tuple, record, layout."""
        number = self.number(node)
        if number is not None:
            return number
        root = first_name(node)
        if root in RECORDS:
            return self._record(node, RECORDS[root])
        if root in LITERALS:
            self.read.update(one for one in ast.walk(node) if isinstance(one, ast.expr))
            return LITERALS[root](ast.get_source_segment(self.source, node) or "")
        reader = _VALUES.get(type(node))
        if reader is not None:
            return reader(self, node)
        if isinstance(node, ast.Call) and root == "buffer":
            return self.buffer(node.args[0])
        if isinstance(node, ast.Name) and _DTYPE.fullmatch(node.id):
            return dtype(node.id)
        region = self.try_region(node)
        return region if region is not None else self.expression(node)

    def _record(self, node: ast.expr, cls: type) -> object:
        if isinstance(node, ast.Attribute):
            return getattr(cls, node.attr)
        if not isinstance(node, ast.Call):
            raise self.fail(f"expected {cls.__name__}(...)", node)
        return self.construct(cls, node, self.words(node))

    def words(self, call: ast.Call) -> dict[str, object]:
        """The values of a call's keywords."""
        return {keyword.arg or "": self.value(keyword.value) for keyword in call.keywords}

    def construct(
        self, cls: Callable[..., T], call: ast.Call, fields: Mapping[str, object], *given: object, **own: object
    ) -> T:
        """A record of what a call's words say, beside what is `given` and its `own`."""
        known, name = shown_fields(cls), dotted(call.func)
        operands = f"its operands: {', '.join(known)}"
        for word in fields.keys() - known.keys():
            hint = near(word, list(known)) or operands
            raise self.fail(f"{name}: got an unexpected keyword argument {word!r}", call, hint)
        kinds = {one.name: {*re.findall(r"\w+", str(one.type))} for one in dataclasses.fields(cls)}  # type: ignore[arg-type]
        fields = {word: _as_declared(value, kinds.get(word, set())) for word, value in fields.items()}
        try:
            for place in filter(None, set(known.values())):
                own[place[0]] = place[1](**{word: value for word, value in fields.items() if known[word] == place})
            return cls(*given, **{word: value for word, value in fields.items() if known[word] is None}, **own)
        except TypeError as error:
            raise self.fail(f"{name}: {str(error).split('() ')[-1]}", call, operands) from None

    # Buffers

    def shaped_type(self, node: ast.expr) -> tuple[DType, tuple[ir.Extent, ...]]:
        """``dtype[shape]``."""
        if not isinstance(node, ast.Subscript):
            raise self.fail("expected `dtype[shape]`", node)
        return self.dtype(node.value), tuple(self.extent(item) for item in items(node.slice))

    def made_buffer(self, name: str, node: ast.expr) -> tuple[ir.Buffer, dict[str, ast.expr]] | None:
        """The buffer of ``shared(float16[8], ...)`` or ``view(A, float16[8])``, and the keywords left over."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return None
        word = node.func.id
        keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
        strided = keywords.pop("strides", None)
        self.read.update([] if strided is None else [strided])
        strides = None if strided is None else tuple(self.extent(item) for item in items(strided))
        if word == "view" and len(node.args) == 2:
            source = self.buffer(node.args[0])
            of, shape = self.shaped_type(node.args[1])
            return ir.Buffer(name, shape, of, source.scope, strides, source), keywords
        if word not in SCOPES or len(node.args) != 1:
            return None
        of, shape = self.shaped_type(node.args[0])
        source_name = keywords.pop("source", None)
        viewed = None if source_name is None else self.buffer(source_name)
        packed = bool(self.number(keywords.pop("packed", ast.Constant(False))))
        alignment = int(self.number(keywords.pop("alignment", ast.Constant(ir.GLOBAL_ALIGNMENT))) or 1)
        placed = bool(self.number(keywords.pop("placed", ast.Constant(False))))
        return ir.Buffer(name, shape, of, SCOPES[word], strides, viewed, packed, alignment, placed), keywords


def _as_declared(value: object, kinds: set[str]) -> object:
    """A bare literal as a constant, where a field holds expressions alone."""
    if isinstance(value, (bool, int, float)) and "Expr" in kinds <= {"ir", "Expr", "None"}:
        return ir.Const(literal_dtype(value, None), value)
    return value


_FUNCTIONS: dict[str, tuple[int, Callable[[ExpressionParser, ast.Call], ir.Expr]]] = {
    "min": (2, ExpressionParser._extremum),
    "max": (2, ExpressionParser._extremum),
    "neg": (1, ExpressionParser._negation),
    "reinterpret": (2, ExpressionParser._reinterpret),
    "broadcast": (2, ExpressionParser._broadcast),
    "tensor_map": (1, ExpressionParser._tensor_map),
}
"""Functions with readers of their own, and how many arguments they take."""

_VALUES: dict[type, Callable[[ExpressionParser, Any], Any]] = {
    ast.Constant: lambda parser, node: node.value,
    ast.Tuple: lambda parser, node: tuple(parser.value(item) for item in node.elts),
    ast.List: lambda parser, node: [parser.value(item) for item in node.elts],
    ast.Dict: lambda parser, node: {
        parser.value(key): parser.value(held) for key, held in zip(node.keys, node.values, strict=True)
    },
}
