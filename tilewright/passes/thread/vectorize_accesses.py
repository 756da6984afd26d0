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
from tilewright.ir import nodes
from tilewright.ir.dtypes import DType
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Expr,
    For,
    Function,
    If,
    Let,
    Load,
    Record,
    Seq,
    Statement,
    Store,
    Var,
    binary,
    const,
    index_binary,
    seq,
)
from tilewright.ir.visitor import Rewritten, children, find, listed, same, substitute, walk
from tilewright.ops.base import is_one
from tilewright.passes.context import Context
from tilewright.passes.scoped import ScopedRewriter, bind_loop, fresh, with_values
from tilewright.passes.thread.first_lanes import NoFirstLanes, first_lanes, first_of
from tilewright.passes.thread.lanes import Lanes, NotVectorizable

FOLDS = frozenset({"add", "mul", "min", "max", "and", "or", "xor"})
"""Operators whose results may be combined in any order."""
FEWEST_LANES = 4
"""Shorter vectors are no better than some lanes of a longer one."""
CHAINS = 4
"""Vectors of partial results of a fold: an operation takes four cycles, and the next may start while it runs."""

V = TypeVar("V")


def vectorize_accesses(function: Function, context: Context) -> Function:
    """Run loops of kind ``vectorize`` and folding loops on vectors as wide as the machine's."""
    return function.with_body(_Vectorize(function, context.arch.vector_bytes)(function.body))


class _Vectorize(ScopedRewriter):
    def __init__(self, function: Function, vector_bytes: int) -> None:
        super().__init__(function)
        self.vector_bytes = vector_bytes

    def visit_Seq(self, sequence: Seq) -> Seq:
        folded = _start_from_first(sequence)
        return super().visit_Seq(folded)

    def visit_For(self, loop: For) -> Rewritten:
        if is_one(loop.step):
            made = self.vectors(loop) if loop.kind == "vectorize" else self.fold(loop)
            if made is not None:
                return made
        if loop.kind == "vectorize":
            loop = replace(loop, kind="serial")
        return super().visit_For(loop)

    # Independent iterations

    def vectors(self, loop: For) -> list[Statement] | None:
        """`loop` as a loop over vectors and a loop over the rest, or None."""
        extent = self.extent(loop)
        lanes = self.lanes_for(loop, extent)
        if lanes < 2:
            return None
        body = self.vector_body(loop, lanes)
        if body is None:
            return None
        named, end = self.whole_vectors(loop, extent, lanes)
        main = replace(loop, stop=end, step=const(lanes, loop.var.dtype), body=body, kind="serial")
        return [*named, main, *self.rest(loop, body, end, extent, lanes)]

    def vector_body(self, loop: For, lanes: int) -> Seq | None:
        return self.in_lanes(loop, lanes, lambda made: made.body(loop.body))

    def in_lanes(self, loop: For, lanes: int, make: Callable[[Lanes], V]) -> V | None:
        """What `make` makes of a part of a loop whose variable is a multiple of `lanes`; None where no vectors do
        that."""
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            offset = loop.var - loop.start
            self.analyzer.assume(binary("eq", offset % lanes, const(0, loop.var.dtype)))
            try:
                return make(Lanes(loop, lanes, self.analyzer))
            except NotVectorizable:
                return None

    def rest(self, loop: For, body: Seq, end: Expr, extent: Expr, lanes: int) -> list[Statement]:
        """The iterations from `end` on, fewer than one vector: one whose other lanes do not exist."""
        if self.analyzer.divides(extent, lanes):
            return []
        if not _fills_narrower_vectors(extent, lanes):
            try:
                return _partial(loop, body, end, extent, lanes)
            except NoFirstLanes:
                pass
        tail = replace(fresh(loop), start=end)
        known = isinstance(extent, nodes.Const)
        return listed(self.visit(tail) if known else super().visit_For(replace(tail, kind="serial")))

    def extent(self, loop: For) -> Expr:
        extent = self.analyzer.simplify(binary("sub", loop.stop, loop.start))
        if self.analyzer.nonnegative(extent):
            return extent
        return binary("max", extent, const(0, extent.dtype))

    def whole_vectors(self, loop: For, extent: Expr, lanes: int) -> tuple[list[Statement], Expr]:
        """Where the last whole vector ends, and the name it gets where it has to be computed."""
        count = extent // lanes * lanes
        end = self.analyzer.simplify(binary("add", loop.start, count))
        if isinstance(end, (nodes.Const, Var)):
            return [], end
        var = Var(end.dtype, f"{loop.var.name}_vectors")
        self.analyzer.bind(var, end, end)
        return [Let(var, end)], var

    def lanes_for(self, loop: For, extent: Expr) -> int:
        """Lanes of the widest number that the loop works on, fewer where the loop is shorter."""
        lanes = self.vector_bytes * 8 // widest_bits(loop.body)
        most = self.analyzer.bounds(extent)[1]
        while most is not None and lanes > most:
            lanes //= 2
        return lanes

    # Folds

    def fold(self, loop: For) -> list[Statement] | None:
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
        if not self.analyzer.prove(index_binary("ge", extent, lanes)):
            main = [If(index_binary("ge", extent, lanes), seq(main), span=loop.span)]
        return [*named, *main, *self._scalar_rest(loop, end, extent, lanes)]

    def _folded_rest(
        self, loop: For, store: Store, op: str, value: Expr, end: Expr, extent: Expr, lanes: int
    ) -> list[_Rest] | None:
        """The last vector, whose other lanes change nothing; None where there must be a scalar loop."""
        if self.analyzer.divides(extent, lanes):
            return []
        neutral = _neutral(op, value.dtype.scalar)
        if neutral is None:
            return None
        var = Var(loop.var.dtype, loop.var.name)
        at = end if isinstance(extent, nodes.Const) else var
        count = self.analyzer.simplify(loop.stop - at)
        try:
            some = first_lanes(value, loop.var, lanes, nodes.cast(count, nodes.dtypes.INT32))
        except NoFirstLanes:
            return None
        last = with_values(first_of(some, count, neutral), {loop.var: at})
        return [_Rest(last, None if at is end else replace(loop, var=var, start=end, step=const(lanes, var.dtype)))]

    def _scalar_rest(self, loop: For, end: Expr, extent: Expr, lanes: int) -> list[Statement]:
        if self.analyzer.divides(extent, lanes):
            return []
        tail = replace(fresh(loop), start=end)
        if isinstance(extent, nodes.Const):
            shorter = self.fold(tail)
            if shorter is not None:
                return shorter
        return listed(super().visit_For(tail))

    def vector_value(self, loop: For, value: Expr, lanes: int) -> Expr | None:
        made = self.in_lanes(loop, lanes, lambda made: made.expression(value))
        return made if made is not None and made.dtype.lanes > 1 else None

    def _partial_results(
        self, loop: For, store: Store, op: str, value: Expr, end: Expr, lanes: int, rest: list[_Rest]
    ) -> list[Statement]:
        """The fold of whole vectors, in several chains where their number is known and large enough."""
        vectors = self.analyzer.simplify(binary("sub", end, loop.start))
        count = int(vectors.value) // lanes if isinstance(vectors, nodes.Const) else 0
        chains = CHAINS if count >= 2 * CHAINS else 1
        dtype, step = value.dtype, chains * lanes
        partial = Buffer(f"{store.buffer.name}_lanes", (step,), dtype.scalar, scope="register")

        def at(position: Expr) -> Expr:
            return with_values(value, {loop.var: nodes.cast(self.analyzer.simplify(position), loop.var.dtype)})

        def begin(chain: int) -> Statement:
            first = loop.start + chain * lanes
            return Store(partial, (const(chain * lanes),), at(first), span=loop.span)

        def further(chain: int, position: Expr) -> Statement:
            place = (const(chain * lanes),)
            return Store(partial, place, binary(op, Load(dtype, partial, place), at(position)))

        neutral = _neutral(op, dtype.scalar)
        start = loop.start
        if neutral is None:
            beginning = [begin(chain) for chain in range(chains)]
            start = nodes.cast(self.analyzer.simplify(loop.start + step), loop.var.dtype)
        else:
            # Loops that start where others do can be joined with them (fuse_loops).
            beginning = [
                Store(partial, (const(chain * lanes),), nodes.Broadcast(dtype, neutral), span=loop.span)
                for chain in range(chains)
            ]
        whole = count // chains * chains
        stop = loop.start + whole * lanes if count else end
        body = [further(chain, loop.var + chain * lanes) for chain in range(chains)]
        rounds = replace(
            loop,
            start=start,
            stop=nodes.cast(self.analyzer.simplify(stop), loop.var.dtype),
            step=const(step, loop.var.dtype),
            body=seq(*body),
        )
        left: list[Statement] = [further(chain, loop.start + (whole + chain) * lanes) for chain in range(count - whole)]
        for last in rest:
            place = (const((count - whole) % chains * lanes),)
            folded = Store(partial, place, binary(op, Load(dtype, partial, place), last.value))
            left.append(folded if last.loop is None else replace(last.loop, body=seq(folded)))
        parts: list[Expr] = [Load(dtype, partial, (const(chain * lanes),)) for chain in range(chains)]
        while len(parts) > 1:
            parts = [binary(op, one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
        total = Call(dtype.scalar, f"lanes_{op}", (parts[0],))
        old = Load(dtype.scalar, store.buffer, store.indices)
        return [Allocate(partial), *beginning, rounds, *left,
                replace(store, value=binary(op, old, total))]  # fmt: skip


@dataclass(frozen=True)
class _Rest:
    """What the last vector of a fold adds, and the loop around it where it may not exist."""

    value: Expr
    loop: For | None


def _fills_narrower_vectors(extent: Expr, lanes: int) -> bool:
    """Whether what whole vectors leave over is one vector of fewer lanes."""
    left = int(extent.value) % lanes if isinstance(extent, nodes.Const) else 0
    return left >= FEWEST_LANES and left & (left - 1) == 0


def _partial(loop: For, body: Seq, end: Expr, extent: Expr, lanes: int) -> list[Statement]:
    """The iterations from `end` on by a `body` on vectors; a loop that may run once where their number is not known."""
    if isinstance(extent, nodes.Const):
        count: Expr = const(int(extent.value) % lanes)
        return list(with_values(fresh(first_lanes(body, loop.var, lanes, count)), {loop.var: end}).statements)
    count = nodes.cast(loop.stop - loop.var, nodes.dtypes.INT32)
    tail = replace(loop, start=end, step=const(lanes, loop.var.dtype), kind="serial",
                   body=first_lanes(body, loop.var, lanes, count))  # fmt: skip
    return [fresh(tail)]


def _fold_of(loop: For) -> tuple[Store, str, Expr] | None:
    """The store, operator and value of a loop that only folds into one place."""
    statements = loop.body.statements
    if len(statements) != 1 or not isinstance(statements[0], Store):
        return None
    store = statements[0]
    value = store.value
    if not isinstance(value, nodes.Binary) or value.op not in FOLDS or value.dtype.kind == "bool":
        return None
    if store.buffer.dtype.is_packed or any(node is loop.var for index in store.indices for node in walk(index)):
        return None
    for old, new in ((value.left, value.right), (value.right, value.left)):
        reads = isinstance(old, Load) and old.buffer is store.buffer and all(map(same, old.indices, store.indices))
        if reads and not any(node is store.buffer for node in find(new, Var)):
            return store, value.op, new
    return None


def _start_from_first(sequence: Seq) -> Seq:
    """``total = value(0); for k in range(1, n): total = total op value(k)`` counts from 0 instead.

    The first vector then starts where the row does.  The scalar begins with what changes nothing.
    """
    statements = list(sequence.statements)
    for position in range(len(statements) - 1):
        begin, loop = statements[position], statements[position + 1]
        if not isinstance(begin, Allocate) or not isinstance(loop, For) or begin.initial is None:
            continue
        found = _fold_of(loop)
        neutral = None if found is None else _neutral(found[1], begin.buffer.dtype)
        if found is None or neutral is None or found[0].buffer is not begin.buffer:
            continue
        if not is_one(loop.start):
            continue
        zero = const(0, loop.var.dtype)
        if Analyzer().equal(substitute(found[2], {loop.var: zero}), begin.initial):
            statements[position] = replace(begin, initial=neutral)
            statements[position + 1] = replace(loop, start=zero)
            return replace(sequence, statements=tuple(statements))
    return sequence


def _neutral(op: str, dtype: DType) -> Expr | None:
    """The value that `op` leaves every other value unchanged with."""
    if op == "add":
        return const(-0.0 if dtype.is_float else 0, dtype)
    if op in ("min", "max") and dtype.is_float and dtype.nans:
        return const(float("nan"), dtype)
    if op in ("min", "max") and dtype.is_integer:
        return const(dtype.maximum if op == "min" else dtype.minimum, dtype)
    return const(0, dtype) if op in ("or", "xor") and dtype.is_integer else None


def widest_bits(body: Statement) -> int:
    """Width of the widest number that vectors of the body would hold; indices are not among them."""
    return max((_bits_of(node) for node in _values(body)), default=8)


def _values(node: Record) -> Iterator[Any]:
    """Statements and values below `node`, without the index arithmetic of accesses and loops."""
    yield node
    if isinstance(node, Load):
        return
    if isinstance(node, Store):
        yield from _values(node.value)
        return
    for child in [node.body] if isinstance(node, For) else children(node):
        if not isinstance(child, Buffer):
            yield from _values(child)


def _bits_of(node: Record) -> int:
    if isinstance(node, Store):
        return _storage_bits(node.buffer.dtype)
    if not isinstance(node, Expr):
        return 8
    operands = [child for child in children(node) if isinstance(child, Expr)] if not isinstance(node, Load) else []
    computes = isinstance(node, (nodes.Binary, nodes.Unary, nodes.Call, nodes.Cast))
    in_float = computes and any(part.dtype.is_float for part in (node, *operands))
    return max(32 if in_float else 8, _storage_bits(node.dtype))


def _storage_bits(dtype: DType) -> int:
    return 8 if dtype.kind == "bool" else max(dtype.bits, 8)
