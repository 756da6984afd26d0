"""Stand-ins for scalars while a function is traced: their operators record expressions.

This is the one place in tilewright where ``==`` and its kin build nodes.  A value that is known (a Python
number, a `Scalar` around a literal) stays Python's; everything else must not be asked for its truth, its
integer or its hash, and says so when it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL, FLOAT32, DType
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.language import mistakes
from tilewright.language.dtypes import NumberType
from tilewright.language.mistakes_of_scopes import ValueOutOfScope
from tilewright.language.promotion import literal_dtype
from tilewright.language.recording import Frame, active, current, in_kernel, named, statement_here
from tilewright.language.several import Several

Value: TypeAlias = "bool | int | float | Scalar"
"""A number that Python knows, or one of the program."""


OTHERS = "functions of T work on values of the program, as T.exp and T.max do"

_OF_NUMPY: dict[str, Callable[..., object]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "left_shift": operator.lshift, "right_shift": operator.rshift, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "equal": operator.eq, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
"""What NumPy calls the operators, which its numbers ask for when they stand on the left."""


class Scalar:
    """A value of the program: an expression, and the innermost statement list that it depends on."""

    __slots__ = ("_expr", "frame")

    if TYPE_CHECKING:  # the operators, which `language/operators.py` gives it from one table

        def _of_one(self) -> Scalar: ...
        def _of_two(self, other: object, /) -> Scalar: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _of_two
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _of_two
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _of_two
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __lt__ = __le__ = __gt__ = __ge__ = _of_two
        __eq__ = __ne__ = _of_two  # type: ignore[assignment]
        __neg__ = __pos__ = __abs__ = __invert__ = _of_one

    def __init__(self, expr: ir.Expr, frame: Frame | None = None) -> None:
        self._expr, self.frame = expr, frame

    @property
    def expr(self) -> ir.Expr:
        """The expression, for use where the author stands now."""
        return self._expr

    @property
    def dtype(self) -> NumberType:
        return NumberType(self._expr.dtype)

    @property
    def name(self) -> str:
        return getattr(self._expr, "name", "")

    def astype(self, dtype: object) -> Scalar:
        """The value converted, as `T.cast` converts."""
        return Scalar(as_expr(self, dtype_of(dtype)), self.frame)

    def __repr__(self) -> str:
        return f"<symbolic {self._expr.dtype}{' ' + self.name if self.name else ''}>"

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise mistakes.UnknownAttribute("a value of the program", name, dir(type(self)))

    def __matmul__(self, other: object) -> NoReturn:
        raise mistakes.MatrixOfNumbers

    __rmatmul__ = __matmul__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        """``np.float32(2) * x`` is the program's product; functions of NumPy are none of its."""
        operation = _OF_NUMPY.get(ufunc.__name__)
        given = [one.item() if isinstance(one, (np.generic, np.ndarray)) and one.shape == () else one for one in inputs]
        if method == "__call__" and operation is not None and all(map(is_number, given)) and not options:
            return operation(*given)
        raise mistakes.SymbolicConstant(f"np.{ufunc.__name__}", hint=OTHERS)

    @classmethod
    def __torch_function__(cls, function: Callable[..., object], *_: object) -> object:
        """Functions of torch are none of the program's; what an operator of its tensors does not know, ours is
        asked."""
        if hasattr(function, "__objclass__"):  # a method of its tensors, as operators are
            return NotImplemented
        name = getattr(function, "__name__", "function")
        raise mistakes.SymbolicConstant(f"torch.{name}", hint=OTHERS)

    # What Python may ask of a number, and cannot be told ------------------------------------------

    def known(self) -> bool | int | float | None:
        """The value, where it is a literal."""
        return self._expr.value if isinstance(self._expr, ir.Const) else None

    def __bool__(self) -> bool:
        value = self.known()
        if value is None:
            raise mistakes.SymbolicCondition()
        return bool(value)

    def __index__(self) -> int:
        value = self.known()
        if value is None or not isinstance(value, int):
            raise mistakes.SymbolicConstant(
                "Python's indexing or `range`",
                hint="loop over a Python list, as in `for i in list(range(4))`, to have i known",
            )
        return int(value)

    def __int__(self) -> int:
        value = self.known()
        if value is None:
            raise mistakes.SymbolicConstant(
                "Python's int()", hint="write T.cast(x, 'int32') for a conversion in the kernel"
            )
        return int(value)

    def __float__(self) -> float:
        value = self.known()
        if value is None:
            raise mistakes.SymbolicConstant(
                "Python's float()",
                hint="write T.cast(x, 'float32') for a conversion in the kernel, T.exp and its kin for functions of "
                "`math`",
            )
        return float(value)

    def __iter__(self) -> NoReturn:
        raise mistakes.SymbolicIteration("a scalar")

    def __hash__(self) -> int:
        raise mistakes.SymbolicKey()

    def __getitem__(self, key: object) -> Scalar:
        raise mistakes.NotIndexable(describe(self))


class Variable(Scalar):
    """A mutable scalar (`T.alloc_var`), or an element taken by reference (`T.Ref`): reading it is a load."""

    __slots__ = ("buffer", "indices", "is_fresh")

    def __init__(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], frame: Frame | None) -> None:
        super().__init__(ir.Load(buffer.dtype, buffer, indices), frame)
        self.buffer, self.indices = buffer, indices
        self.is_fresh = True
        """No name has been given yet: the assignment that follows names it, later ones store into it."""

    @property
    def expr(self) -> ir.Expr:
        return ir.Load(self.buffer.dtype, self.buffer, self.indices)

    @property
    def name(self) -> str:
        return self.buffer.name

    def __getitem__(self, key: object) -> Scalar:
        if key == 0:
            return Scalar(self.expr, self.frame)
        return super().__getitem__(key)

    def __setitem__(self, key: object, value: object) -> None:
        if key != 0:
            raise mistakes.NotIndexable(describe(self))
        check_scope(self.frame)
        stored = as_expr(value, self.buffer.dtype, f"the value of {self.name!r}")
        current("a store").append(ir.Store(self.buffer, self.indices, stored, span=statement_here()))


class Element(Scalar):
    """``A[i, j]``: its value in an expression, its address where a tile operator wants one."""

    __slots__ = ("buffer", "from_end", "indices")

    def __init__(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], frame: Frame | None, from_end: tuple[int, ...] = ()
    ) -> None:
        super().__init__(ir.Load(buffer.dtype, buffer, indices), frame)
        self.buffer, self.indices = buffer, indices
        self.from_end = from_end
        """How far before the end of each dimension a negative Python number said it is; 0 where none did."""


# From Python values to expressions ----------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a value can be an operand: a Python or NumPy number, or a `Scalar`."""
    return isinstance(value, (Scalar, bool, int, float, np.number, np.bool_))


def plain(value: object) -> object:
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
        raise ValueOutOfScope("a value", frame.describe())


def as_expr(value: object, dtype: DType | None = None, what: str = "this operand") -> ir.Expr:
    """A number as an expression, of `dtype` where one is given (literals convert, values are cast)."""
    if isinstance(value, Scalar):
        check_scope(value.frame)
        found = value.expr
        return found if dtype is None else convert(found, dtype)
    value = plain(value)
    if not isinstance(value, (bool, int, float)):
        whole = "a number: loop over the elements, `for i, j in T.Parallel(...)`, and index with i, j"
        expected = whole if getattr(value, "scope", None) else "a number"
        raise mistakes.NumberExpected(what, expected, describe(value))
    return literal(value, dtype or ir.const(value).dtype)


def literal(value: bool | int | float, dtype: DType) -> ir.Expr:
    """A Python number as a literal of `dtype`, cast where the dtype cannot hold it."""
    if dtype.is_float:
        if literal_dtype(float(value), dtype) != dtype:
            return ir.Cast(dtype, ir.Const(FLOAT32, float(value)))
        return ir.Const(dtype, float(value))
    if dtype == BOOL:
        return ir.Const(BOOL, bool(value))
    if isinstance(value, float) and not value.is_integer():
        return ir.Cast(dtype, ir.Const(FLOAT32, value))
    number = int(value)
    if dtype.minimum <= number <= dtype.maximum:
        return ir.Const(dtype, number)
    return ir.Cast(dtype, ir.const(number))


def convert(value: ir.Expr, dtype: DType) -> ir.Expr:
    """`value` as `dtype`; a literal that its own type holds exactly is converted at once."""
    if value.dtype == dtype:
        return value
    held = isinstance(value, ir.Const) and (not value.dtype.is_float or value.dtype.holds(float(value.value)))
    if isinstance(value, ir.Const) and held and dtype.lanes == 1:
        return literal(value.value, dtype)
    return ir.cast(value, dtype)


def named_by_author(value: ir.Expr, name: str, what: str) -> Scalar:
    """A value under the name that the author is about to give it, else under `name`: it is computed once, here."""
    builder = in_kernel(what)
    return Scalar(named(value, builder.take_name(name), what), builder.frame)


def frame_of(*values: object) -> Frame | None:
    """The deepest statement list that any of the values depends on."""
    deepest: Frame | None = None
    for value in values:
        frame = value.frame if isinstance(value, Scalar) else None
        if frame is not None and (deepest is None or frame.depth > deepest.depth):
            deepest = frame
    return deepest


def condition(value: object) -> ir.Expr:
    """The truth of a number, as a bool expression."""
    found = as_expr(value, what="a condition")
    return found if found.dtype == BOOL else ir.binary("ne", found, literal(0, found.dtype))


def known_value(value: object) -> object:
    """A symbolic literal as the Python number it is; everything else unchanged."""
    if isinstance(value, Scalar):
        found = value.known()
        return value if found is None else found
    return plain(value)


def an_integer(value: object) -> str:
    """What is expected where `value` is no integer."""
    if isinstance(value, Several):
        return f"an integer: name each value, as in `{value.names}`"
    return "an integer: `//` divides without a fraction" if isinstance(value, float) else "an integer"


def extent(value: object, what: str) -> ir.Extent:
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
    raise mistakes.NumberExpected(what, an_integer(value), describe(value))


def constant(value: object, what: str, hint: str | None = None) -> int:
    """A size that must be known while the kernel is traced.

    Parameters
    ----------
    hint : what to do where it is symbolic, if that is not what is advised everywhere.

    Raises
    ------
    SymbolicConstant : it is symbolic.
    NumberExpected : it is no integer.
    """
    value = known_value(value)
    if isinstance(value, Scalar):
        raise mistakes.SymbolicConstant(what, hint=hint)
    if not isinstance(value, int) or isinstance(value, bool):
        raise mistakes.NumberExpected(what, an_integer(value), describe(value))
    return value


def constant_that(holds: Callable[[int], bool], value: object, what: str, expected: str) -> int:
    """The same, where something holds of it, which `expected` says."""
    number = constant(value, what)
    if not holds(number):
        raise mistakes.NumberExpected(what, expected, str(number))
    return number


def constant_within(value: object, what: str, low: int, high: int) -> int:
    """The same, from `low` to `high`."""
    return constant_that(lambda number: low <= number <= high, value, what, f"{low} to {high}")


def positive(value: object, what: str) -> int:
    """The same, from 1 up."""
    return constant_that(lambda number: number > 0, value, what, "a positive integer")


def one_of(value: object, known: Collection[str], what: str) -> str:
    """A word that must be one of a few."""
    if not isinstance(value, str) or value not in known:
        raise mistakes.NumberExpected(what, "one of " + ", ".join(known), repr(value))
    return value


def from_extent(size: ir.Extent, frame: Frame | None = None) -> int | Scalar:
    """A size as authors see it."""
    return size if isinstance(size, int) else Scalar(size, frame)


def here(expr: ir.Expr) -> Scalar:
    """A value that belongs to the innermost open statement list."""
    builder = active()
    return Scalar(expr, builder.frame if builder else None)
