"""An author's condition that only keeps stores within a tensor says what accesses of tensors mean anyway.

Before::

    @stage("traced")
    def f(A: float32[n], C: float32[n], *, n: int32) -> C:
        with kernel(blocks={bx: (n + 511) // 512}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(512):
                if bx * 512 + i < n:
                    C[bx * 512 + i] = A[bx * 512 + i]

After::

    @stage("traced")
    def f(A: float32[n], C: float32[n], *, n: int32) -> C:
        with kernel(blocks={bx: (n + 511) // 512}, threads={tx: 128, ty: 1, tz: 1}):
            for i in parallel(512):
                C[bx * 512 + i] = A[bx * 512 + i]

A store beyond a tensor's end has no effect, and reading there gives a value that only such stores would take. Where the
guards of accesses are written later, they stand once for several elements; a condition written by the author asks each
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir import INTRINSICS, Rewritten, conjunction, conjuncts, find, having, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, ScopedRewriter, negated, reads_nothing


def drop_guards(function: ir.Function, context: Context) -> ir.Function:
    """Leave out conditions without which the same elements of tensors are written."""
    return function.with_body(_Drop(function)(function.body))


class _Drop(ScopedRewriter):
    def __init__(self, function: ir.Function) -> None:
        super().__init__(function)
        self.neighbours: ir.Var | None = None
        """The variable of the loop around whose iterations one access may join."""

    def visit_Parallel(self, loop: ir.Parallel) -> Rewritten:
        with having(self, neighbours=loop.vars[-1]):
            return super().visit_Parallel(loop)

    def visit_For(self, loop: ir.For) -> Rewritten:
        with having(self, neighbours=loop.var if loop.kind == "vectorize" else self.neighbours):
            return super().visit_For(loop)

    def visit_If(self, branch: ir.If) -> Rewritten:
        made = super().visit_If(branch)
        if self.neighbours is None or not isinstance(made, ir.If) or made.otherwise is not None:
            return made
        if not any(map(self._moves_neighbours, find(made.then, ir.Store, ir.Evaluate))):
            return made
        parts = list(conjuncts(made.condition))
        needed = parts
        for part in parts:
            others = [one for one in needed if one is not part]
            if self._says_nothing(part, others, made.then):
                needed = others
        if needed is parts:
            return made
        if not needed:
            return list(made.then.statements)
        return replace(made, condition=conjunction(needed))

    def _moves_neighbours(self, store: ir.Statement) -> bool:
        """Whether a store's place goes on with the loop, so that several iterations may share an access."""
        place = _place(store)
        if place is None or not place[1] or self.neighbours is None:
            return False
        return ir.is_literal(self.analyzer.stride(place[1][-1], self.neighbours), 1)

    def _says_nothing(self, part: ir.Expr, others: Sequence[ir.Expr], body: ir.Seq) -> bool:
        """Whether a part of a condition may go: where it does not hold, nothing in `body` has an effect or does
        harm."""
        if not reads_nothing(part):
            return False
        if self.analyzer.prove(part):
            return True
        with self.analyzer.scope():
            if not all(self._harmless(node) for one in (*others, body) for node in walk(one)):
                return False
            self.analyzer.assume(negated(part))
            return all(self._without_effect(statement) for statement in body.statements)

    def _harmless(self, node: object) -> bool:
        """Whether evaluating this where the author did not foresee it is defined."""
        if isinstance(node, ir.Call):
            return INTRINSICS[node.function].pure or node.function == "atomic_add"
        if isinstance(node, ir.Binary) and node.dtype.is_integer and node.op in ("div", "floordiv", "floormod"):
            return isinstance(node.right, ir.Const)
        if isinstance(node, ir.Load) and node.buffer.scope != "global":
            return all(map(self._inside, node.indices, node.buffer.shape))
        return True

    def _inside(self, index: ir.Expr, extent: Any) -> bool:
        prove = self.analyzer.prove
        return prove(ir.index_binary("ge", index, 0)) and prove(ir.index_binary("lt", index, extent))

    def _without_effect(self, statement: ir.Statement) -> bool:
        """Whether all that a statement changes lies outside of tensors."""
        if isinstance(statement, ir.Let):
            if statement.value.dtype.is_integer and reads_nothing(statement.value):
                self.analyzer.bind(statement.var, statement.value, statement.value)
            return True
        if isinstance(statement, ir.If):
            ways = [statement.then, *([statement.otherwise] if statement.otherwise is not None else [])]
            return all(self._without_effect(one) for way in ways for one in way.statements)
        place = _place(statement)
        return place is not None and self.is_outside(*place)


def _place(statement: object) -> tuple[ir.Buffer, tuple[ir.Expr, ...]] | None:
    """The element of a tensor that a statement stores, or adds to in no particular order."""
    if isinstance(statement, ir.Store) and statement.buffer.scope == "global":
        return statement.buffer, statement.indices
    call = statement.value if isinstance(statement, ir.Evaluate) else None
    if call is not None and call.function == "atomic_add" and call.arguments[2] == "relaxed":
        region = call.arguments[0]
        if (
            isinstance(region, ir.Region)
            and region.buffer.scope == "global"
            and all(one == 1 for one in region.extents)
        ):
            return region.buffer, region.starts
    return None
