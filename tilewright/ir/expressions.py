"""Expressions: constants, variables, operators, loads.

What they mean is said in `nodes`, which publishes everything here beside the statements.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tilewright.generated import made_function
from tilewright.ir import dtypes
from tilewright.ir.dtypes import BOOL, DType

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from tilewright.ir.regions import Buffer, Region
else:

    def dataclass_transform(**_: object) -> object:  # typing.dataclass_transform arrived with Python 3.11
        return lambda decorator: decorator


N = TypeVar("N")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: type[N]) -> type[N]:
    """Decorator of every IR class: an immutable record compared by identity."""
    made = dataclass(frozen=True, slots=True, eq=False, init=False)(cls)
    names = tuple(one.name for one in fields(made))  # type: ignore[arg-type]
    made.__init__ = _initialiser(made)  # type: ignore[assignment, method-assign]

    # Programs are read from disk whenever a kernel starts; the dataclass's own methods look its fields up each time.
    def state(self: object) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in names])

    def restore(self: object, values: tuple[object, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    made.__getstate__, made.__setstate__ = state, restore  # type: ignore[attr-defined]
    return made


def _initialiser(cls: type) -> object:
    """A constructor that sets slots: passes make nodes by the thousand, and a frozen dataclass takes half as long
    again."""
    known: dict[str, object] = {}
    places, named, body = ["self"], ["*"], []
    for one in fields(cls):
        known |= {f"set_{one.name}": getattr(cls, one.name).__set__, f"default_{one.name}": one.default}
        parameter = one.name if one.default is MISSING else f"{one.name}=default_{one.name}"
        (named if one.kw_only else places).append(parameter)
        body.append(f"set_{one.name}(self, {one.name})")
    body.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "return")
    return made_function("__init__", places + named * (len(named) > 1), body, known)


class Record:
    """Base of all IR classes: room for what a traversal finds directly below a node, the kinds of nodes anywhere below
    it, and where the verifier found nothing wrong with it."""

    __slots__ = ("below", "kinds", "sound")

    below: tuple[Record, ...]
    kinds: int
    sound: object


# Expressions ------------------------------------------------------------------------------------

Sign: TypeAlias = "Callable[[Expr, Extent], Expr]"


def _sign(op: str) -> tuple[Sign, Sign]:
    """The methods of one of Python's signs: with the expression on its left, and on its right."""
    return lambda one, other: index_binary(op, one, other), lambda one, other: index_binary(op, other, one)


@node
class Expr(Record):
    """A scalar value (a short vector in thread programs); of whole numbers Python's signs make sums and products.

    Examples
    --------
    >>> thread = Var(dtypes.INT32, "thread")
    >>> made = thread // 32 * 4 + 1
    >>> made.op, made.left.op, made.right.value
    ('add', 'mul', 1)
    """

    dtype: DType

    __add__, __radd__ = _sign("add")
    __sub__, __rsub__ = _sign("sub")
    __mul__, __rmul__ = _sign("mul")
    __floordiv__, __rfloordiv__ = _sign("floordiv")
    __mod__, _ = _sign("floormod")


@node
class Const(Expr):
    """A literal.  `value` is a Python int, float or bool in the range of the dtype."""

    value: int | float | bool


@node
class Var(Expr):
    """A named immutable scalar: a loop variable, a `Let`, a size known at launch, a scalar parameter."""

    name: str


@node
class Binary(Expr):
    """``left op right``; the operators are the keys of `BINARY`."""

    op: str
    left: Expr
    right: Expr


@node
class Unary(Expr):
    """``neg``, ``not`` (bool) or ``invert`` (bitwise)."""

    op: str
    value: Expr


@node
class Cast(Expr):
    """`value` converted to `dtype`."""

    value: Expr


@node
class Reinterpret(Expr):
    """The bits of `value` read as `dtype` of the same width."""

    value: Expr


@node
class Select(Expr):
    """``then if condition else otherwise``; only the branch taken is evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr


@node
class Call(Expr):
    """A function of the table in `intrinsics`, by name."""

    function: str
    arguments: tuple[Expr | str | Region, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The arguments that are expressions."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Expr))

    @property
    def regions(self) -> tuple[Region, ...]:
        """The arguments that are places in memory."""
        return tuple(argument for argument in self.arguments if not isinstance(argument, (Expr, str)))


@node
class Load(Expr):
    """An element of a buffer; with ``dtype.lanes`` > 1, that many consecutive ones along the last dimension."""

    buffer: Buffer
    indices: tuple[Expr, ...]


@node
class Broadcast(Expr):
    """One scalar in every lane of ``dtype.lanes``."""

    value: Expr


@node
class TensorMap(Expr):
    """What the copy engine knows of a global tensor: the box of it that one copy moves, and how rows are permuted.

    A handle (of type uint64) that only the functions of the copy engine take; the host program makes it.

    Attributes
    ----------
    box : extents, outermost first like the tensor's; of elements that share bytes the last one, and coordinates along
        it, count bytes.
    swizzle : bytes within which 16-byte chunks are permuted; 0 for none.
    """

    tensor: Buffer
    box: tuple[int, ...]
    swizzle: int = 0


BINARY: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "min": "min", "max": "max", "all": "and", "any": "or",
}  # fmt: skip
"""Binary operators and their spelling in printed programs.  ``all``/``any`` are the lazy logical ones."""

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
OPPOSITE: Mapping[str, str] = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
"""What holds exactly where a comparison of integers does not."""

LOGICAL = frozenset({"all", "any"})


Extent: TypeAlias = "int | Expr"
"""A size: a Python int where it is known, else an integer expression.  Tiles have known sizes."""


# Construction -----------------------------------------------------------------------------------


def const(value: int | float | bool, dtype: DType | None = None) -> Const:
    """A literal; the dtype defaults to int32 (int64 where it does not fit), float32 or bool."""
    if dtype is None:
        if isinstance(value, bool):
            dtype = BOOL
        elif isinstance(value, int):
            dtype = dtypes.INT32 if -(1 << 31) <= value < 1 << 31 else dtypes.INT64
        else:
            dtype = dtypes.FLOAT32
    return Const(dtype, value)


def expr(value: Extent | float | bool) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else const(value)


def is_literal(value: Extent | None, number: int) -> bool:
    """Whether a value, where there is one, is known to be this number."""
    return bool((value.value if isinstance(value, Const) else value) == number)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """``left op right`` with the result's dtype filled in; operands must already agree.

    Two literals of an integer type fold, and so do ``x + 0``, ``x * 1`` and ``x * 0`` on integers, so that
    passes may build indices carelessly; everything else is the simplifier's.
    """
    folded = _fold(op, left, right)
    if folded is not None:
        return folded
    return Binary(result_dtype(op, left.dtype), op, left, right)


def result_dtype(op: str, operand: DType) -> DType:
    """The dtype of ``x op y`` for operands of one dtype."""
    return BOOL.with_lanes(operand.lanes) if op in COMPARISONS or op in LOGICAL else operand


def _fold(op: str, left: Expr, right: Expr) -> Expr | None:
    if not left.dtype.is_integer or left.dtype.lanes != 1:
        return None
    a = left.value if isinstance(left, Const) else None
    b = right.value if isinstance(right, Const) else None
    if a is not None and b is not None and op in _INTEGER_FOLDS:
        if op in ("floordiv", "floormod") and b == 0:
            return None
        value = _INTEGER_FOLDS[op](a, b)
        if left.dtype.minimum <= value <= left.dtype.maximum:
            return Const(left.dtype, value)
        return None
    if b == 0 and op in ("add", "sub", "or", "xor", "shl", "shr"):
        return left
    if a == 0 and op in ("add", "or", "xor"):
        return right
    if (b == 1 and op in ("mul", "floordiv")) or (b == 0 and op == "mul" and a == 0):
        return left
    if a == 1 and op == "mul":
        return right
    if (a == 0 or b == 0) and op == "mul":
        return Const(left.dtype, 0)
    return None


_INTEGER_FOLDS: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "min": min, "max": max,
}  # fmt: skip


def index_binary(op: str, left: Extent, right: Extent) -> Expr:
    """`binary` on index values of possibly different integer types: the narrower is widened."""
    a, b = expr(left), expr(right)
    if a.dtype is not b.dtype and a.dtype != b.dtype:
        wide = a.dtype if a.dtype.bits >= b.dtype.bits else b.dtype
        a, b = cast(a, wide), cast(b, wide)
    return binary(op, a, b)


def product(extents: Iterable[Extent]) -> Extent:
    """The product of sizes, an int where all are known."""
    return functools.reduce(operator.mul, extents, 1)


def row_major_strides(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """Elements between neighbours along each dimension, where the last one's lie side by side."""
    return tuple(product(shape[:axis:-1]) for axis in range(len(shape)))


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` as `dtype`; literals of integer types are converted at once."""
    if value.dtype == dtype:
        return value
    integers = dtype.is_integer and value.dtype.is_integer
    if isinstance(value, Const) and integers and dtype.minimum <= value.value <= dtype.maximum:
        return Const(dtype, value.value)
    return Cast(dtype, value)


def load(buffer: Buffer, *indices: Extent) -> Load:
    return Load(buffer.dtype, buffer, tuple(expr(index) for index in indices))
