"""Loops over neighbouring elements become loops over vectors; of the last one only some lanes exist.

Before::

    @stage("final")
    def f(A: float32[100], B: float32[1], C: float32[100]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in vectorize(100):
                C[i] = A[i] + B[0]

After, on a machine with vectors of 16 floats::

    @stage("final")
    def f(A: float32[100], B: float32[1], C: float32[100]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in range(0, 96, 16):
                C[i].x16 = A[i].x16 + broadcast(B[0], 16)
            for i in range(96, 100, 4):
                C[i].x4 = A[i].x4 + broadcast(B[0], 4)

A serial loop that folds values into one place becomes a loop over vectors of partial results, combined at the
end; sums of floats are thereby taken in another order.  What cannot be expressed in vectors stays scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tilewright.arith import Analyzer
from tilewright.ir import DType, Rewritten, children, find, listed, same, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, ScopedRewriter, bind_loop, fresh, with_values
from tilewright.passes.thread.first_lanes import NoFirstLanes, first_lanes, first_of
from tilewright.passes.thread.lanes import Lanes, NotVectorizable

FOLDS = frozenset({"add", "mul", "min", "max", "and", "or", "xor"})
"""Operators whose results may be combined in any order."""
FEWEST_LANES = 4
"""Shorter vectors are no better than some lanes of a longer one."""
CHAINS = 4
"""Vectors of partial results of a fold: an operation takes four cycles, and the next may start while it runs."""

V = TypeVar("V")


def vectorize_accesses(function: ir.Function, context: Context) -> ir.Function:
    """Run loops of kind ``vectorize`` and folding loops on vectors as wide as the machine's."""
    return function.with_body(_Vectorize(function, context.arch.vector_bytes)(function.body))


class _Vectorize(ScopedRewriter):
    def __init__(self, function: ir.Function, vector_bytes: int) -> None:
        super().__init__(function)
        self.vector_bytes = vector_bytes

    def visit_Seq(self, sequence: ir.Seq) -> ir.Seq:
        folded = _start_from_first(sequence)
        return super().visit_Seq(folded)

    def visit_For(self, loop: ir.For) -> Rewritten:
        if ir.is_literal(loop.step, 1):
            made = self.vectors(loop) if loop.kind == "vectorize" else self.fold(loop)
            if made is not None:
                return made
        if loop.kind == "vectorize":
            loop = replace(loop, kind="serial")
        return super().visit_For(loop)

    # Independent iterations

    def vectors(self, loop: ir.For) -> list[ir.Statement] | None:
        """`loop` as a loop over vectors and a loop over the rest, or None."""
        extent = self.extent(loop)
        lanes = self.lanes_for(loop, extent)
        if lanes < 2:
            return None
        body = self.in_lanes(loop, lanes, lambda made: made.body(loop.body))
        if body is None:
            return None
        named, end = self.whole_vectors(loop, extent, lanes)
        main = replace(loop, stop=end, step=ir.const(lanes, loop.var.dtype), body=body, kind="serial")
        return [*named, main, *self.rest(loop, body, end, extent, lanes)]

    def in_lanes(self, loop: ir.For, lanes: int, make: Callable[[Lanes], V]) -> V | None:
        """What `make` makes of a part of a loop whose variable is a multiple of `lanes`; None where no vectors do
        that."""
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            offset = loop.var - loop.start
            self.analyzer.assume(ir.binary("eq", offset % lanes, ir.const(0, loop.var.dtype)))
            try:
                return make(Lanes(loop, lanes, self.analyzer))
            except NotVectorizable:
                return None

    def rest(self, loop: ir.For, body: ir.Seq, end: ir.Expr, extent: ir.Expr, lanes: int) -> list[ir.Statement]:
        """The iterations from `end` on, fewer than one vector: one whose other lanes do not exist."""
        if self.analyzer.divides(extent, lanes):
            return []
        if not _fills_narrower_vectors(extent, lanes):
            try:
                return _partial(loop, body, end, extent, lanes)
            except NoFirstLanes:
                pass
        tail = replace(fresh(loop), start=end)
        known = isinstance(extent, ir.Const)
        return listed(self.visit(tail) if known else super().visit_For(replace(tail, kind="serial")))

    def extent(self, loop: ir.For) -> ir.Expr:
        extent = self.analyzer.simplify(ir.binary("sub", loop.stop, loop.start))
        if self.analyzer.nonnegative(extent):
            return extent
        return ir.binary("max", extent, ir.const(0, extent.dtype))

    def whole_vectors(self, loop: ir.For, extent: ir.Expr, lanes: int) -> tuple[list[ir.Statement], ir.Expr]:
        """Where the last whole vector ends, and the name it gets where it has to be computed."""
        count = extent // lanes * lanes
        end = self.analyzer.simplify(ir.binary("add", loop.start, count))
        if isinstance(end, (ir.Const, ir.Var)):
            return [], end
        var = ir.Var(end.dtype, f"{loop.var.name}_vectors")
        self.analyzer.bind(var, end, end)
        return [ir.Let(var, end)], var

    def lanes_for(self, loop: ir.For, extent: ir.Expr) -> int:
        """Lanes of the widest number that the loop works on, fewer where the loop is shorter."""
        lanes = self.vector_bytes * 8 // max((_bits_of(node) for node in _values(loop.body)), default=8)
        most = self.analyzer.bounds(extent)[1]
        while most is not None and lanes > most:
            lanes //= 2
        return lanes

    # Folds

    def fold(self, loop: ir.For) -> list[ir.Statement] | None:
        """``for k: place = place op value(k)`` as vectors of partial results, or None."""
        found = _fold_of(loop)
        if found is None:
            return None
        store, op, value = found
        extent = self.extent(loop)
        lanes = self.lanes_for(loop, extent)
        if lanes < 2:
            return None
        body = self.vector_value(loop, value, lanes)
        if body is None:
            return None
        named, end = self.whole_vectors(loop, extent, lanes)
        rest = self._folded_rest(loop, store, op, body, end, extent, lanes)
        main = self._partial_results(loop, store, op, body, end, lanes, rest or [])
        if rest is not None:
            return [*named, *main]
        if not self.analyzer.prove(ir.index_binary("ge", extent, lanes)):
            main = [ir.If(ir.index_binary("ge", extent, lanes), ir.seq(main), span=loop.span)]
        return [*named, *main, *self._scalar_rest(loop, end, extent, lanes)]

    def _folded_rest(
        self, loop: ir.For, store: ir.Store, op: str, value: ir.Expr, end: ir.Expr, extent: ir.Expr, lanes: int
    ) -> list[_Rest] | None:
        """The last vector, whose other lanes change nothing; None where there must be a scalar loop."""
        if self.analyzer.divides(extent, lanes):
            return []
        neutral = _neutral(op, value.dtype.scalar)
        if neutral is None:
            return None
        var = ir.Var(loop.var.dtype, loop.var.name)
        at = end if isinstance(extent, ir.Const) else var
        count = self.analyzer.simplify(loop.stop - at)
        try:
            some = first_lanes(value, loop.var, lanes, ir.cast(count, ir.dtypes.INT32))
        except NoFirstLanes:
            return None
        last = with_values(first_of(some, count, neutral), {loop.var: at})
        return [_Rest(last, None if at is end else replace(loop, var=var, start=end, step=ir.const(lanes, var.dtype)))]

    def _scalar_rest(self, loop: ir.For, end: ir.Expr, extent: ir.Expr, lanes: int) -> list[ir.Statement]:
        if self.analyzer.divides(extent, lanes):
            return []
        tail = replace(fresh(loop), start=end)
        if isinstance(extent, ir.Const):
            shorter = self.fold(tail)
            if shorter is not None:
                return shorter
        return listed(super().visit_For(tail))

    def vector_value(self, loop: ir.For, value: ir.Expr, lanes: int) -> ir.Expr | None:
        made = self.in_lanes(loop, lanes, lambda made: made.expression(value))
        return made if made is not None and made.dtype.lanes > 1 else None

    def _partial_results(
        self, loop: ir.For, store: ir.Store, op: str, value: ir.Expr, end: ir.Expr, lanes: int, rest: list[_Rest]
    ) -> list[ir.Statement]:
        """The fold of whole vectors, in several chains where their number is known and large enough."""
        vectors = self.analyzer.simplify(ir.binary("sub", end, loop.start))
        count = int(vectors.value) // lanes if isinstance(vectors, ir.Const) else 0
        chains = CHAINS if count >= 2 * CHAINS else 1
        dtype, step = value.dtype, chains * lanes
        partial = ir.Buffer(f"{store.buffer.name}_lanes", (step,), dtype.scalar, scope="register")

        def at(position: ir.Expr) -> ir.Expr:
            return with_values(value, {loop.var: ir.cast(self.analyzer.simplify(position), loop.var.dtype)})

        def begin(chain: int) -> ir.Statement:
            first = loop.start + chain * lanes
            return ir.Store(partial, (ir.const(chain * lanes),), at(first), span=loop.span)

        def further(chain: int, position: ir.Expr) -> ir.Statement:
            place = (ir.const(chain * lanes),)
            return ir.Store(partial, place, ir.binary(op, ir.Load(dtype, partial, place), at(position)))

        neutral = _neutral(op, dtype.scalar)
        start = loop.start
        if neutral is None:
            beginning = [begin(chain) for chain in range(chains)]
            start = ir.cast(self.analyzer.simplify(loop.start + step), loop.var.dtype)
        else:
            # Loops that start where others do can be joined with them (fuse_loops).
            beginning = [
                ir.Store(partial, (ir.const(chain * lanes),), ir.Broadcast(dtype, neutral), span=loop.span)
                for chain in range(chains)
            ]
        whole = count // chains * chains
        stop = loop.start + whole * lanes if count else end
        body = [further(chain, loop.var + chain * lanes) for chain in range(chains)]
        rounds = replace(
            loop,
            start=start,
            stop=ir.cast(self.analyzer.simplify(stop), loop.var.dtype),
            step=ir.const(step, loop.var.dtype),
            body=ir.seq(*body),
        )
        left: list[ir.Statement] = [
            further(chain, loop.start + (whole + chain) * lanes) for chain in range(count - whole)
        ]
        for last in rest:
            place = (ir.const((count - whole) % chains * lanes),)
            folded = ir.Store(partial, place, ir.binary(op, ir.Load(dtype, partial, place), last.value))
            left.append(folded if last.loop is None else replace(last.loop, body=ir.seq(folded)))
        parts: list[ir.Expr] = [ir.Load(dtype, partial, (ir.const(chain * lanes),)) for chain in range(chains)]
        while len(parts) > 1:
            parts = [ir.binary(op, one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
        total = ir.Call(dtype.scalar, f"lanes_{op}", (parts[0],))
        old = ir.Load(dtype.scalar, store.buffer, store.indices)
        return [ir.Allocate(partial), *beginning, rounds, *left,
                replace(store, value=ir.binary(op, old, total))]  # fmt: skip


@dataclass(frozen=True)
class _Rest:
    """What the last vector of a fold adds, and the loop around it where it may not exist."""

    value: ir.Expr
    loop: ir.For | None


def _fills_narrower_vectors(extent: ir.Expr, lanes: int) -> bool:
    """Whether what whole vectors leave over is one vector of fewer lanes."""
    left = int(extent.value) % lanes if isinstance(extent, ir.Const) else 0
    return left >= FEWEST_LANES and left & (left - 1) == 0


def _partial(loop: ir.For, body: ir.Seq, end: ir.Expr, extent: ir.Expr, lanes: int) -> list[ir.Statement]:
    """The iterations from `end` on by a `body` on vectors; a loop that may run once where their number is not known."""
    if isinstance(extent, ir.Const):
        count: ir.Expr = ir.const(int(extent.value) % lanes)
        return list(with_values(fresh(first_lanes(body, loop.var, lanes, count)), {loop.var: end}).statements)
    count = ir.cast(loop.stop - loop.var, ir.dtypes.INT32)
    tail = replace(
        loop,
        start=end,
        step=ir.const(lanes, loop.var.dtype),
        kind="serial",
        body=first_lanes(body, loop.var, lanes, count),
    )
    return [fresh(tail)]


def _fold_of(loop: ir.For) -> tuple[ir.Store, str, ir.Expr] | None:
    """The store, operator and value of a loop that only folds into one place."""
    statements = loop.body.statements
    if len(statements) != 1 or not isinstance(statements[0], ir.Store):
        return None
    store = statements[0]
    value = store.value
    if not isinstance(value, ir.Binary) or value.op not in FOLDS or value.dtype.kind == "bool":
        return None
    if store.buffer.dtype.is_packed or any(node is loop.var for index in store.indices for node in walk(index)):
        return None
    for old, new in ((value.left, value.right), (value.right, value.left)):
        reads = isinstance(old, ir.Load) and old.buffer is store.buffer and all(map(same, old.indices, store.indices))
        if reads and not any(node is store.buffer for node in find(new, ir.Var)):
            return store, value.op, new
    return None


def _start_from_first(sequence: ir.Seq) -> ir.Seq:
    """``total = value(0); for k in range(1, n): total = total op value(k)`` counts from 0 instead.

    The first vector then starts where the row does.  The scalar begins with what changes nothing.
    """
    statements = list(sequence.statements)
    for position in range(len(statements) - 1):
        begin, loop = statements[position], statements[position + 1]
        if not isinstance(begin, ir.Allocate) or not isinstance(loop, ir.For) or begin.initial is None:
            continue
        found = _fold_of(loop)
        neutral = None if found is None else _neutral(found[1], begin.buffer.dtype)
        if found is None or neutral is None or found[0].buffer is not begin.buffer:
            continue
        if not ir.is_literal(loop.start, 1):
            continue
        zero = ir.const(0, loop.var.dtype)
        if Analyzer().equal(substitute(found[2], {loop.var: zero}), begin.initial):
            statements[position] = replace(begin, initial=neutral)
            statements[position + 1] = replace(loop, start=zero)
            return replace(sequence, statements=tuple(statements))
    return sequence


def _neutral(op: str, dtype: DType) -> ir.Expr | None:
    """The value that `op` leaves every other value unchanged with."""
    if op == "add":
        return ir.const(-0.0 if dtype.is_float else 0, dtype)
    if op in ("min", "max") and dtype.is_float and dtype.nans:
        return ir.const(float("nan"), dtype)
    if op in ("min", "max") and dtype.is_integer:
        return ir.const(dtype.maximum if op == "min" else dtype.minimum, dtype)
    return ir.const(0, dtype) if op in ("or", "xor") and dtype.is_integer else None


def _values(node: ir.Record) -> Iterator[Any]:
    """Statements and values below `node`, without the index arithmetic of accesses and loops."""
    yield node
    if isinstance(node, ir.Load):
        return
    if isinstance(node, ir.Store):
        yield from _values(node.value)
        return
    for child in [node.body] if isinstance(node, ir.For) else children(node):
        if not isinstance(child, ir.Buffer):
            yield from _values(child)


def _bits_of(node: ir.Record) -> int:
    if isinstance(node, ir.Store):
        return _storage_bits(node.buffer.dtype)
    if not isinstance(node, ir.Expr):
        return 8
    operands = (
        [child for child in children(node) if isinstance(child, ir.Expr)] if not isinstance(node, ir.Load) else []
    )
    computes = isinstance(node, (ir.Binary, ir.Unary, ir.Call, ir.Cast))
    in_float = computes and any(part.dtype.is_float for part in (node, *operands))
    return max(32 if in_float else 8, _storage_bits(node.dtype))


def _storage_bits(dtype: DType) -> int:
    return 8 if dtype.kind == "bool" else max(dtype.bits, 8)
