"""Indices along dimensions of more than 2^31 elements are computed with 64 bits from the first operation on.

Before::

    @stage("traced")
    def f(A: int8[4294967296], C: int8[4294967296]) -> C:
        with kernel(blocks={bx: 33554432}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(128):
                C[bx * 128 + i] = A[bx * 128 + i]

After::

    @stage("traced")
    def f(A: int8[4294967296], C: int8[4294967296]) -> C:
        with kernel(blocks={bx: 33554432}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(128):
                C[int64(bx) * 128 + int64(i)] = A[int64(bx) * 128 + int64(i)]

A dimension whose extent is an int64 counts as one.  Names for such indices are seen through.
"""

from __future__ import annotations

from tilewright.ir import INT32, INT64, Rewritten, find, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, PlaceRewriter

_ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "floormod", "min", "max"})


def widen_indices(function: ir.Function, context: Context) -> ir.Function:
    """Compute with 64 bits what indexes long dimensions of global buffers."""
    if not any(any(map(is_long, node.shape)) for node in find(function, ir.Buffer)):
        return function
    return function.with_body(_Widen()(function.body))


def is_long(extent: ir.Extent) -> bool:
    """Whether places along a dimension may need more than 32 bits."""
    if isinstance(extent, ir.Expr):
        return extent.dtype == INT64
    return extent > INT32.maximum


class _Widen(PlaceRewriter):
    def __init__(self) -> None:
        self.values: dict[ir.Var, ir.Expr] = {}

    def visit_Let(self, let: ir.Let) -> Rewritten:
        made = self.generic(let)
        self.values[let.var] = made.value
        return made

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        if buffer.scope != "global" or len(indices) != buffer.rank:
            return buffer, indices
        pairs = zip(indices, buffer.shape, strict=True)
        return buffer, tuple(self._wide(index) if is_long(extent) else index for index, extent in pairs)

    def _wide(self, value: ir.Expr) -> ir.Expr:
        """An index of 32 bits with 64, its operands too: the sum of two that fit may not."""
        if value.dtype != INT32:
            return value
        if isinstance(value, ir.Var) and value in self.values and _is_arithmetic(self.values[value]):
            return self._wide(self.values[value])
        if isinstance(value, ir.Binary) and value.op in _ARITHMETIC:
            return ir.Binary(INT64, value.op, self._wide(value.left), self._wide(value.right))
        if isinstance(value, ir.Const):
            return ir.Const(INT64, value.value)
        return ir.cast(value, INT64)


def _is_arithmetic(value: ir.Expr) -> bool:
    """Whether a value can be computed again wherever its name is known: it reads nothing that changes."""
    return all(isinstance(node, (ir.Binary, ir.Const, ir.Cast, ir.Var)) for node in walk(value))
