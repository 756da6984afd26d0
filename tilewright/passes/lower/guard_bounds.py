"""Makes explicit that reads of global buffers out of bounds give the safe value and writes are dropped.

Before::

    @stage("threaded")
    def f(A: float32[M], C: float32[M], *, M: int32) -> C:
        with kernel(blocks={bx: (M + 63) // 64}, threads={tx: 128, ty: 1, tz: 1}):
            tile = register(float32[64])
            for i in vectorize(64):
                tile[i] = A[bx * 64 + i]

After::

    @stage("threaded")
    def f(A: float32[M], C: float32[M], *, M: int32) -> C:
        with kernel(blocks={bx: (M + 63) // 64}, threads={tx: 128, ty: 1, tz: 1}):
            tile = register(float32[64])
            i_end: int32 = min(M - bx * 64, 64)
            for i in vectorize(i_end):
                tile[i] = A[bx * 64 + i]
            for i in vectorize(i_end, 64):
                tile[i] = 0.0

A guard whose index moves with a loop cuts the loop in two, so that the part inside pays nothing and keeps its
vectors; what is left becomes a condition at the access.  Guards that can be proved are not written at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import INTRINSICS, conjunction, conjuncts, key, root, substitute
from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewritten, listed
from tilewright.ir.walking import children, find, walk
from tilewright.ops.base import zero
from tilewright.passes import Context, ScopedRewriter, bind_loop, fresh, holders

LARGEST_SPLIT = 24
"""Loops with more statements than this are not cut: both parts would be compiled."""


def guard_bounds(function: ir.Function, context: Context) -> ir.Function:
    """Write the guards of global accesses that cannot be proved."""
    return function.with_body(_Guard(function)(function.body))


@dataclass(frozen=True, slots=True)
class _Bound:
    """``0 <= index`` or ``index < extent``."""

    index: ir.Expr
    extent: ir.Expr | None
    name: tuple[Hashable, Hashable]

    @property
    def condition(self) -> ir.Expr:
        if self.extent is None:
            return ir.binary("ge", self.index, ir.const(0, self.index.dtype))
        return ir.index_binary("lt", self.index, self.extent)


def _bounds_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Iterator[_Bound]:
    for index, extent in zip(indices, buffer.shape, strict=True):
        yield _Bound(index, None, (key(index), None))
        end = ir.expr(extent)
        wide = max(index.dtype, end.dtype, key=lambda one: one.bits)  # in which conditions compare them
        yield _Bound(index, end, (key(ir.cast(index, wide)), key(ir.cast(end, wide))))


class _Guard(ScopedRewriter):
    def __init__(self, function: ir.Function) -> None:
        super().__init__(function)
        self.decided: dict[Hashable, bool] = {}
        """Bounds that hold, or certainly fail, in the part of a cut loop that is being rewritten."""
        self.guarded: set[ir.Record] = holders(function.body, _is_global_access)
        """Nodes with accesses of global memory at or below them."""
        self.safe: dict[ir.Buffer, ir.Expr] = {}

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.safe = dict(kernel.safe_values)
        return super().visit_Kernel(kernel)

    def visit(self, node: object) -> Any:
        """Statements without accesses of global memory stay as they are."""
        if isinstance(node, (ir.For, ir.If, ir.Store, ir.While)) and node not in self.guarded:
            return node
        return super().visit(node)

    def copy_of(self, loop: ir.For) -> ir.For:
        made = fresh(loop)
        self.guarded |= holders(made, _is_global_access)
        return made

    # Accesses

    def open_bounds(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> list[_Bound]:
        """The bounds of an access that are neither proved nor decided to hold.

        A view of a global buffer with a scope of its own is a lowering's promise to stay inside.
        """
        if buffer.scope != "global" or root(buffer).scope != "global":
            return []
        return [
            bound
            for bound in _bounds_of(buffer, indices)
            if self.decided.get(bound.name) is not True and not self.holds(bound)
        ]

    def undecided(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> list[_Bound]:
        """Its open bounds, none where the access is known to be out of bounds anyway."""
        bounds = self.open_bounds(buffer, indices)
        return [] if any(self.decided.get(bound.name) is False for bound in bounds) else bounds

    def holds(self, bound: _Bound) -> bool:
        if bound.extent is None:
            return self.analyzer.nonnegative(bound.index)
        return self.analyzer.prove(bound.condition)

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        bounds = self.open_bounds(load.buffer, load.indices)
        if any(self.decided.get(bound.name) is False for bound in bounds):
            return self.safe_value(load)
        made = self.generic(load)
        if not bounds:
            return made
        return ir.Select(load.dtype, self.conjunction(bounds), made, self.safe_value(load))

    def safe_value(self, load: ir.Load) -> ir.Expr:
        value = self.safe.get(load.buffer)
        single = zero(load.dtype.scalar) if value is None else ir.cast(value, load.dtype.scalar)
        return single if load.dtype.lanes == 1 else ir.Broadcast(load.dtype, single)

    def conjunction(self, bounds: list[_Bound]) -> ir.Expr:
        return conjunction([self.visit(bound.condition) for bound in bounds])

    def visit_Store(self, store: ir.Store) -> Rewritten:
        return self._guarded(store, self.open_bounds(store.buffer, store.indices))

    def visit_Evaluate(self, evaluate: ir.Evaluate) -> Rewritten:
        elements = _elements(evaluate.value)
        return self._guarded(evaluate, [bound for r in elements for bound in self.open_bounds(r.buffer, r.starts)])

    def _guarded(self, statement: ir.Statement, bounds: list[_Bound]) -> ir.Statement | None:
        """`statement` under the bounds that are open; nothing where one fails."""
        if any(self.decided.get(bound.name) is False for bound in bounds):
            return None
        if not bounds:
            return self.generic(statement)
        condition = self.conjunction(bounds)
        with self.analyzer.scope():
            self.analyzer.assume(condition)
            made = self.generic(statement)
        return ir.If(condition, ir.seq(made), span=statement.span)

    def then_of(self, branch: ir.If) -> ir.Seq:
        """Bounds that a condition says hold below it, as they stand there: of what was read too, of which the engine
        keeps nothing."""
        written = {node.buffer for node in find(branch.then, ir.Store, ir.Region)}
        said = [
            bound
            for bound in _bounds_in(branch.condition)
            if not any(load.buffer in written for load in find(bound.index, ir.Load))
        ]
        with self._deciding(said, True):
            return super().then_of(branch)

    def chosen_of(self, select: ir.Select) -> ir.Expr:
        """The same of a choice: what is read for one way of it."""
        with self._deciding(list(_bounds_in(select.condition)), True):
            return super().chosen_of(select)

    # Loops

    def visit_For(self, loop: ir.For) -> Rewritten:
        if not _is_small(loop) or not ir.is_literal(loop.step, 1):
            return super().visit_For(loop)
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            moving, fixed = self._ready(loop)
        if fixed:
            return self._branch(loop, fixed)
        if moving:
            return self._cut(loop, moving)
        return super().visit_For(loop)

    def _ready(self, loop: ir.For) -> tuple[list[tuple[_Bound, int]], list[_Bound]]:
        """Open bounds below `loop` that it can decide: those that move with it (and how), and those that do not.

        A bound on which a loop further in, a name bound inside or a load has a say is left to that place.
        """
        inner = {node.var for node in find(loop.body, ir.Let, ir.For)}
        moving: dict[Hashable, tuple[_Bound, int]] = {}
        fixed: dict[Hashable, _Bound] = {}
        for bound in self._below(loop.body):
            if bound.name in moving or bound.name in fixed or bound.name in self.decided:
                continue
            parts = [bound.index] if bound.extent is None else [bound.index, bound.extent]
            used = {node for part in parts for node in find(part, ir.Var, ir.Load)}
            if used & inner or any(isinstance(node, ir.Load) for node in used):
                continue
            stride = self.analyzer.stride(bound.index, loop.var)
            if not isinstance(stride, ir.Const):
                continue
            if stride.value == 0:
                # It may mention the variable all the same, ``i // 8`` of an i below 8 for example.
                index = substitute(bound.index, {loop.var: loop.start})
                fixed[bound.name] = _Bound(index, bound.extent, bound.name)
            else:
                moving[bound.name] = (bound, int(stride.value))
        return list(moving.values()), list(fixed.values())

    def _below(self, node: ir.Record) -> Iterator[_Bound]:
        """Open bounds of the accesses below, under the ranges of the loops between."""
        if isinstance(node, (ir.Load, ir.Store)):
            yield from self.undecided(node.buffer, node.indices)
        elif isinstance(node, ir.Evaluate):
            for region in _elements(node.value):
                yield from self.undecided(region.buffer, region.starts)
        if isinstance(node, (ir.If, ir.Select, ir.While)):
            return  # the condition may be the author's own guard: decided where it is known
        with self.analyzer.scope():
            if isinstance(node, ir.For):
                bind_loop(self.analyzer, node)
            for child in children(node):
                if child in self.guarded:
                    yield from self._below(child)

    def _branch(self, loop: ir.For, fixed: list[_Bound]) -> Any:
        """Decide bounds that the loop does not move once, before it."""
        condition = self.conjunction(fixed)
        with self._deciding(fixed, True):
            inside = self.visit(loop)
        outside: list[ir.Statement] = []
        if len(fixed) == 1:
            copy = self.copy_of(loop)
            with self.analyzer.scope():
                bind_loop(self.analyzer, copy)
                failing = self._ready(copy)[1]
            with self._deciding(failing, False):
                outside = _nonempty(listed(self.visit(copy)))
        elif any(root(load.buffer).scope == "global" for load in find(loop.body, ir.Load)):
            outside = _nonempty(listed(super().visit_For(self.copy_of(loop))))
        return ir.If(condition, ir.seq(inside), ir.seq(*outside) if outside else None, span=loop.span)

    def _cut(self, loop: ir.For, moving: list[tuple[_Bound, int]]) -> list[ir.Statement]:
        """The loop in up to three parts: below the bounds, inside all of them, beyond."""
        below = [one for one in moving if (one[0].extent is None) == (one[1] > 0)]
        beyond = [one for one in moving if (one[0].extent is None) != (one[1] > 0)]
        lows, highs = ([self._limit(loop, *one) for one in some] for some in (below, beyond))
        start, stop = self.visit(loop.start), self.visit(loop.stop)
        low = self._clamped("max", start, lows, stop) if lows else start
        high = self._clamped("min", stop, highs, low) if highs else stop
        parts: list[ir.Statement] = []
        low, high = self._named(low, f"{loop.var.name}_first", parts), self._named(high, f"{loop.var.name}_end", parts)
        if lows:
            parts += self._outside(loop, start, low, [bound for bound, _ in below])
        with self._deciding([bound for bound, _ in moving], True):
            parts += _nonempty([self._part(loop, low, high)])
        if highs:
            parts += self._outside(loop, high, stop, [bound for bound, _ in beyond])
        return parts

    def _named(self, value: ir.Expr, name: str, parts: list[ir.Statement]) -> ir.Expr:
        """`value` under a name of its own, where it is worth one."""
        if isinstance(value, (ir.Const, ir.Var)):
            return value
        var = ir.Var(value.dtype, name)
        parts.append(ir.Let(var, value))
        self.analyzer.bind(var, value, value)
        return var

    def _limit(self, loop: ir.For, bound: _Bound, stride: int) -> ir.Expr:
        """The first value of the loop's variable that is inside (for a low limit) or beyond (for a high one)."""
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)  # the range is what makes ``i % 128`` an i
            rest = self.analyzer.simplify(bound.index - loop.var * stride)
        room = (bound.extent if bound.extent is not None else ir.const(0)) - rest
        if stride > 0:
            limit = (room + (stride - 1)) // stride  # ceil(room / stride)
        else:
            back = (ir.const(0) - room) // (-stride)
            limit = back + 1
        return self.analyzer.simplify(limit)

    def _clamped(self, op: str, end: ir.Expr, limits: list[ir.Expr], other: ir.Expr) -> ir.Expr:
        """`end` moved to the tightest limit (of any width), but not past the `other` end of the loop."""
        unique = list({key(limit): limit for limit in limits}.values())
        result = end
        for limit in unique:
            result = ir.index_binary(op, result, limit)
        opposite = "max" if op == "min" else "min"
        return self.analyzer.simplify(ir.cast(ir.index_binary(opposite, result, other), end.dtype))

    def _outside(self, loop: ir.For, start: ir.Expr, stop: ir.Expr, failing: list[_Bound]) -> list[ir.Statement]:
        """The part of a loop where bounds fail: certainly where there is one, else decided at each access."""
        if len({bound.name for bound in failing}) > 1:
            return _nonempty([self._part(self.copy_of(loop), start, stop)])
        copy = self.copy_of(loop)
        renamed = [_renamed(bound, loop.var, copy.var) for bound in failing]
        with self._deciding(renamed, False):
            return _nonempty([self._part(copy, start, stop)])

    def _part(self, loop: ir.For, start: ir.Expr, stop: ir.Expr) -> ir.Statement | None:
        with self.analyzer.scope():
            part = replace(loop, start=start, stop=stop)
            if self.analyzer.prove(ir.index_binary("ge", start, stop)):
                return None
            bind_loop(self.analyzer, part)
            body = self(loop.body)
        return replace(part, body=body) if _has_work(body) else None

    @contextmanager
    def _deciding(self, bounds: list[_Bound], value: bool) -> Iterator[None]:
        """While entered, bounds are taken to hold or to fail."""
        before = self.decided
        self.decided = {**before, **dict.fromkeys((bound.name for bound in bounds), value)}
        try:
            yield
        finally:
            self.decided = before


def _renamed(bound: _Bound, old: ir.Var, new: ir.Var) -> _Bound:
    index = substitute(bound.index, {old: new})
    return _Bound(index, bound.extent, (key(index), bound.name[1]))


def _bounds_in(condition: ir.Expr) -> Iterator[_Bound]:
    """The bounds that a condition is made of."""
    for one in conjuncts(condition):
        if isinstance(one, ir.Binary) and one.op == "lt":
            yield _Bound(one.left, one.right, (key(one.left), key(one.right)))
        elif isinstance(one, ir.Binary) and one.op == "ge" and getattr(one.right, "value", None) == 0:
            yield _Bound(one.left, None, (key(one.left), None))


def _elements(value: ir.Expr) -> list[ir.Region]:
    """The single elements that a call takes; a function of more of them looks after its bounds itself."""
    if not isinstance(value, ir.Call) or (value.function in INTRINSICS and INTRINSICS[value.function].checks_bounds):
        return []
    return [one for one in value.regions if all(isinstance(size, int) and size == 1 for size in one.extents)]


def _is_global_access(node: ir.Record) -> bool:
    return isinstance(node, (ir.Load, ir.Store, ir.Region)) and node.buffer.scope == "global"


def _is_small(loop: ir.For) -> bool:
    count = 0
    for node in find(loop, ir.Statement):
        count += not isinstance(node, ir.Seq)
        if count > LARGEST_SPLIT:
            return False
    return True


def _has_work(body: ir.Statement) -> bool:
    return any(
        isinstance(node, (ir.Store, ir.Evaluate, ir.Assert, ir.Print, ir.Break, ir.Return, ir.While))
        for node in walk(body)
    )


def _nonempty(parts: Iterable[ir.Statement | None]) -> list[ir.Statement]:
    return [part for part in parts if part is not None]
