"""Vectors of which only the first lanes exist: how the ends of rows are computed.

Such a vector is loaded by ``load_first(place[i : +count])``, whose lanes behind the first `count` are 0, and stored by
``store_first(place[i : +count], value)``, which leaves the elements behind as they are. Machines with masks do either
    in
one instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from tilewright.arith import Analyzer
from tilewright.ir import EVERY_OTHER, DType, Rewriter, Rewritten, find
from tilewright.ir import nodes as ir

N = TypeVar("N")

LOAD, STORE = "load_first", "store_first"


class NoFirstLanes(Exception):
    """Some lanes alone cannot do this work; never seen by users."""


def first_lanes(part: N, loop_var: ir.Var, lanes: int, count: ir.Expr) -> N:
    """`part`, statements or a value of vectors of `lanes` elements from `loop_var` on, for the first `count` of each
    (which has as many).

    Raises
    ------
    NoFirstLanes : it does something that cannot be done for some lanes alone.
    """
    return _First(part, loop_var, lanes, count)(part)


def first_of(value: ir.Expr, count: ir.Expr, otherwise: ir.Expr) -> ir.Expr:
    """The first `count` lanes of `value`, and `otherwise` (a scalar) in those behind."""
    lanes = value.dtype.lanes
    index = (ir.dtypes.INT64 if value.dtype.bits > 32 else ir.dtypes.INT32).with_lanes(lanes)
    behind = ir.Broadcast(index, ir.cast(count, index.scalar))
    inside = ir.Binary(ir.dtypes.BOOL.with_lanes(lanes), "lt", ir.Call(index, "lane_index", ()), behind)
    return ir.Select(value.dtype, inside, value, ir.Broadcast(value.dtype, otherwise))


def access_of(call: ir.Call) -> tuple[ir.Region, bool] | None:
    """The elements that a call of `LOAD` or `STORE` touches and whether it writes them; None for another function."""
    return (call.regions[0], call.function == STORE) if call.function in (LOAD, STORE) else None


class _First(Rewriter):
    def __init__(self, part: object, loop_var: ir.Var, lanes: int, count: ir.Expr) -> None:
        self.var, self.lanes, self.count = loop_var, lanes, count
        self.analyzer = Analyzer()
        self.own = {node.buffer for node in find(part, ir.Allocate)}
        """Registers of an iteration: what their other lanes hold matters to nobody."""

    def place(
        self,
        buffer: ir.Buffer,
        indices: tuple[ir.Expr, ...],
        dtype: DType,
        count: ir.Expr | None = None,
        apart: int = 1,
    ) -> ir.Region:
        if dtype.kind == "bool" or dtype.is_packed or dtype.lanes != self.lanes or len(indices) != 1:
            raise NoFirstLanes
        if not ir.is_literal(self.analyzer.stride(indices[0], self.var), apart):
            raise NoFirstLanes
        return ir.Region(buffer, indices, (self.count if count is None else count,))

    def visit_Call(self, call: ir.Call) -> ir.Expr:
        if call.function not in EVERY_OTHER:
            return self.generic(call)
        leaves = _leaves(call)
        if any(load.buffer in self.own for load in leaves):
            return self.generic(call)
        made = []
        for number, load in enumerate(leaves):
            left = self.count * len(leaves) - number * self.lanes
            count = ir.index_binary("max", ir.index_binary("min", left, self.lanes), 0)
            place = self.place(load.buffer, load.indices, load.dtype, count, len(leaves))
            made.append(ir.Call(load.dtype, LOAD, (place,)))
        return _with_leaves(call, iter(made))

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        if load.dtype.lanes == 1 or load.buffer in self.own:
            return self.generic(load)
        return ir.Call(load.dtype, LOAD, (self.place(load.buffer, load.indices, load.dtype),))

    def visit_Store(self, store: ir.Store) -> Rewritten:
        if store.buffer in self.own:
            return self.generic(store)
        if store.value.dtype.lanes == 1:  # every iteration stores the same: the first lane's does
            return self.generic(store)
        value = self.visit(store.value)
        place = self.place(store.buffer, store.indices, store.value.dtype)
        return ir.Evaluate(ir.Call(value.dtype, STORE, (place, value)), span=store.span)

    def visit_Binary(self, binary: ir.Binary) -> ir.Expr:
        if (
            binary.op in ("floordiv", "floormod")
            and binary.dtype.lanes > 1
            and not isinstance(_scalar(binary.right), ir.Const)
        ):
            raise NoFirstLanes  # lanes that do not exist would divide by zero
        return self.generic(binary)

    def visit_Evaluate(self, statement: ir.Evaluate) -> Rewritten:
        if statement.value.function in ("prefetch", "prefetch_far"):
            return statement  # asks for the line of the first lane, whatever lanes there are
        raise NoFirstLanes

    def visit_For(self, _: ir.For) -> Rewritten:
        raise NoFirstLanes


def _leaves(value: ir.Expr) -> list[ir.Load]:
    """What is loaded, in order, of a vector that is every other lane of others."""
    if isinstance(value, ir.Call):
        return [leaf for argument in value.operands for leaf in _leaves(argument)]
    assert isinstance(value, ir.Load)
    return [value]


def _with_leaves(value: ir.Expr, leaves: Iterator[ir.Expr]) -> ir.Expr:
    """The same with others in their places."""
    if isinstance(value, ir.Call):
        return replace(value, arguments=tuple(_with_leaves(argument, leaves) for argument in value.operands))
    return next(leaves)


def _scalar(value: ir.Expr) -> ir.Expr:
    return value.value if isinstance(value, ir.Broadcast) else value
