"""In a pipelined loop, what a name or a scalar's declaration reads of the loop's own memory is stored: a statement with
a place.

Statements of a pipelined loop get places of their own, ahead of others or behind them; names and declarations stand
before all of them.

Before::

    @stage("traced")
    def f(A: float32[64], B: float32[8]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            tile = shared(float32[8])
            for k in pipelined(8, num_stages=2):
                copy(source=A[k * 8 : +8], destination=tile)
                w: float32 = tile[5]
                B[k] = w * 2.0

After::

    @stage("traced")
    def f(A: float32[64], B: float32[8]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
            tile = shared(float32[8])
            for k in pipelined(8, num_stages=2):
                copy(source=A[k * 8 : +8], destination=tile)
                w = scalar(float32[()])
                w[()] = tile[5]
                B[k] = w[()] * 2.0

Names of what the loop does not write stay names: loads ahead of their iteration may ask them. In a plan of the
author's, which has no numbers for names, the store stands just before the first statement that uses it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Rewriter, Rewritten, find, has_effect, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.passes.context import Context


def store_names(function: ir.Function, context: Context) -> ir.Function:
    """Store what names in pipelined loops read of memory that the loops write."""
    return _Stored()(function)


class _Stored(Rewriter):
    def visit_Pipelined(self, original: ir.Pipelined) -> Rewritten:
        loop = self.generic(original)
        planned = (loop.order, loop.stage) != (None, None)
        if loop.num_stages == 0 and not planned:
            return loop
        made, stored = _with_stores(loop)
        if not stored:
            return loop
        changed = replace(loop, body=replace(loop.body, statements=tuple(made)))
        return _numbered(changed, stored) if planned else changed


def _with_stores(loop: ir.Pipelined) -> tuple[list[ir.Statement], dict[ir.Statement, ir.Buffer]]:
    """The statements of a body with reads apart, and which of them are stores that the author did not count."""
    written = set(touched(loop.body).writes)
    values: dict[ir.Var, ir.Expr] = {}
    made: list[ir.Statement] = []
    stored: dict[ir.Statement, ir.Buffer] = {}
    for one in loop.body.statements:
        statement = substitute(one, values) if values else one
        value: ir.Expr | None = None
        plain = isinstance(statement, ir.Let) and statement.value.dtype.lanes == 1 and not has_effect(statement)
        if isinstance(statement, ir.Let) and plain and touched(statement).reads & written:
            scalar, value = ir.Buffer(statement.var.name, (), statement.value.dtype, "scalar"), statement.value
            declaration: ir.Statement = ir.Allocate(scalar, span=statement.span)
            values[statement.var] = ir.Load(scalar.dtype, scalar, ())
        elif (
            isinstance(statement, ir.Allocate) and statement.initial is not None and statement.buffer.scope == "scalar"
        ):
            scalar, value = statement.buffer, statement.initial
            declaration = replace(statement, initial=None)
        if value is None:
            made.append(statement)
            continue
        store = ir.Store(scalar, (ir.const(0),) * scalar.rank, value, span=statement.span)
        made += [declaration, store]
        stored[store] = scalar
        written.add(scalar)
    return made, stored


def _numbered(loop: ir.Pipelined, stored: dict[ir.Statement, ir.Buffer]) -> ir.Pipelined:
    """A loop with the author's plan, which gets numbers for stores that the author did not count."""
    counted = [one for one in loop.body.statements if not isinstance(one, (ir.Let, ir.Allocate))]
    by_author = [one for one in counted if one not in stored]
    given = {"order": loop.order, "stage": loop.stage}
    if any(numbers is not None and len(numbers) != len(by_author) for numbers in given.values()):
        return loop  # which `plan_pipeline` refuses
    places: dict[ir.Statement, int] = {one: place for place, one in enumerate(by_author)}
    for place, one in reversed(list(enumerate(counted))):
        if one in stored:
            users = [places[later] for later in counted[place + 1 :] if stored[one] in set(find(later, ir.Buffer))]
            places[one] = min(users, key=lambda user: _rank(loop, user), default=len(by_author) - 1)
    stages = None if loop.stage is None else tuple(loop.stage[places[one]] for one in counted)
    orders = None
    if loop.order is not None:
        order = loop.order
        ranked = sorted(counted, key=lambda one: (order[places[one]], one not in stored, counted.index(one)))
        orders = tuple(ranked.index(one) for one in counted)
    return replace(loop, order=orders, stage=stages)


def _rank(loop: ir.Pipelined, statement: int) -> tuple[int, int]:
    """When a statement of the author's runs: its stage, and its place in a step."""
    stage = 0 if loop.stage is None else loop.stage[statement]
    return stage, statement if loop.order is None else loop.order[statement]
