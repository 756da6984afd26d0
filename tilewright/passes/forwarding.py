"""Store-to-load forwarding: what statements have put into memory is read from where it came from.

`forward_locals` asks for arrays of threads that a loop has filled, `forward_tiles` for such tiles of a machine whose
blocks are one thread, `forward_stores` for what single stores leave, `forward_operands` for tiles that gemms read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import has_effect, of_views, root, same, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewriter, Rewritten, changed, with_statements
from tilewright.ir.walking import find
from tilewright.passes.scoped import ScopedRewriter


@dataclass(slots=True)
class Filled:
    """How memory is filled: all of a tile by one loop or one operator, or an element by a store.

    Attributes
    ----------
    statement, tile : what fills it, and what is filled.
    indices : the variables that stand for an element's place; where there is but one, that place may be written there.
    value : of that element, or the region that an operator fills a tile from.
    used : how often it was read from where it came from.
    """

    statement: ir.Statement
    tile: ir.Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr | ir.Region
    used: int = 0

    @property
    def placed_by(self) -> frozenset[ir.Buffer]:
        """The memory that says which element it is: where that changes, its place is another's."""
        return frozenset(buffer for index in self.indices for buffer in touched(index).reads)

    def at(self, place: tuple[ir.Expr, ...]) -> ir.Expr:
        """The value of the element at a place."""
        assert isinstance(self.value, ir.Expr)
        places = zip(self.indices, place, strict=True)
        return substitute(self.value, {index: here for index, here in places if isinstance(index, ir.Var)})


def stored_by(statement: ir.Statement) -> tuple[dict[ir.Var, ir.Extent], ir.Store] | None:
    """The one store of a loop, or of loops in loops that count from zero, by their variables, of which the extents are
    given; None where the loop does more."""
    extents: dict[ir.Var, ir.Extent] = {}
    names: dict[ir.Var, ir.Expr] = {}
    inner: object = statement
    while isinstance(inner, (ir.For, ir.Parallel)):
        if isinstance(inner, ir.Parallel):
            extents.update(zip(inner.vars, inner.extents, strict=True))
        elif inner.numbers is None or (inner.numbers.start, inner.numbers.step) != (0, 1):
            return None
        else:
            extents[inner.var] = inner.numbers.stop
        *named, inner = inner.body.statements or (None,)
        for one in named:
            if not isinstance(one, ir.Let):
                return None
            names[one.var] = substitute(one.value, names)
    return (extents, substitute(inner, names)) if isinstance(inner, ir.Store) else None


def filling(statement: ir.Statement, tile: ir.Buffer) -> Filled | None:
    """The value of each element where `statement` does nothing but fill all of a tile."""
    found = stored_by(statement)
    if found is None or found[1].buffer is not tile:
        return None
    extents, store = found
    moving = [index for index in store.indices if isinstance(index, ir.Var)]
    if len(moving) != len(extents) or set(moving) != set(extents):
        return None
    sizes = [extents[index] if isinstance(index, ir.Var) else 1 for index in store.indices]
    whole = all(size == extent for size, extent in zip(sizes, tile.shape, strict=True))
    return Filled(statement, tile, store.indices, store.value) if whole else None


class Forwarding:
    """Walks sequences with what is known of memory."""

    def forwarded(self, sequence: ir.Seq) -> ir.Seq:
        """`sequence` with what its own statements fill read from where it came from."""
        known: list[Filled] = []
        made: list[ir.Statement] = []
        steps: list[tuple[ir.Statement, Filled | None]] = []
        for position, statement in enumerate(sequence.statements):
            if known:
                statement = self.reading(statement, known)
                written = touched(statement).writes
                there = [one for one in known if written.isdisjoint(one.placed_by)]
                known = [one for one in there if one.tile not in written or self.leaves(statement, one)]
            filled = self.filled(statement, sequence.statements, position)
            if filled is not None and filled.tile in filled.placed_by:
                filled = None
            known += [] if filled is None else [filled]
            steps.append((statement, filled))
        for statement, filled in steps:
            made += [statement] if filled is None else self.left(statement, filled)
        return with_statements(sequence, made)

    def reading(self, statement: ir.Statement, known: list[Filled]) -> ir.Statement:
        """A statement that reads what is known from where it came from."""

        def read(load: ir.Load) -> ir.Expr:
            one = next((one for one in known if self.holds(one, load)), None)
            if one is None:
                return load
            one.used += 1
            return changed(one.at(load.indices), ir.Load, by=read)

        return changed(statement, ir.Load, by=read)

    def holds(self, filled: Filled, load: ir.Load) -> bool:
        """Whether what is loaded has been filled so."""
        return load.buffer is filled.tile

    def leaves(self, statement: ir.Statement, filled: Filled) -> bool:
        """Whether a statement that writes to a tile certainly does not write to what has been filled."""
        return False

    def filled(self, statement: ir.Statement, beside: Sequence[ir.Statement], position: int) -> Filled | None:
        """What is known by a statement, which has a position among those beside it."""
        raise NotImplementedError

    def left(self, statement: ir.Statement, filled: Filled) -> list[ir.Statement]:
        """What stands in the place of a statement that fills memory."""
        return []


class ScopedForwarding(Forwarding, ScopedRewriter):
    """One whose `analyzer` knows what holds in the sequence, from its statements too."""

    def visit_Seq(self, sequence: ir.Seq) -> ir.Seq:
        with self.analyzer.scope():
            made = self.forwarded(sequence)
        return super().visit_Seq(made)

    def filled(self, statement: ir.Statement, beside: Sequence[ir.Statement], position: int) -> Filled | None:
        if isinstance(statement, (ir.Let, ir.Assume, ir.Assert)):
            self.visit(statement)
        return None


class ForwardingTiles(Forwarding, Rewriter):
    """Leaves out loops that fill a tile with elements of tensors that the kernel does not write.

    Subclasses say which tiles those are, and what may read their elements from elsewhere.
    """

    def __init__(self, kernel: ir.Kernel) -> None:
        self.given = {root(region.buffer) for region in find(kernel.body, ir.Region)} | of_views(kernel.body)
        """Tiles that more than loads and stores touch."""
        self.written = touched(kernel.body).writes

    def wants(self, tile: ir.Buffer) -> bool:
        raise NotImplementedError

    def repeats(self, filled: Filled) -> bool:
        """Whether what a tile is filled with is at hand wherever it is asked for: that of tensors which the kernel
        does not write."""
        loads = [node.buffer for node in find(filled.value, ir.Load)]
        lasting = all(buffer.scope == "global" and root(buffer) not in self.written for buffer in loads)
        return bool(loads) and lasting and not has_effect(filled.value)

    def may_ask(self, statement: ir.Statement, tile: ir.Buffer) -> bool:
        """Whether a statement may read a tile's elements from where they came from."""
        return True

    def visit_Seq(self, sequence: ir.Seq) -> Rewritten:
        return self.generic(self.forwarded(sequence))

    def filled(self, statement: ir.Statement, beside: Sequence[ir.Statement], position: int) -> Filled | None:
        """How the first statement to use a tile declared beside it fills all of that, where all others, up to one that
        does so anew, may read its elements from elsewhere."""
        tile = next((store.buffer for store in find(statement, ir.Store)), None)
        if tile is None or tile in self.given or not self.wants(tile):
            return None
        filled = filling(statement, tile)
        if filled is None or not any(isinstance(one, ir.Allocate) and one.buffer is tile for one in beside):
            return None
        first, *using = (at for at, one in enumerate(beside) if _mentions(one, tile))
        if first != position or not using or not self.repeats(filled):
            return None
        for one in (beside[at] for at in using):
            overwrites = any(store.buffer is tile for store in find(one, ir.Store))
            if not self.may_ask(one, tile) or (overwrites and not _replaces(one, tile)):
                return None
            if overwrites:
                break
        return filled


def _mentions(statement: ir.Statement, tile: ir.Buffer) -> bool:
    own = isinstance(statement, ir.Allocate) and statement.buffer is tile
    return not own and any(node is tile for node in find(statement, ir.Buffer))


def _replaces(statement: ir.Statement, tile: ir.Buffer) -> bool:
    """Whether a loop writes over every element of `tile`, having read that element alone."""
    anew = filling(statement, tile)
    if anew is None:
        return False
    loads = [load for load in find(statement, ir.Load) if load.buffer is tile]
    return all(same(index, own) for load in loads for index, own in zip(load.indices, anew.indices, strict=True))
