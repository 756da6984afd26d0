"""The author's statements for one element of a thread's loop, on registers; and what may be said of such statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.ir import BOOL, Rewriter, find, has_effect, holds, key
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, register_of
from tilewright.ops.base import zero
from tilewright.passes.tile.layouts.layout_flow import access_of

if TYPE_CHECKING:
    from tilewright.passes.lower.thread_loop import ThreadLoop


class ElementChoices(Rewriter):
    """Gives names to conditions of choices that read memory; those within other choices stay: they may not be meant to
    be asked."""

    def __init__(self, is_shared: Callable[[ir.Expr], bool]) -> None:
        self.is_shared = is_shared
        self.named: dict[object, tuple[ir.Var, ir.Expr]] = {}

    def visit_Select(self, select: ir.Select) -> ir.Expr:
        condition = select.condition
        if not self.is_shared(condition) or not holds(condition, ir.Load):
            return select
        var, _ = self.named.setdefault(key(condition), (ir.Var(BOOL, "chosen"), condition))
        return replace(select, condition=var)


class Registers(Rewriter):
    """Accesses of one element: fragments by register, vectors by their parts, the rest guarded and in place."""

    def __init__(
        self,
        work: ThreadLoop,
        loads: dict[object, ir.Buffer],
        stores: dict[Any, ir.Buffer],
        zeros: dict[object, object],
        of_group: bool = False,
    ) -> None:
        self.work, self.loads, self.stores, self.zeros = work, loads, stores, zeros
        self.of_group = of_group
        self.changed: set[ir.Buffer] = set()
        """What the statements so far have stored to."""

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        return self.work.owner.map_buffer(buffer)

    def map_var(self, var: ir.Var) -> ir.Expr:
        """The last loop variable counts the vector's first element; what is left here is about one of them."""
        if self.work.width > 1 and var is self.work.loop.vars[-1] and not self.of_group:
            return var + self.work.lane
        return var

    def _register(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
        """The register of a fragment that holds the element at hand."""
        work, width = self.work, self.work.width
        access = access_of(buffer, indices, work.loop, work.loop)
        layout, counted = access.apart(work.owner.layouts[buffer]), access.counted(work.layout)
        assert layout is not None and counted is not None and access.axes is not None
        total: ir.Expr = ir.const(layout.offset(REGISTER, *access.constants))
        for divisor, modulus, stride in register_of(layout, counted, access.axes):
            total = total + _digit(work, divisor, modulus, width) * stride
        return work.owner.analyzer.simplify(total)

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        buffer = load.buffer
        part = self.loads.get(key(load)) if buffer not in self.changed else None
        if part is not None:
            return ir.Load(load.dtype, part, (self.work.lane,))
        if buffer.scope == "fragment":
            return ir.Load(load.dtype, self.map_buffer(buffer), (self._register(buffer, load.indices),))
        indices = tuple(self.visit(index) for index in load.indices)
        part = self.stores.get((buffer, key(load.indices))) if buffer in self.changed else None
        if part is not None:
            value = ir.Load(load.dtype, part, (self.work.lane,))
        else:
            made, places = self.work.owner.physical(buffer, indices)
            value = ir.Load(load.dtype, made, places)
        guard = self.work.owner.guard(buffer, indices)
        if guard is None:
            return value
        return ir.Select(load.dtype, guard, value, self.work.safe(buffer))

    def visit_Select(self, select: ir.Select) -> ir.Expr:
        """What is zero where it is not wanted was read so."""
        value, rest = select.then, select.otherwise
        read = isinstance(value, ir.Load) and value.buffer not in self.changed
        if read and self.zeros.get(key(value)) == key(select.condition) and key(rest) == key(zero(value.dtype)):
            return self.visit(value)
        return self.generic(select)

    def visit_Store(self, store: ir.Store) -> ir.Statement:
        value = self.visit(store.value)
        self.changed.add(store.buffer)
        part = self.stores.get((store.buffer, key(store.indices)))
        if part is not None:
            return replace(store, buffer=part, indices=(self.work.lane,), value=value)
        buffer = store.buffer
        if buffer.scope == "fragment":
            return replace(
                store, buffer=self.map_buffer(buffer), indices=(self._register(buffer, store.indices),), value=value
            )
        indices = tuple(self.visit(index) for index in store.indices)
        made, places = self.work.owner.physical(buffer, indices)
        result = replace(store, buffer=made, indices=places, value=value)
        if buffer.scope not in ("global", "shared"):
            return result
        guard = self.work.owner.guard(buffer, indices)
        return self.work.by_first(result if guard is None else ir.If(guard, ir.seq(result), span=store.span))

    def visit_For(self, loop: ir.For) -> ir.Statement:
        """The author's vector loop in a loop of single elements moves vectors, where no tile's layout has a say in
        it."""
        work = self.work
        alone = work.width == 1 and work.first is None and not self.loads and not self.stores
        if alone and not any(buffer.scope == "fragment" for buffer in find(loop.body, ir.Buffer)):
            vectors = work.owner.vectors(loop)
            if vectors is not None:
                self.changed |= {store.buffer for store in find(loop.body, ir.Store)}
                return vectors
        made: ir.Statement = self.generic(loop)
        return made

    def visit_Evaluate(self, evaluate: ir.Evaluate) -> ir.Statement:
        added = sum_of(evaluate)
        part = None if added is None else self.stores.get((added.buffer, key(added.indices)))
        if added is not None and part is not None:
            return ir.Store(part, (self.work.lane,), self.visit(added.value), span=evaluate.span)
        made: ir.Statement = self.generic(evaluate)
        return self.work.by_first(made) if has_effect(evaluate.value) else made

    def visit_Region(self, region: ir.Region) -> ir.Region:
        if region.buffer.scope == "fragment":
            return ir.Region(self.map_buffer(region.buffer), (self._register(region.buffer, region.starts),), (1,))
        starts = tuple(self.visit(start) for start in region.starts)
        buffer, places = self.work.owner.physical(region.buffer, starts)
        return ir.Region(buffer, places, (1,) * len(places))


def _digit(work: ThreadLoop, divisor: int, modulus: int, width: int) -> ir.Expr:
    """``register // divisor % modulus`` of register ``group * width + lane``, without mixing the two."""
    registers = work.layout.extent(REGISTER)
    if divisor >= width:
        value = work.group // (divisor // width)
        return value if divisor * modulus >= registers else value % modulus
    if divisor * modulus <= width:
        value = work.lane // divisor
        return value if divisor * modulus == width else value % modulus
    whole = work.group * width + work.lane
    value = whole // divisor
    return value if divisor * modulus >= registers else value % modulus


def is_plain(body: ir.Seq) -> bool:
    """Whether a loop's body is stores and names alone, so that memory accesses may move before and behind them."""
    return all(
        isinstance(statement, ir.Store)
        or sum_of(statement) is not None
        or (isinstance(statement, ir.Let) and not has_effect(statement.value))
        for statement in body.statements
    )


def sum_of(statement: ir.Statement) -> ir.Store | None:
    """An atomic addition in no particular order, as if it stored what it adds; None for anything else."""
    value = statement.value if isinstance(statement, ir.Evaluate) else None
    if value is None or value.function != "atomic_add" or value.arguments[2] != "relaxed":
        return None
    (place,), (added,) = value.regions, value.operands
    return ir.Store(place.buffer, place.starts, added, span=statement.span)


def rounds(node: object) -> bool:
    return isinstance(node, ir.Binary) and node.op in ("floordiv", "floormod")
