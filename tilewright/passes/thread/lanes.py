"""The body of a loop with its iterations as the lanes of vectors: the rewriting behind `vectorize_accesses`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir import EVERY_OTHER, INTRINSICS, changed, children, find, holds, key, root, walk
from tilewright.ir import nodes as ir
from tilewright.passes.rows import Neighbours

SCALAR_ONLY = frozenset({"popcount", "any_of", "all_of", "lane_index", "call_extern"})
APART = (2, 4)
"""The largest stride between lanes in memory."""


class NotVectorizable(Exception):
    """The loop stays scalar; never seen by users."""


class _Varies(Exception):
    """A scalar of the body turned out to differ between lanes."""


class Lanes:
    """Rewrites the body of `loop` so that `lanes` consecutive iterations run at once.

    An expression that is the same in all lanes stays a scalar; others become vectors.  `analyzer` knows the
    range of the loop's variable and that it is a multiple of `lanes` beyond its start.
    """

    def __init__(self, loop: ir.For, lanes: int, analyzer: Analyzer) -> None:
        self.loop, self.var, self.lanes, self.analyzer = loop, loop.var, lanes, analyzer
        self.vectors: dict[ir.Var, ir.Var] = {}
        self.varying: dict[ir.Buffer, ir.Buffer] = {}
        self.local: set[ir.Buffer] = set()
        self.masks: list[ir.Expr] = []
        self.certain: set[object] = set()
        last = (loop.stop - loop.start) // lanes - 1
        self.group = Neighbours(analyzer, loop.var, lanes, loop.start, (0, last))

    # Statements

    def body(self, body: ir.Seq) -> ir.Seq:
        """The body on vectors.  Raises NotVectorizable."""
        self.local = {node.buffer for node in find(body, ir.Allocate) if node.buffer.scope == "scalar"}
        self.certain = {key(load) for load in _unconditional_loads(body)}
        while True:
            self.vectors = {}
            try:
                return self.sequence(body)
            except _Varies:
                continue

    def sequence(self, seq: ir.Seq) -> ir.Seq:
        made: list[ir.Statement] = []
        for statement in seq.statements:
            method = _STATEMENTS.get(type(statement))
            if method is None:
                raise NotVectorizable
            made += method(self, statement)
        return replace(seq, statements=tuple(made))

    def nested(self, seq: ir.Seq) -> list[ir.Statement]:
        return [self.sequence(seq)]

    def let(self, let: ir.Let) -> list[ir.Statement]:
        value = self.expression(let.value)
        if value.dtype.lanes == 1:
            return [replace(let, value=value)]
        self.vectors[let.var] = ir.Var(value.dtype, let.var.name)
        return [replace(let, var=self.vectors[let.var], value=value)]

    def allocate(self, allocate: ir.Allocate) -> list[ir.Statement]:
        buffer = allocate.buffer
        if buffer.scope != "scalar":
            raise NotVectorizable
        first = None if allocate.initial is None else self.expression(allocate.initial)
        if buffer not in self.varying:
            if first is not None and first.dtype.lanes > 1:
                self.vary(buffer)
            return [allocate if first is None else replace(allocate, initial=first)]
        vector = self.varying[buffer]
        made: list[ir.Statement] = [ir.Allocate(vector, span=allocate.span)]
        if first is not None:
            made.append(ir.Store(vector, (ir.const(0),), self.widened(first), span=allocate.span))
        return made

    def vary(self, buffer: ir.Buffer) -> None:
        """Make a scalar a vector and start again."""
        if buffer not in self.local or buffer.dtype.is_packed:
            raise NotVectorizable
        self.varying[buffer] = replace(buffer, shape=(self.lanes,), scope="register")
        raise _Varies

    def store(self, store: ir.Store) -> list[ir.Statement]:
        value = self.expression(store.value)
        buffer = store.buffer
        if buffer.scope == "scalar":
            return self.store_scalar(store, value)
        (index,) = store.indices
        if self.stride(index) != 1 or (value.dtype.is_integer and buffer.dtype != value.dtype.scalar):
            raise NotVectorizable
        self.check_packed(buffer, index)
        value = self.widened(value)
        if self.masks:
            value = self.masked(store, value)
        return [replace(store, value=value)]

    def store_scalar(self, store: ir.Store, value: ir.Expr) -> list[ir.Statement]:
        buffer = store.buffer
        if buffer in self.varying:
            vector, place = self.varying[buffer], (ir.const(0),)
            value = self.widened(value)
            for mask in self.masks:
                value = ir.Select(value.dtype, mask, value, ir.Load(value.dtype, vector, place))
            return [ir.Store(vector, place, value, span=store.span)]
        if value.dtype.lanes > 1 or self.masks or buffer not in self.local:
            self.vary(buffer)
        return [replace(store, value=value)]

    def masked(self, store: ir.Store, value: ir.Expr) -> ir.Expr:
        """A masked store, as a load, a select and a store: allowed only for memory that no other block sees."""
        (index,) = store.indices
        old = ir.Load(value.dtype, store.buffer, store.indices)
        if root(store.buffer).scope == "global" or not self.in_bounds(old.buffer, index):
            raise NotVectorizable
        for mask in self.masks:
            value = ir.Select(value.dtype, mask, value, old)
        return value

    def branch(self, branch: ir.If) -> list[ir.Statement]:
        condition = self.expression(branch.condition)
        if condition.dtype.lanes == 1:
            then = self.sequence(branch.then)
            otherwise = None if branch.otherwise is None else self.sequence(branch.otherwise)
            return [replace(branch, condition=condition, then=then, otherwise=otherwise)]
        made, condition = self.lasting(condition, list(find(branch, ir.Store)))
        made += self.under(condition, branch.then)
        if branch.otherwise is not None:
            made += self.under(ir.Unary(condition.dtype, "not", condition), branch.otherwise)
        return made

    def lasting(self, condition: ir.Expr, stores: list[ir.Store]) -> tuple[list[ir.Statement], ir.Expr]:
        """Names for what a condition reads and one of several stores below it changes, and the condition of them."""
        if len(stores) == 1:
            return [], condition
        written = {root(self.varying.get(store.buffer, store.buffer)) for store in stores}
        names: dict[object, ir.Let] = {}

        def named(load: ir.Load) -> ir.Expr:
            if root(load.buffer) not in written:
                return load
            name = ir.Var(load.dtype, load.buffer.name)
            return names.setdefault(key(load), ir.Let(name, load)).var

        condition = changed(condition, ir.Load, by=named)
        return list(names.values()), condition

    def under(self, mask: ir.Expr, body: ir.Seq) -> list[ir.Statement]:
        """A divergent branch: all lanes compute it, and those that take it store."""
        if holds(body, ir.For, ir.While, ir.Evaluate):
            raise NotVectorizable
        self.check_speculation(body)
        self.masks.append(mask)
        try:
            return self.nested(body)
        finally:
            self.masks.pop()

    def loop_inside(self, loop: ir.For) -> list[ir.Statement]:
        start, stop, step = map(self.expression, (loop.start, loop.stop, loop.step))
        if max(start.dtype.lanes, stop.dtype.lanes, step.dtype.lanes) > 1:
            raise NotVectorizable
        with self.analyzer.scope():
            self.analyzer.bind(loop.var, loop.start, ir.binary("sub", loop.stop, ir.const(1, loop.stop.dtype)))
            body = self.sequence(loop.body)
        kind = "serial" if loop.kind == "vectorize" else loop.kind
        return [replace(loop, start=start, stop=stop, step=step, body=body, kind=kind)]

    def nothing(self, _: ir.Statement) -> list[ir.Statement]:
        return []

    # Expressions

    def expression(self, expr: ir.Expr) -> ir.Expr:
        """`expr` in all lanes: a scalar where they agree.  Raises NotVectorizable."""
        if expr is self.var:
            lanes = ir.Call(expr.dtype.with_lanes(self.lanes), "lane_index", ())
            return ir.Binary(lanes.dtype, "add", self.widened(expr), lanes)
        if isinstance(expr, ir.Var):
            return self.vectors.get(expr, expr)
        if isinstance(expr, ir.Const):
            return expr
        method = _EXPRESSIONS.get(type(expr))
        if method is None:
            raise NotVectorizable
        return method(self, expr)

    def widened(self, expr: ir.Expr) -> ir.Expr:
        """A vector; scalars are broadcast."""
        if expr.dtype.lanes > 1:
            return expr
        return ir.Broadcast(expr.dtype.with_lanes(self.lanes), expr)

    def rebuilt(self, expr: ir.Expr, names: tuple[str, ...]) -> ir.Expr:
        """`expr` with its operands in lanes, a vector as soon as one of them is."""
        values = {name: self.expression(getattr(expr, name)) for name in names}
        if all(value.dtype.lanes == 1 for value in values.values()):
            return replace(expr, **values)  # type: ignore[arg-type]
        wide = {name: self.widened(value) for name, value in values.items()}
        return replace(expr, dtype=expr.dtype.with_lanes(self.lanes), **wide)

    def load(self, load: ir.Load) -> ir.Expr:
        if load.buffer.scope == "scalar":
            if load.buffer in self.varying:
                vector = self.varying[load.buffer]
                return ir.Load(vector.dtype.with_lanes(self.lanes), vector, (ir.const(0),))
            return load
        (index,) = load.indices
        stride = self.stride(index)
        if stride == 0:
            return load
        if stride != 1:
            return self.apart(load, index, stride)
        self.check_packed(load.buffer, index)
        return replace(load, dtype=load.dtype.with_lanes(self.lanes))

    def apart(self, load: ir.Load, index: ir.Expr, stride: int | None) -> ir.Expr:
        """A load with a stride of two or four: loads all elements between, and drops every other lane once or twice.

        It stays in bounds if the buffer's size is a multiple of what it loads.
        """
        if stride not in APART or load.dtype.is_packed or load.dtype.kind == "bool":
            raise NotVectorizable
        rest = self.analyzer.simplify(index % stride)
        if not isinstance(rest, ir.Const) or not self.analyzer.divides(_size(load.buffer), stride):
            raise NotVectorizable
        first, dtype, place = index - rest, load.dtype.with_lanes(self.lanes), int(rest.value)
        vectors: list[ir.Expr] = [
            replace(load, dtype=dtype, indices=(first + number * self.lanes,)) for number in range(stride)
        ]
        while len(vectors) > 1:
            function = EVERY_OTHER[place % 2]
            vectors = [ir.Call(dtype, function, pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
            place //= 2
        return vectors[0]

    def check_packed(self, buffer: ir.Buffer, index: ir.Expr) -> None:
        """Vectors of elements that share bytes must start with a byte."""
        if buffer.dtype.is_packed:
            per_byte = buffer.dtype.per_byte
            if self.lanes % per_byte or not self.analyzer.divides(index, per_byte):
                raise NotVectorizable

    def binary(self, expr: ir.Binary) -> ir.Expr:
        made = self.rebuilt(expr, ("left", "right"))
        if made.dtype.lanes > 1:
            if expr.op in ("floordiv", "floormod") and not _is_power_of_two(expr.right):
                raise NotVectorizable
            if expr.op in ir.LOGICAL:
                self.check_speculation(expr.right)
        return made

    def unary(self, expr: ir.Unary) -> ir.Expr:
        return self.rebuilt(expr, ("value",))

    def select(self, expr: ir.Select) -> ir.Expr:
        condition = self.expression(expr.condition)
        then, otherwise = self.expression(expr.then), self.expression(expr.otherwise)
        if condition.dtype.lanes > 1:
            self.check_speculation(expr.then)
            self.check_speculation(expr.otherwise)
        elif then.dtype.lanes == 1 and otherwise.dtype.lanes == 1:
            return replace(expr, condition=condition, then=then, otherwise=otherwise)
        then, otherwise = self.widened(then), self.widened(otherwise)
        return ir.Select(then.dtype, condition, then, otherwise)

    def call(self, call: ir.Call) -> ir.Expr:
        record = INTRINSICS[call.function]
        if len(call.operands) < len(call.arguments):
            raise NotVectorizable
        values = [self.expression(operand) for operand in call.operands]
        if not record.pure or record.reference is None:
            raise NotVectorizable
        if all(value.dtype.lanes == 1 for value in values):
            return replace(call, arguments=tuple(values))
        if call.function in SCALAR_ONLY:
            raise NotVectorizable
        return replace(call, dtype=call.dtype.with_lanes(self.lanes), arguments=tuple(map(self.widened, values)))

    # Indices

    def stride(self, index: ir.Expr) -> int | None:
        """The stride between lanes; None where it is not constant."""
        if any(part in self.vectors or part in self.varying for part in find(index, ir.Var, ir.Buffer)):
            return None
        made = self.group.of_lane(index)
        step = self.analyzer.stride(made, self.group.lane) if self.group.lane in walk(made) else ir.const(0)
        return int(step.value) if isinstance(step, ir.Const) else None

    # Speculation

    def check_speculation(self, part: ir.Expr | ir.Seq) -> None:
        """Raise NotVectorizable where evaluating `part` in a lane that should not could reach outside a buffer."""
        for node in walk(part):
            if isinstance(node, ir.Load) and node.buffer.scope != "scalar":
                if key(node) not in self.certain and not self.in_bounds(node.buffer, node.indices[0]):
                    raise NotVectorizable
            elif (
                isinstance(node, ir.Binary)
                and node.op in ("floordiv", "floormod")
                and not isinstance(node.right, ir.Const)
            ):
                raise NotVectorizable

    def in_bounds(self, buffer: ir.Buffer, index: ir.Expr) -> bool:
        """Whether `index` is in bounds for every lane; the loop's variable is that of the first lane."""
        group, analyzer = self.group, self.analyzer
        with analyzer.scope():
            analyzer.bind_extent(group.lane, self.lanes)
            analyzer.bind(group.number, *group.groups)
            index = group.of_lane(index)
            return analyzer.nonnegative(index) and analyzer.prove(ir.index_binary("lt", index, _size(buffer)))


_STATEMENTS: dict[type, Callable[[Lanes, Any], list[ir.Statement]]] = {
    ir.Let: Lanes.let, ir.Allocate: Lanes.allocate, ir.Store: Lanes.store, ir.If: Lanes.branch,
    ir.For: Lanes.loop_inside, ir.Seq: Lanes.nested, ir.Assume: Lanes.nothing,
}  # fmt: skip

_EXPRESSIONS: dict[type, Callable[[Lanes, Any], ir.Expr]] = {
    ir.Load: Lanes.load, ir.Binary: Lanes.binary, ir.Unary: Lanes.unary, ir.Cast: Lanes.unary,
    ir.Reinterpret: Lanes.unary, ir.Select: Lanes.select, ir.Call: Lanes.call,
}  # fmt: skip


def _size(buffer: ir.Buffer) -> ir.Expr:
    """How many elements a buffer has."""
    return ir.expr(ir.product(buffer.shape))


def _is_power_of_two(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Const) and expr.value > 0 and int(expr.value) & (int(expr.value) - 1) == 0


def _unconditional_loads(body: ir.Seq) -> list[ir.Load]:
    """Loads that every iteration performs."""
    found: list[ir.Load] = []

    def collect(node: object) -> None:
        if isinstance(node, (ir.If, ir.For, ir.While)):
            return
        if isinstance(node, ir.Load):
            found.append(node)
        for part in _always(node):
            collect(part)

    collect(body)
    return found


def _always(node: object) -> list[object]:
    """The parts of a node that are evaluated whenever it is."""
    if isinstance(node, ir.Select):
        return [node.condition]
    if isinstance(node, ir.Binary) and node.op in ir.LOGICAL:
        return [node.left]
    return [child for child in children(node) if not isinstance(child, ir.Buffer)]
