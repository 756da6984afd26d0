"""A divergent condition is split into pieces, so that barriers of the whole block may stand between them.

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

No barrier may stand under such a condition, since some threads never reach it. The condition is evaluated once, before
the first piece, which may change its operands. A loop that threads leave at different times becomes a masked loop: all
threads iterate until the last one has left, and only those still in the loop execute its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.ir import BOOL, UPDATES, find, holds, key, leaving, without_jumps
from tilewright.ir import nodes as ir
from tilewright.passes.scoped import negated, reads_nothing

_DIVISIONS = ("floordiv", "floormod", "div", "mod")

_NO_BARRIER = frozenset({*UPDATES, "print_line", "dp4a", "prefetch", "prefetch_far", "stream", "store_first"})
"""Functions with an effect by which no thread waits for another."""


def ordered_by_author(branch: ir.Statement) -> bool:
    """Whether the author says in a statement who waits for whom."""
    return holds(branch, ir.Wait, ir.Commit, ir.Roles, ir.TileOperator) or any(
        one.value.function not in _NO_BARRIER for one in find(branch, ir.Evaluate)
    )


def cut(
    branch: ir.If,
    needs_barrier: Callable[[ir.Statement], bool],
    alone: Callable[[ir.Expr], bool],
    together: Callable[[ir.For | ir.While], ir.For | ir.While | None],
) -> ir.Seq:
    """A branch in pieces.

    Parameters
    ----------
    meets : whether a statement needs a barrier inside.
    alone : whether a condition holds for one thread at most, which waits for no other.
    together : a loop as threads run it that leave it at one time; None where they do not.
    """
    return ir.Seq(tuple(_Cut(needs_barrier, alone, together).branch(branch, None)), span=branch.span)


def masked_loop(loop: ir.For | ir.While, asked: ir.Var | None) -> Iterator[ir.Statement]:
    """A loop that threads leave at different times, as one that all leave with the last: the block votes before each
    iteration whether any thread goes on.

    Parameters
    ----------
    asked : whether a thread enters the loop; None where all do.
    """
    going, here, anybody = (ir.Buffer(name, (1,), BOOL, "scalar") for name in ("going", "here", "anybody"))
    place = (ir.const(0),)
    notes = (going, here, anybody) if any(leaving(loop.body)) else (going, anybody)
    yield from (ir.Allocate(one, ir.const(False), span=loop.span) for one in notes)
    first: list[ir.Statement] = []
    bound: list[ir.Statement] = []
    further: list[ir.Statement] = []
    if isinstance(loop, ir.While):
        condition = loop.condition
    else:
        at, last, step = (ir.Buffer(name, (1,), loop.var.dtype, "scalar") for name in (loop.var.name, "last", "step"))
        yield from (ir.Allocate(one, span=loop.span) for one in (at, last, step))
        given = ((at, loop.start), (last, loop.stop), (step, loop.step))
        first += [ir.Store(one, place, ir.cast(value, loop.var.dtype), span=loop.span) for one, value in given]
        condition = ir.binary("lt", ir.Load(loop.var.dtype, at, place), ir.Load(loop.var.dtype, last, place))
        bound.append(ir.Let(loop.var, ir.Load(loop.var.dtype, at, place), span=loop.span))
        moved = ir.Load(loop.var.dtype, at, place) + ir.Load(loop.var.dtype, step, place)
        further.append(ir.Store(at, place, moved, span=loop.span))
    going_on = ir.Store(going, place, condition, span=loop.span)
    begin = ir.seq(*first, going_on)
    yield begin if asked is None else ir.If(asked, begin, span=loop.span)

    def vote() -> Iterator[ir.Statement]:
        votes = ir.Var(BOOL, "votes")
        yield ir.Let(votes, ir.Call(BOOL, "sync_threads_or", (ir.load(going, 0),)), span=loop.span)
        yield ir.Store(anybody, place, votes, span=loop.span)

    yield from vote()
    if here in notes:
        bound.append(ir.Store(here, place, ir.const(True)))
    goes_on, stays = ir.load(going, 0), ir.load(here, 0)
    flags = {ir.Break: (goes_on, stays), ir.Continue: (stays,)}
    iteration = ir.seq(*bound, *without_jumps(loop.body.statements, flags))
    again = ir.seq(*further, going_on)
    body = ir.seq(ir.If(goes_on, iteration, span=loop.span), ir.If(goes_on, again, span=loop.span), *vote())
    yield ir.While(ir.load(anybody, 0), body, span=loop.span)


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
    def __init__(
        self,
        needs_barrier: Callable[[ir.Statement], bool],
        alone: Callable[[ir.Expr], bool],
        together: Callable[[ir.For | ir.While], ir.For | ir.While | None],
    ) -> None:
        self.needs_barrier, self.alone, self.together = needs_barrier, alone, together

    def branch(self, branch: ir.If, asked: ir.Var | None) -> Iterator[ir.Statement]:
        """A branch, where `asked` holds."""
        holding = ir.Var(BOOL, "asked")
        if asked is None or reads_nothing(branch.condition):
            both = branch.condition if asked is None else ir.binary("all", asked, branch.condition)
            yield ir.Let(holding, both, span=branch.span)
        else:
            yield from self._named(holding, branch.condition, asked, branch)
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
            apart = read_first(statement, self.needs_barrier) if isinstance(statement, ir.Store) else statement
            if isinstance(apart, ir.Seq):
                rest[:0] = apart.statements
            elif isinstance(statement, ir.Allocate) and statement.buffer.placed and statement.initial is not None:
                address = ir.Var(statement.initial.dtype, "address")
                yield from self._named(address, statement.initial, asked, statement)
                yield replace(statement, initial=address)
            elif isinstance(statement, ir.Allocate):
                yield replace(statement, initial=None)
                if statement.initial is not None:
                    first = tuple(ir.const(0) for _ in statement.buffer.shape)
                    yield _under(asked, ir.Store(statement.buffer, first, statement.initial, span=statement.span))
            elif isinstance(statement, ir.Let):
                yield from self._named(statement.var, statement.value, asked, statement)
            elif isinstance(statement, ir.If) and self.needs_barrier(statement):
                yield from self.branch(statement, asked)
            elif isinstance(statement, (ir.For, ir.While)) and self.needs_barrier(statement):
                loop = self.together(statement)
                if isinstance(loop, ir.For):
                    again = ir.Seq(tuple(self._sequence(loop.body, asked)), span=loop.body.span)
                    yield replace(loop, body=again)
                else:
                    yield from masked_loop(statement, asked)
            else:
                yield _under(asked, statement)

    def _named(self, var: ir.Var, value: ir.Expr, asked: ir.Var, at: ir.Statement) -> Iterator[ir.Statement]:
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


def read_first(store: ir.Store, is_shared: Callable[[ir.Store], bool]) -> ir.Seq | None:
    """A store behind the name of its value, where that reads other elements of the tile or tensor, or the very one that
    several threads write: threads read before any of them writes."""
    if store.buffer.scope not in ("shared", "global"):
        return None
    places = {tuple(map(key, one.indices)) for one in find(store.value, ir.Load) if one.buffer is store.buffer}
    if not places or (places == {tuple(map(key, store.indices))} and not is_shared(store)):
        return None
    value = ir.Var(store.value.dtype, "value")
    return ir.Seq((ir.Let(value, store.value, span=store.span), replace(store, value=value)), span=store.span)
