"""Stand-ins for scalars while a function is traced: their operators record expressions.

This is the one place in tilewright where ``==`` and its kin build nodes.  A value that is known (a Python
number, a `Scalar` around a literal) stays Python's; everything else must not be asked for its truth, its
integer or its hash, and says so when it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, FLOAT32, INT32, DType
from tilewright.ir.nodes import Buffer, Call, Cast, Const, Expr, Extent, Load, Select, Unary
from tilewright.language.builder import Frame, active
from tilewright.language.dtypes import NumberType, number_type
from tilewright.language.mistakes import (
    IntegerDivision,
    NumberExpected,
    SymbolicCondition,
    SymbolicConstant,
    SymbolicIteration,
    SymbolicKey,
    TensorOperand,
    ValueOutOfScope,
)
from tilewright.language.promotion import literal_dtype, promote

SPELLING = {**nodes.BINARY, "all": "and", "any": "or"}


class Scalar:
    """A value of the program: an expression, and the innermost statement list that it depends on."""

    __slots__ = ("_expr", "frame")

    def __init__(self, expr: Expr, frame: Frame | None = None) -> None:
        self._expr, self.frame = expr, frame

    @property
    def expr(self) -> Expr:
        """The expression, for use where the author stands now."""
        return self._expr

    @property
    def dtype(self) -> NumberType:
        return number_type(self._expr.dtype)

    @property
    def name(self) -> str:
        return getattr(self._expr, "name", "")

    def __repr__(self) -> str:
        return f"<symbolic {self._expr.dtype}{' ' + self.name if self.name else ''}>"

    # What Python may ask of a number, and cannot be told ------------------------------------------

    def known(self) -> bool | int | float | None:
        """The value, where it is a literal."""
        return self._expr.value if isinstance(self._expr, Const) else None

    def __bool__(self) -> bool:
        value = self.known()
        if value is None:
            raise SymbolicCondition()
        return bool(value)

    def __index__(self) -> int:
        value = self.known()
        if value is None or not isinstance(value, int):
            raise SymbolicConstant("an integer")
        return int(value)

    def __int__(self) -> int:
        value = self.known()
        if value is None:
            raise SymbolicConstant("Python's int()", "write T.cast(x, 'int32') for a conversion in the kernel")
        return int(value)

    def __float__(self) -> float:
        value = self.known()
        if value is None:
            raise SymbolicConstant("Python's float()", "write T.cast(x, 'float32') for a conversion in the kernel")
        return float(value)

    def __iter__(self) -> Any:
        raise SymbolicIteration("a scalar")

    def __hash__(self) -> int:
        raise SymbolicKey()

    def __getitem__(self, key: object) -> Any:
        raise TensorOperand("indexing", "a scalar", "only tensors and tiles have elements")

    # Arithmetic -----------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return combine("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return combine("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return combine("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return combine("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return combine("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return combine("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return floor_modulo(self, other)

    def __rmod__(self, other: Any) -> Any:
        return floor_modulo(other, self)

    def __divmod__(self, other: Any) -> Any:
        return floor_divide(self, other), floor_modulo(self, other)

    def __pow__(self, other: Any) -> Any:
        return power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return power(other, self)

    def __neg__(self) -> Any:
        return negative(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return absolute(self)

    # Bits -----------------------------------------------------------------------------------------

    def __and__(self, other: Any) -> Any:
        return bitwise("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return bitwise("and", other, self)

    def __or__(self, other: Any) -> Any:
        return bitwise("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return bitwise("or", other, self)

    def __xor__(self, other: Any) -> Any:
        return bitwise("xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return bitwise("xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return shift("shl", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return shift("shl", other, self)

    def __rshift__(self, other: Any) -> Any:
        return shift("shr", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return shift("shr", other, self)

    def __invert__(self) -> Any:
        operand = as_expr(self)
        op = "not" if operand.dtype == BOOL else "invert"
        if operand.dtype.is_float:
            raise NumberExpected("`~`", "an integer or a bool", describe(self))
        return Scalar(Unary(operand.dtype, op, operand), self.frame)

    # Comparisons ----------------------------------------------------------------------------------

    def __eq__(self, other: Any) -> Any:
        return combine("eq", self, other) if is_number(other) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return combine("ne", self, other) if is_number(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return combine("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return combine("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return combine("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return combine("ge", self, other)


class Variable(Scalar):
    """A mutable scalar (`T.alloc_var`), or an element taken by reference (`T.Ref`): reading it is a load."""

    __slots__ = ("buffer", "indices", "is_fresh")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], frame: Frame | None) -> None:
        super().__init__(Load(buffer.dtype, buffer, indices), frame)
        self.buffer, self.indices = buffer, indices
        self.is_fresh = True
        """No name has been given yet: the assignment that follows names it, later ones store into it."""

    @property
    def expr(self) -> Expr:
        return Load(self.buffer.dtype, self.buffer, self.indices)

    @property
    def name(self) -> str:
        return self.buffer.name

    def __getitem__(self, key: object) -> Any:
        if key == 0:
            return Scalar(self.expr, self.frame)
        return super().__getitem__(key)


class Element(Scalar):
    """``A[i, j]``: its value in an expression, its address where a tile operator wants one."""

    __slots__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], frame: Frame | None) -> None:
        super().__init__(Load(buffer.dtype, buffer, indices), frame)
        self.buffer, self.indices = buffer, indices


# From Python values to expressions ----------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a value can be an operand: a Python or NumPy number, or a `Scalar`."""
    return isinstance(value, (Scalar, bool, int, float, np.number, np.bool_))


def plain(value: Any) -> Any:
    """A NumPy scalar as Python's, everything else as it is."""
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def describe(value: object) -> str:
    """A value as error messages name it."""
    if isinstance(value, Scalar):
        return f"a symbolic {value.dtype}"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    name = type(value).__name__
    return getattr(value, "description", None) or f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_scope(frame: Frame | None) -> None:
    """Refuse what belongs to a loop, branch or kernel that has ended."""
    if frame is not None and not frame.is_open:
        raise ValueOutOfScope(frame.describe())


def as_expr(value: Any, dtype: DType | None = None, what: str = "this operand") -> Expr:
    """A number as an expression, of `dtype` where one is given (literals convert, values are cast)."""
    if isinstance(value, Scalar):
        check_scope(value.frame)
        found = value.expr
        return found if dtype is None else convert(found, dtype)
    value = plain(value)
    if not isinstance(value, (bool, int, float)):
        raise NumberExpected(what, "a number", describe(value))
    return literal(value, dtype or default_dtype(value))


def default_dtype(value: bool | int | float) -> DType:
    """The dtype of a Python number that stands alone."""
    return nodes.const(value).dtype


def literal(value: bool | int | float, dtype: DType) -> Expr:
    """A Python number as a literal of `dtype`, cast where the dtype cannot hold it."""
    if dtype.is_float:
        if literal_dtype(float(value), dtype) != dtype:
            return Cast(dtype, Const(FLOAT32, float(value)))
        return Const(dtype, float(value))
    if dtype == BOOL:
        return Const(BOOL, bool(value))
    if isinstance(value, float) and not value.is_integer():
        return Cast(dtype, Const(FLOAT32, value))
    number = int(value)
    if dtype.minimum <= number <= dtype.maximum:
        return Const(dtype, number)
    return Cast(dtype, nodes.const(number))


def convert(value: Expr, dtype: DType) -> Expr:
    """`value` as `dtype`; a literal is converted at once."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and dtype.lanes == 1:
        return literal(value.value, dtype)
    return nodes.cast(value, dtype)


def frame_of(*values: Any) -> Frame | None:
    """The deepest statement list that any of the values depends on."""
    deepest: Frame | None = None
    for value in values:
        frame = value.frame if isinstance(value, Scalar) else None
        if frame is not None and (deepest is None or frame.depth > deepest.depth):
            deepest = frame
    return deepest


def operands(what: str, left: Any, right: Any) -> tuple[Expr, Expr]:
    """Two numbers, at least one symbolic, as expressions of one dtype."""
    left, right = plain(left), plain(right)
    for value in (left, right):
        if not isinstance(value, (Scalar, bool, int, float)):
            raise TensorOperand(what, describe(value))
    if not isinstance(left, Scalar):
        b = as_expr(right)
        a = as_expr(left, literal_dtype(left, b.dtype))
    else:
        a = as_expr(left)
        b = as_expr(right) if isinstance(right, Scalar) else as_expr(right, literal_dtype(right, a.dtype))
    common = promote(a.dtype, b.dtype)
    return convert(a, common), convert(b, common)


# Operators ------------------------------------------------------------------------------------------


def combine(op: str, left: Any, right: Any) -> Any:
    """``left op right`` with promotion; arithmetic on two bools is done in int32."""
    a, b = operands(f"`{SPELLING[op]}`", left, right)
    if a.dtype == BOOL and op not in ("eq", "ne"):
        a, b = convert(a, INT32), convert(b, INT32)
    return Scalar(nodes.binary(op, a, b), frame_of(left, right))


def divide(left: Any, right: Any) -> Any:
    """``left / right``; an error on two integers, since the author may mean either division."""
    a, b = operands("`/`", left, right)
    if not a.dtype.is_float:
        raise IntegerDivision()
    return Scalar(nodes.binary("div", a, b), frame_of(left, right))


def floor_divide(left: Any, right: Any) -> Any:
    """``left // right``, rounding towards minus infinity on floats too."""
    a, b = operands("`//`", left, right)
    _refuse_zero("`//`", right)
    if a.dtype.is_float:
        return Scalar(Call(a.dtype, "floor", (nodes.binary("div", a, b),)), frame_of(left, right))
    return combine("floordiv", left, right)


def floor_modulo(left: Any, right: Any) -> Any:
    """``left % right`` with the sign of the divisor."""
    a, b = operands("`%`", left, right)
    _refuse_zero("`%`", right)
    if a.dtype.is_float:
        quotient = Call(a.dtype, "floor", (nodes.binary("div", a, b),))
        return Scalar(nodes.binary("sub", a, nodes.binary("mul", quotient, b)), frame_of(left, right))
    return combine("floormod", left, right)


def _refuse_zero(what: str, divisor: Any) -> None:
    value = divisor.known() if isinstance(divisor, Scalar) else divisor
    if value is not None and value == 0:
        raise NumberExpected(f"the divisor of {what}", "a number other than zero", "0")


def power(left: Any, right: Any) -> Any:
    """``left ** right``: multiplications for a small known exponent, else the function ``pow``."""
    exponent = right.known() if isinstance(right, Scalar) else plain(right)
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and 0 <= exponent <= 4:
        if exponent == 0:
            return Scalar(literal(1, as_expr(left).dtype))
        result = left
        for _ in range(int(exponent) - 1):
            result = combine("mul", result, left)
        return result
    a, b = operands("`**`", left, right)
    if not a.dtype.is_float:
        a, b = convert(a, FLOAT32), convert(b, FLOAT32)
    return Scalar(Call(a.dtype, "pow", (a, b)), frame_of(left, right))


def negative(value: Scalar) -> Scalar:
    operand = as_expr(value)
    if operand.dtype == BOOL:
        operand = convert(operand, INT32)
    if isinstance(operand, Const) and operand.dtype.minimum <= -operand.value <= operand.dtype.maximum:
        return Scalar(Const(operand.dtype, -operand.value), value.frame)
    if isinstance(operand, Const) and operand.dtype.is_float:
        return Scalar(Const(operand.dtype, -operand.value), value.frame)
    return Scalar(Unary(operand.dtype, "neg", operand), value.frame)


def absolute(value: Any) -> Any:
    if not isinstance(value, Scalar):
        return abs(value)
    operand = as_expr(value)
    if operand.dtype.kind == "uint" or operand.dtype == BOOL:
        return value
    return Scalar(Call(operand.dtype, "abs", (operand,)), value.frame)


def bitwise(op: str, left: Any, right: Any) -> Any:
    """``&``, ``|``, ``^`` on integers; on bools the logical operators."""
    a, b = operands(f"`{SPELLING[op]}`", left, right)
    if a.dtype.is_float:
        raise NumberExpected(f"`{SPELLING[op]}`", "integers or bools", f"operands that meet in {a.dtype}")
    if a.dtype == BOOL:
        op = {"and": "all", "or": "any", "xor": "ne"}[op]
    return Scalar(nodes.binary(op, a, b), frame_of(left, right))


def shift(op: str, left: Any, right: Any) -> Any:
    """``left << right`` and ``left >> right`` in the dtype of what is shifted."""
    if isinstance(left, Scalar):
        a = as_expr(left)
        b = as_expr(right, a.dtype, "the shift")
    else:
        b = as_expr(right)
        a = as_expr(left, literal_dtype(plain(left), b.dtype) if is_number(left) else None, "what is shifted")
        b = convert(b, a.dtype)
    if not (a.dtype.is_integer and b.dtype.is_integer):
        raise NumberExpected(f"`{SPELLING[op]}`", "integers", f"an operand of {a.dtype}")
    return Scalar(nodes.binary(op, a, b), frame_of(left, right))


def condition(value: Any) -> Expr:
    """The truth of a number, as a bool expression."""
    found = as_expr(value, what="a condition")
    return found if found.dtype == BOOL else nodes.binary("ne", found, literal(0, found.dtype))


def select(test: Scalar, then: Any, otherwise: Any) -> Any:
    """``then if test else otherwise`` on a symbolic test."""
    if isinstance(then, Scalar) or isinstance(otherwise, Scalar):
        a, b = operands("a choice", then, otherwise)
    else:
        a, b = as_expr(then, what="a choice"), as_expr(otherwise, what="a choice")
        common = promote(a.dtype, b.dtype)
        a, b = convert(a, common), convert(b, common)
    return Scalar(Select(a.dtype, condition(test), a, b), frame_of(test, then, otherwise))


def known_value(value: Any) -> Any:
    """A symbolic literal as the Python number it is; everything else unchanged."""
    if isinstance(value, Scalar):
        found = value.known()
        return value if found is None else found
    return plain(value)


def extent(value: Any, what: str) -> Extent:
    """A size: a Python int where it is known, else an integer expression.

    Raises
    ------
    NumberExpected : it is no integer.
    """
    value = known_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Scalar) and value.expr.dtype.is_integer:
        return as_expr(value)
    raise NumberExpected(what, "an integer", describe(value))


def constant(value: Any, what: str) -> int:
    """A size that must be known while the kernel is traced.

    Raises
    ------
    SymbolicConstant : it is symbolic.
    NumberExpected : it is no integer.
    """
    value = known_value(value)
    if isinstance(value, Scalar):
        raise SymbolicConstant(what)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NumberExpected(what, "an integer", describe(value))
    return value


def from_extent(size: Extent, frame: Frame | None = None) -> int | Scalar:
    """A size as authors see it."""
    return size if isinstance(size, int) else Scalar(size, frame)


def here(expr: Expr) -> Scalar:
    """A value that belongs to the innermost open statement list."""
    builder = active()
    return Scalar(expr, builder.frame if builder else None)


Operation = Callable[[Any, Any], Any]
COMPARE: dict[str, Operation] = {
    "Eq": lambda a, b: a == b, "NotEq": lambda a, b: a != b, "Lt": lambda a, b: a < b, "LtE": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b, "GtE": lambda a, b: a >= b, "Is": lambda a, b: a is b, "IsNot": lambda a, b: a is not b,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip
"""Comparison operators by the name of their syntax node."""
