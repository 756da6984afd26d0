"""Short vectors of older programs: `T.Ramp` and `T.Broadcast` as indices and values, one lane after the other.

>>> B[T.Ramp(i * 4, 1, 4)] = A[T.Ramp(i * 4, 1, 4)] + T.Broadcast(1.0, 4)

records a vector loop over the four lanes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilewright.ir import INT32, walk
from tilewright.ir import nodes as ir
from tilewright.language.dtypes import NumberType
from tilewright.language.math import if_then_else
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, Value, as_expr, check_scope, constant_within, describe, is_number
from tilewright.language.recording import Frame, current, in_kernel, statement_here, word


class Vector:
    """Several values at once.

    Attributes
    ----------
    lanes : how many.
    of : the value of a lane, for the lane's index.
    is_kept : whether its lanes lie in an array that nobody changes.
    """

    __slots__ = ("is_kept", "lanes", "of")
    description = "a vector"

    def __init__(self, lanes: int, of: Callable[[Scalar], Any], is_kept: bool = False) -> None:
        self.lanes, self.of, self.is_kept = lanes, of, is_kept


def lane_of(value: object, lane: Scalar) -> object:
    """What a vector has in a lane; anything else as it is."""
    return value.of(lane) if isinstance(value, Vector) else value


def lane_at(vector: Vector, lane: Value | ir.Expr) -> Scalar:
    """A vector's value in a lane that is an int or an expression."""
    return vector.of(lane if isinstance(lane, Scalar) else Scalar(ir.expr(lane), current("a vector").frame))


def reads_memory(vector: Vector) -> bool:
    """Whether a vector's lanes may change when something is stored."""
    value = lane_at(vector, 0)
    return isinstance(value, Scalar) and any(isinstance(node, (ir.Load, ir.Call)) for node in walk(value.expr))


def kept(vector: Vector, name: str) -> Vector:
    """A vector as it is now: its lanes in an array of the thread, where they are read from memory or computed by a
    call."""
    if vector.is_kept or not reads_memory(vector):
        return vector
    builder, span = in_kernel("a vector"), statement_here()
    made = ir.Buffer(builder.take_name(name), (vector.lanes,), lane_at(vector, 0).expr.dtype, "local")
    builder.append(ir.Allocate(made, span=span))
    store_lanes(made, vector)
    return lanes_of(made, builder.frame)


def lanes_of(array: ir.Buffer, frame: Frame) -> Vector:
    """What an array of the thread holds, as a vector."""
    of = lambda lane: Scalar(ir.Load(array.dtype, array, (as_expr(lane),)), frame)  # noqa: E731
    return Vector(array.static_shape[0], of, is_kept=True)


class VectorVariable(Vector):
    """A vector that its thread may change: assigning to its name stores all lanes."""

    __slots__ = ("array", "frame", "is_fresh")

    def __init__(self, array: ir.Buffer, frame: Frame) -> None:
        super().__init__(array.static_shape[0], lanes_of(array, frame).of)
        self.array, self.frame = array, frame
        self.is_fresh = True
        """As that of a mutable scalar."""

    def store(self, value: object) -> None:
        """Take another value: a vector of as many lanes, or a number for each of them."""
        check_scope(self.frame)
        if isinstance(value, Vector) and value.lanes != self.lanes:
            raise NumberExpected(f"the value of {self.array.name!r}", f"{self.lanes} lanes", str(value.lanes))
        store_lanes(self.array, kept(value, "value") if isinstance(value, Vector) else value)


def store_lanes(array: ir.Buffer, value: object) -> None:
    """A vector, or a number for all lanes, into an array of the thread."""
    builder, span = in_kernel("a vector"), statement_here()
    lane = ir.Var(INT32, "lane")
    frame = builder.push("T.vectorized", span)
    stored = as_expr(lane_of(value, Scalar(lane, frame)), array.dtype, f"the value of {array.name!r}")
    builder.append(ir.Store(array, (lane,), stored, span=span))
    body, lanes = builder.pop(frame), ir.const(array.static_shape[0])
    builder.append(ir.For(lane, ir.const(0), lanes, ir.const(1), body, "vectorize", span=span))


def common_lanes(*values: object) -> int | None:
    """How many lanes the vectors among some values have; None where there is none.

    Raises
    ------
    NumberExpected : they differ.
    """
    found = sorted({value.lanes for value in values if isinstance(value, Vector)})
    if len(found) > 1:
        raise NumberExpected("vectors that are used together", "as many lanes in each", " and ".join(map(str, found)))
    return found[0] if found else None


def _combined(
    function: Callable[[object, object], object], swapped: bool = False
) -> Callable[[Vector, object], Vector]:
    def combine(self: Vector, other: object) -> Vector:
        if not isinstance(other, Vector) and not is_number(other):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return Vector(
            common_lanes(self, other) or 0, lambda lane: function(lane_of(pair[0], lane), lane_of(pair[1], lane))
        )

    return combine


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _function = getattr(operator, _name)
    setattr(Vector, f"__{_name.strip('_')}__", _combined(_function))
    setattr(Vector, f"__r{_name.strip('_')}__", _combined(_function, swapped=True))


def _lanes(count: object, what: str) -> int:
    return constant_within(count, f"the lanes of {what}", 1, 32)


@word
def Ramp(base: object, stride: object, lanes: object) -> Vector:
    """The vector ``base, base + stride, base + 2 * stride, ...``.

    Parameters
    ----------
    base, stride : ints or symbolic integers.
    lanes : how many, a Python int.

    Examples
    --------
    >>> shared[0, T.Ramp(8, 1, 4)] = T.Broadcast(1.0, 4)
    """
    for value in (base, stride):
        if not is_number(value):
            raise NumberExpected("T.Ramp", "numbers", describe(value))
    return Vector(_lanes(lanes, "T.Ramp"), lambda lane: base + lane * stride)


@word
def Broadcast(value: object, lanes: object) -> Vector:
    """The vector that has one value in all lanes.

    Parameters
    ----------
    value : a scalar.
    lanes : how many, a Python int.

    Examples
    --------
    >>> shared[0, T.Ramp(0, 1, 4)] = T.Broadcast(n, 4)
    """
    if not is_number(value):
        raise NumberExpected("T.Broadcast", "a number", describe(value))
    return Vector(_lanes(lanes, "T.Broadcast"), lambda lane: value)


def vector_of(values: tuple[object, ...], dtype: NumberType) -> Vector:
    """The vector of some scalars in turn, or one vector's lanes converted; `dtype` is the type of all lanes
    together."""
    from tilewright.language.conversions import cast  # which speaks of vectors

    scalar, lanes = dtype.record.scalar, dtype.lanes
    whole = values[0]
    given = whole.lanes if isinstance(whole, Vector) else len(values)
    if lanes > 1 and given != lanes:
        raise NumberExpected(f"T.{dtype}", f"{lanes} values", str(given))
    if isinstance(whole, Vector):
        return Vector(given, lambda lane: cast(whole.of(lane), scalar))

    def of(lane: Value) -> Any:
        chosen: Value = cast(values[-1], scalar)
        for number in reversed(range(given - 1)):
            chosen = if_then_else(lane == number, cast(values[number], scalar), chosen)
        return chosen

    return Vector(given, of)
