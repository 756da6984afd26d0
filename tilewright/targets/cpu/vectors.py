"""Small builders of what runs over vectors: indices, lanes, loads, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.dtypes import FLOAT32, INT32, DType
from tilewright.ir.nodes import (
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    Load,
    Reinterpret,
    Seq,
    Statement,
    Var,
    cast,
    const,
    expr,
)


def splat(value: Expr, lanes: int) -> Expr:
    """`value` in every lane."""
    return value if lanes == 1 else Broadcast(value.dtype.with_lanes(lanes), value)


def splat_const(value: int | float, vector: DType) -> Expr:
    """The literal `value` in every lane of a vector type."""
    return splat(const(value, vector.scalar), vector.lanes)


def reinterpret(value: Expr, to: DType) -> Expr:
    return value if value.dtype == to else Reinterpret(to, value)


def loop(name: str, start: Extent, stop: Extent, body: Callable[[Expr], Sequence[Statement]], kind: str = "serial",
         step: int = 1) -> list[Statement]:  # fmt: skip
    """``for name in range(start, stop, step)``; the body alone where that is one iteration."""
    if isinstance(start, int) and isinstance(stop, int) and stop - start <= step:
        return list(body(const(start))) if stop > start else []
    var = Var(expr(stop).dtype if isinstance(stop, Expr) else INT32, name)
    return [
        For(
            var,
            cast(expr(start), var.dtype),
            cast(expr(stop), var.dtype),
            const(step, var.dtype),
            Seq(tuple(body(var))),
            kind,
        )
    ]


def load_vector(buffer: Buffer, lanes: int, *indices: Extent) -> Expr:
    """`lanes` consecutive elements."""
    return Load(buffer.dtype.with_lanes(lanes), buffer, tuple(map(expr, indices)))


def to_float(value: Expr) -> Expr:
    """A vector of integer totals as float32."""
    return Cast(FLOAT32.with_lanes(value.dtype.lanes), value)


def is_multiple(value: Extent, of: int) -> bool:
    """Whether an index is a multiple of `of` by its form alone."""
    value = expr(value)
    if of == 1:
        return True
    if isinstance(value, Const):
        return int(value.value) % of == 0
    if isinstance(value, Binary) and value.op == "mul":
        return is_multiple(value.left, of) or is_multiple(value.right, of)
    if isinstance(value, Binary) and value.op in ("add", "sub"):
        return is_multiple(value.left, of) and is_multiple(value.right, of)
    return False
