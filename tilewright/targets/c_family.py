"""Prints final programs as C-like text: statements, operators, names and comments that all C dialects share.

A target subclasses `CFamilyPrinter`, fills in a `Spellings` table and overrides the few methods whose text
differs (loads of vectors, casts, calls).  Names are the author's; every group of statements is preceded by
the line of the author's file that it came from.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

from tilewright.errors import InternalError, Span
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.texts import readable

PRIMARY, UNARY, TERNARY = 16, 14, 3

OPERATORS: Mapping[str, tuple[str, int]] = {
    "mul": ("*", 13), "div": ("/", 13), "floordiv": ("/", 13), "floormod": ("%", 13),
    "add": ("+", 12), "sub": ("-", 12), "shl": ("<<", 11), "shr": (">>", 11),
    "lt": ("<", 10), "le": ("<=", 10), "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9),
    "and": ("&", 8), "xor": ("^", 7), "or": ("|", 6), "all": ("&&", 5), "any": ("||", 4),
}  # fmt: skip
"""C's spelling and precedence of the binary operators that are operators in C."""

_BITS = frozenset({"and", "or", "xor", "shl", "shr"})
"""Operators whose operands keep their parentheses even where C needs none, since readers do."""


@dataclass(frozen=True, slots=True)
class Text:
    """Printed expression with the precedence of its outermost operator."""

    text: str
    precedence: int = PRIMARY
    op: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Spellings:
    """What differs between C dialects, as data.

    Attributes
    ----------
    types : C type of a scalar value by dtype name.
    keywords : words that no variable may be called.
    unroll : the line before a loop that the compiler shall unroll.
    """

    types: Mapping[str, str]
    keywords: frozenset[str] = frozenset()
    unroll: str = "#pragma GCC unroll 16"


class Names:
    """One identifier for each variable and buffer: the author's name, numbered where two share it."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken: set[str] = set(reserved)
        self._names: dict[object, str] = {}

    def of(self, thing: ir.Var | ir.Buffer) -> str:
        if thing not in self._names:
            self._names[thing] = self.fresh(thing.name)
        return self._names[thing]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names given inside are free again at the end, as those of a block are in C."""
        taken = set(self._taken)
        yield
        self._taken = taken

    def fresh(self, wish: str) -> str:
        """A name nobody has yet, as near to `wish` as C allows."""
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wish) or "value"
        base = f"_{base}" if base[0].isdigit() else base
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


class CFamilyPrinter:
    """Prints one function body; `lines` collects the text."""

    _methods: ClassVar[dict[type, object]] = {}

    def __init_subclass__(cls) -> None:
        cls._methods = {}

    def __init__(self, spellings: Spellings, names: Names, indent: int = 1) -> None:
        self.spellings, self.names = spellings, names
        self.lines: list[str] = []
        self.depth = indent
        self._span: Span | None = None
        self.nonnegative: set[ir.Var] = set()
        """Variables that are known not to be negative."""

    def is_nonnegative(self, expr: ir.Expr) -> bool:
        """Whether an integer cannot be negative, by its structure alone: C then divides as we do."""
        if isinstance(expr, ir.Const):
            return expr.value >= 0
        if expr.dtype.kind == "uint":
            return True
        if isinstance(expr, ir.Var):
            return expr in self.nonnegative
        if isinstance(expr, ir.Binary):
            both = self.is_nonnegative(expr.left), self.is_nonnegative(expr.right)
            if expr.op in ("add", "mul", "floordiv", "shr", "and", "or", "xor", "min"):
                return all(both)
            return any(both) if expr.op == "max" else expr.op == "floormod" and both[1]
        if isinstance(expr, (ir.Cast, ir.Broadcast)):
            given = expr.value.dtype
            fits = given.kind == "int" or (given.kind == "uint" and given.bits < expr.dtype.bits)
            return expr.dtype.is_integer and fits and self.is_nonnegative(expr.value)
        return False

    # Statements ---------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text if text else "")

    def block(self, head: str, body: ir.Statement, tail: str = "}") -> None:
        self.line(f"{head} {{" if head else "{")
        self._nested(body)
        self.line(tail)

    def statement(self, statement: ir.Statement) -> None:
        """Append the lines of `statement`."""
        if statement.span is not None and not isinstance(statement, ir.Seq):
            self.origin(statement.span)
        self._dispatch("statement", statement)(self, statement)

    def _dispatch(self, kind: str, node: ir.Record) -> Any:
        cls = type(node)
        if cls not in self._methods:
            name = next(
                (f"{kind}_{base.__name__}" for base in cls.__mro__ if hasattr(self, f"{kind}_{base.__name__}")), None
            )
            if name is None:
                raise InternalError(
                    f"{cls.__name__} cannot be printed as C; a pass should have lowered it",
                    span=getattr(node, "span", None),
                )
            self._methods[cls] = getattr(type(self), name)
        return self._methods[cls]

    def origin(self, span: Span) -> None:
        """A comment with the author's line, where it is another than the last one's."""
        if self._span is not None and (self._span.file, self._span.line) == (span.file, span.line):
            return
        self._span = span
        source = readable(linecache.getline(span.file, span.line).strip(), "\t").replace("*/", "* /").rstrip("\\")
        self.line(f"// {readable(PurePath(span.file).name, '')}:{span.line}" + (f": {source}" if source else ""))

    def statement_Seq(self, seq: ir.Seq) -> None:
        for statement in seq.statements:
            if isinstance(statement, ir.Seq) and statement.declares:
                self.block("", statement)
            else:
                self.statement(statement)

    def statement_Let(self, let: ir.Let) -> None:
        if let.var.dtype.is_integer and self.is_nonnegative(let.value):
            self.nonnegative.add(let.var)
        value = self.value(let.value)
        self.line(f"const {self.type_name(let.var.dtype)} {self.names.of(let.var)} = {value};")

    def statement_Evaluate(self, evaluate: ir.Evaluate) -> None:
        self.line(f"{self.value(evaluate.value)};")

    def statement_If(self, branch: ir.If) -> None:
        self.line(f"if ({self.value(branch.condition)}) {{")
        self._nested(branch.then)
        if branch.otherwise is not None and branch.otherwise.statements:
            self.line("} else {")
            self._nested(branch.otherwise)
        self.line("}")

    def _nested(self, body: ir.Statement) -> None:
        self.depth += 1
        with self.names.scope():
            self.statement(body)
        self.depth -= 1

    def statement_For(self, loop: ir.For) -> None:
        if self.is_nonnegative(loop.start):
            self.nonnegative.add(loop.var)
        if loop.kind == "unroll":
            self.lines.append("  " * self.depth + self.spellings.unroll)
        start, step = self.value(loop.start), self.expression(loop.step)
        stop = self.operand(self.expression(loop.stop), 10, "lt")
        with self.names.scope():
            name = self.names.of(loop.var)
            advance = f"{name}++" if step.text == "1" else f"{name} += {step}"
            self.block(
                f"for ({self.type_name(loop.var.dtype)} {name} = {start}; {name} < {stop}; {advance})", loop.body
            )

    def statement_While(self, loop: ir.While) -> None:
        self.block(f"while ({self.value(loop.condition)})", loop.body)

    def statement_Break(self, _: ir.Break) -> None:
        self.line("break;")

    def statement_Continue(self, _: ir.Continue) -> None:
        self.line("continue;")

    def statement_Assume(self, _: ir.Assume) -> None:
        """An assumption has done its work in the passes."""

    # Expressions --------------------------------------------------------------------------------

    def value(self, expr: ir.Expr) -> str:
        """`expr` where any expression may stand."""
        return self.expression(expr).text

    def expression(self, expr: ir.Expr) -> Text:
        """`expr` as C."""
        return self._dispatch("expression", expr)(self, expr)

    def operand(self, text: Text, precedence: int, op: str = "", right: bool = False) -> str:
        """`text` as an operand of an operator of this precedence, in parentheses only where they help."""
        if text.precedence >= UNARY:
            return text.text
        needed = text.precedence < precedence or (right and text.precedence == precedence)
        unclear = (op in _BITS and text.op != op) or (op == "any" and text.op == "all")
        return f"({text.text})" if needed or unclear else text.text

    def infix(self, op: str, left: Text, right: Text) -> Text:
        spelling, precedence = OPERATORS[op]
        a, b = self.operand(left, precedence, op), self.operand(right, precedence, op, right=True)
        return Text(f"{a} {spelling} {b}", precedence, op)

    def expression_Const(self, const: ir.Const) -> Text:
        return self.literal(const.value, const.dtype)

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        """A number of a dtype that C has."""
        if dtype.kind == "bool":
            return Text("true" if value else "false")
        if dtype.is_float:
            return float_literal(float(value), "f" if dtype.bits <= 32 else "")
        number = int(value)
        suffix = ("u" if dtype.kind == "uint" and dtype.bits >= 32 else "") + ("ll" if dtype.bits == 64 else "")
        if number == -(1 << 63):
            return Text("(-9223372036854775807ll - 1)")
        if number == -(1 << 31) and dtype.bits == 32:
            return Text("(-2147483647 - 1)")
        return Text(f"{number}{suffix}", UNARY if number < 0 else PRIMARY)

    def expression_Var(self, var: ir.Var) -> Text:
        return Text(self.names.of(var))

    def expression_Select(self, select: ir.Select) -> Text:
        condition, then, otherwise = map(self.expression, (select.condition, select.then, select.otherwise))
        parts = (
            self.operand(condition, TERNARY + 1, "?"),
            self.operand(then, TERNARY + 1, "?"),
            self.operand(otherwise, TERNARY, "?"),
        )
        return Text(f"{parts[0]} ? {parts[1]} : {parts[2]}", TERNARY, "?")

    def call(self, function: str, *arguments: Text | str) -> Text:
        return Text(f"{function}({', '.join(str(a) for a in arguments)})")

    def type_name(self, dtype: DType) -> str:
        """C type of a value of `dtype`."""
        return self.spellings.types[dtype.name]


def float_literal(value: float, suffix: str) -> Text:
    """A literal that reads back as exactly this number (rounded to float where the suffix is ``f``)."""
    if math.isnan(value):
        return Text("NAN")
    if math.isinf(value):
        return Text("INFINITY" if value > 0 else "-INFINITY", PRIMARY if value > 0 else UNARY)
    text = repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    return Text(text + suffix, UNARY if text.startswith("-") else PRIMARY)
