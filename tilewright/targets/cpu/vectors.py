"""Small builders of what runs over vectors: indices, lanes, loads, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT32, INT32, DType


def splat(value: ir.Expr, lanes: int) -> ir.Expr:
    """`value` in every lane."""
    return value if lanes == 1 else ir.Broadcast(value.dtype.with_lanes(lanes), value)


def splat_const(value: int | float, vector: DType) -> ir.Expr:
    """The literal `value` in every lane of a vector type."""
    return splat(ir.const(value, vector.scalar), vector.lanes)


def reinterpret(value: ir.Expr, to: DType) -> ir.Expr:
    return value if value.dtype == to else ir.Reinterpret(to, value)


def loop(
    name: str,
    start: ir.Extent,
    stop: ir.Extent,
    body: Callable[[ir.Expr], Sequence[ir.Statement]],
    kind: str = "serial",
    step: int = 1,
) -> list[ir.Statement]:
    """``for name in range(start, stop, step)``; the body alone where that is one iteration."""
    if isinstance(start, int) and isinstance(stop, int) and stop - start <= step:
        return list(body(ir.const(start))) if stop > start else []
    var = ir.Var(ir.expr(stop).dtype if isinstance(stop, ir.Expr) else INT32, name)
    return [
        ir.For(
            var,
            ir.cast(ir.expr(start), var.dtype),
            ir.cast(ir.expr(stop), var.dtype),
            ir.const(step, var.dtype),
            ir.Seq(tuple(body(var))),
            kind,
        )
    ]


def load_vector(buffer: ir.Buffer, lanes: int, *indices: ir.Extent) -> ir.Expr:
    """`lanes` consecutive elements."""
    return ir.Load(buffer.dtype.with_lanes(lanes), buffer, tuple(map(ir.expr, indices)))


def to_float(value: ir.Expr) -> ir.Expr:
    """A vector of integer totals as float32."""
    return ir.Cast(FLOAT32.with_lanes(value.dtype.lanes), value)


def is_multiple(value: ir.Extent, of: int) -> bool:
    """Whether an index is a multiple of `of` by its form alone."""
    value = ir.expr(value)
    if of == 1:
        return True
    if isinstance(value, ir.Const):
        return int(value.value) % of == 0
    if isinstance(value, ir.Binary) and value.op == "mul":
        return is_multiple(value.left, of) or is_multiple(value.right, of)
    if isinstance(value, ir.Binary) and value.op in ("add", "sub"):
        return is_multiple(value.left, of) and is_multiple(value.right, of)
    return False
