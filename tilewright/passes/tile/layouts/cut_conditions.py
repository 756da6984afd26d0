"""A condition that threads meet one by one is cut in pieces, between which the whole block may meet.

Before::

    if tx < 64:
        v[0] = tile[63 - tx]
        tile[tx] = v[0] + 1

After::

    asked = tx < 64
    if asked:
        v[0] = tile[63 - tx]
    if asked:
        tile[tx] = v[0] + 1

No barrier may stand under such a condition, since some threads never come to it; between the pieces one may. What
holds once is asked once, in front: what the first piece does may change what the condition asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL
from tilewright.ir.effects import UPDATES
from tilewright.ir.structure import key
from tilewright.ir.visitor import find, holds
from tilewright.passes.scoped import negated, reads_nothing

_DIVISIONS = ("floordiv", "floormod", "div", "mod")

_NO_MEETING = frozenset({*UPDATES, "print_line", "dp4a", "prefetch", "prefetch_far", "stream", "store_first"})
"""Functions with an effect by which no thread waits for another."""


def ordered_by_author(branch: ir.If) -> bool:
    """Whether the author says in a branch who waits for whom, or something in it leaves a loop around it."""
    return holds(branch, ir.Wait, ir.Commit, ir.Roles, ir.TileOperator, ir.Break, ir.Continue) or any(
        isinstance(one.value, ir.Call) and one.value.function not in _NO_MEETING for one in find(branch, ir.Evaluate)
    )


def cut(branch: ir.If, meets: Callable[[ir.Statement], bool], alone: Callable[[ir.Expr], bool]) -> ir.Seq:
    """A branch in pieces.

    Parameters
    ----------
    meets : whether a barrier belongs into a statement.
    alone : whether a condition holds for one thread at most, which waits for no other.
    """
    return ir.Seq(tuple(_Cut(meets, alone).branch(branch, None)), span=branch.span)


def joined(body: ir.Seq) -> Iterator[ir.Statement]:
    """The statements with pieces of one condition joined where nothing stands between them."""
    last: ir.Statement | None = None
    for one in body.statements:
        if _are_pieces(last, one):
            assert isinstance(last, ir.If) and isinstance(one, ir.If)
            last = replace(last, then=replace(last.then, statements=(*last.then.statements, *one.then.statements)))
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _are_pieces(first: ir.Statement | None, second: ir.Statement) -> bool:
    """Whether two statements ask for one name, which nothing changes."""
    if not (isinstance(first, ir.If) and isinstance(second, ir.If) and isinstance(second.condition, ir.Var)):
        return False
    return first.condition is second.condition and first.otherwise is None and second.otherwise is None


class _Cut:
    def __init__(self, meets: Callable[[ir.Statement], bool], alone: Callable[[ir.Expr], bool]) -> None:
        self.meets, self.alone = meets, alone

    def branch(self, branch: ir.If, asked: ir.Var | None) -> Iterator[ir.Statement]:
        """A branch, where `asked` holds."""
        holding = ir.Var(BOOL, "asked")
        if asked is None or reads_nothing(branch.condition):
            both = branch.condition if asked is None else ir.binary("all", asked, branch.condition)
            yield ir.Let(holding, both, span=branch.span)
        else:
            yield from self._kept(holding, branch.condition, asked, branch)
        if self.alone(branch.condition):
            yield ir.If(holding, branch.then, span=branch.span)
        else:
            yield from self._sequence(branch.then, holding)
        if branch.otherwise is not None:
            other, rest = ir.Var(BOOL, "other"), negated(holding)
            yield ir.Let(other, rest if asked is None else ir.binary("all", asked, rest), span=branch.span)
            yield from self._sequence(branch.otherwise, other)

    def _sequence(self, body: ir.Seq, asked: ir.Var) -> Iterator[ir.Statement]:
        rest = list(body.statements)
        while rest:
            statement = rest.pop(0)
            apart = read_first(statement) if isinstance(statement, ir.Store) else statement
            if isinstance(apart, ir.Seq):
                rest[:0] = apart.statements
            elif isinstance(statement, ir.Allocate) and statement.buffer.scope == "global" and statement.initial:
                address = ir.Var(statement.initial.dtype, "address")
                yield from self._kept(address, statement.initial, asked, statement)
                yield replace(statement, initial=address)
            elif isinstance(statement, ir.Allocate):
                yield replace(statement, initial=None)
                if statement.initial is not None:
                    first = tuple(ir.const(0) for _ in statement.buffer.shape)
                    yield _under(asked, ir.Store(statement.buffer, first, statement.initial, span=statement.span))
            elif isinstance(statement, ir.Let):
                yield from self._kept(statement.var, statement.value, asked, statement)
            elif isinstance(statement, ir.If) and self.meets(statement):
                yield from self.branch(statement, asked)
            elif isinstance(statement, ir.For) and self.meets(statement):
                again = ir.Seq(tuple(self._sequence(statement.body, asked)), span=statement.body.span)
                yield replace(statement, body=again)
            else:
                yield _under(asked, statement)

    def _kept(self, var: ir.Var, value: ir.Expr, asked: ir.Var, at: ir.Statement) -> Iterator[ir.Statement]:
        """A name for a value that is worked out where `asked` holds only: what it reads may be nowhere else."""
        divides = any(one.op in _DIVISIONS and not isinstance(one.right, ir.Const) for one in find(value, ir.Binary))
        if reads_nothing(value) and not divides:
            yield ir.Let(var, value, span=at.span)
            return
        buffer = ir.Buffer(var.name, (1,), var.dtype, "scalar")
        yield ir.Allocate(buffer, ir.const(0, var.dtype), span=at.span)
        yield _under(asked, ir.Store(buffer, (ir.const(0),), value, span=at.span))
        yield ir.Let(var, ir.load(buffer, 0), span=at.span)


def _under(asked: ir.Var, statement: ir.Statement) -> ir.If:
    return ir.If(asked, ir.seq(statement), span=statement.span)


def read_first(store: ir.Store) -> ir.Seq | None:
    """A store behind the name of its value, where that reads other elements of the shared tile: threads read before
    any of them writes."""
    if store.buffer.scope != "shared":
        return None
    places = {tuple(map(key, one.indices)) for one in find(store.value, ir.Load) if one.buffer is store.buffer}
    if places <= {tuple(map(key, store.indices))}:
        return None
    value = ir.Var(store.value.dtype, "value")
    return ir.Seq((ir.Let(value, store.value, span=store.span), replace(store, value=value)), span=store.span)
