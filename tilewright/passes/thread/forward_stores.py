"""What a statement has just stored is not loaded again, and tiles that nobody loads are gone.

Before::

    @stage("final")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[64])
            for i in range(0, 64, 16):
                row[i].x16 = A[i].x16 * A[i].x16
                C[i].x16 = row[i].x16 + row[i].x16

After::

    @stage("final")
    def f(A: float32[64], C: float32[64]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in range(0, 64, 16):
                row: float32x16 = A[i].x16 * A[i].x16
                C[i].x16 = row + row

Loops that were joined (`fuse_loops`) hand values on through tiles in memory. The device's compiler sees that only where
it can tell all the pointers apart, and it never drops what is stored into scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir import Rewriter, children, find, has_effect, put, root, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.passes import Context
from tilewright.passes.forwarding import Filled, ScopedForwarding
from tilewright.passes.thread.first_lanes import access_of

PRIVATE = frozenset({"fragment", "local", "register", "scalar", "shared"})
"""Where tiles lie that a block of one thread has for itself."""


def forward_stores(function: ir.Function, context: Context) -> ir.Function:
    """Name values that are stored and loaded again; drop tiles that are only stored to."""
    body = _DropDead()(_Forward(function)(function.body))
    while True:
        unread = _unread(body)
        if not unread:
            break
        body = put(body, {one: None for one in find(body, ir.Store, ir.Allocate) if one.buffer in unread})
    return function.with_body(body)


class _Forward(ScopedForwarding):
    def reading(self, statement: ir.Statement, known: list[Filled]) -> ir.Statement:
        return super().reading(statement, known) if isinstance(statement, (ir.Store, ir.Let)) else statement

    def filled(self, statement: ir.Statement, beside: Sequence[ir.Statement], position: int) -> Filled | None:
        if not isinstance(statement, ir.Store) or not _worth_keeping(statement):
            return super().filled(statement, beside, position)
        tile = statement.buffer
        return Filled(statement, tile, statement.indices, ir.Var(statement.value.dtype, tile.name))

    def left(self, statement: ir.Statement, filled: Filled) -> list[ir.Statement]:
        if not filled.used:
            return [statement]
        assert isinstance(statement, ir.Store) and isinstance(filled.value, ir.Var)
        named = ir.Let(filled.value, statement.value, span=statement.span)
        return [named, replace(statement, value=filled.value)]

    def holds(self, filled: Filled, load: ir.Load) -> bool:
        """Whether `load` reads exactly what a store has written."""
        if load.buffer is not filled.tile or load.dtype != filled.value.dtype:
            return False
        here, there = load.indices[0], filled.indices[0]
        if isinstance(here, ir.Const) and isinstance(there, ir.Const):
            return here.value == there.value
        if here is there:
            return True
        low, high = self.analyzer.distance(here, there)
        apart = (low is not None and low > 0) or (high is not None and high < 0)
        return not apart and self.analyzer.equal(here, there)

    def leaves(self, statement: ir.Statement, filled: Filled) -> bool:
        if not isinstance(statement, ir.Store) or statement.buffer is not filled.tile or has_effect(statement):
            return False
        place, earlier = statement.indices[0], filled.indices[0]
        return self.analyzer.apart(place, statement.value.dtype.lanes, earlier, filled.value.dtype.lanes)


def _worth_keeping(store: ir.Store) -> bool:
    return _is_own(store.buffer) and not isinstance(store.value, ir.Const) and len(store.indices) == 1


def _unread(body: ir.Seq) -> set[ir.Buffer]:
    """Tiles that are stored to, and mentioned nowhere else."""
    tiles: set[ir.Buffer] = set()
    mentioned: set[ir.Buffer] = set()
    for node in find(body, ir.Statement, ir.Expr, ir.Region):
        if isinstance(node, ir.Allocate):
            if _is_own(node.buffer):
                tiles.add(node.buffer)
            elif node.buffer.source is not None:
                mentioned.add(root(node.buffer))
        elif not isinstance(node, ir.Store):
            mentioned.update(root(one) for one in children(node) if isinstance(one, ir.Buffer))
    return tiles - mentioned


class _DropDead(Rewriter):
    """Stores in loops over a tile to places that nobody loads behind them."""

    def __init__(self) -> None:
        self.mentioned: dict[ir.Statement, set[ir.Buffer]] = {}
        """The memory that statements met so far mention: each tile asks each of them."""

    def mentions(self, statement: ir.Statement, tile: ir.Buffer) -> bool:
        if statement not in self.mentioned:
            self.mentioned[statement] = {root(node) for node in find(statement, ir.Buffer)}
        return tile in self.mentioned[statement]

    def visit_Seq(self, sequence: ir.Seq) -> ir.Seq:
        statements = list(sequence.statements)
        tiles = [s.buffer for s in statements if isinstance(s, ir.Allocate) and _is_own(s.buffer)]
        for tile in tiles:
            self.drop_dead_stores(statements, tile)
        return self.generic(with_statements(sequence, statements))

    def drop_dead_stores(self, statements: list[ir.Statement], tile: ir.Buffer) -> None:
        """Take them out of the loops among `statements`, from the last on, as far as it is known what is read behind
        them."""
        analyzer = Analyzer()
        later: list[ir.Expr] = []
        for position in reversed(range(len(statements))):
            statement = statements[position]
            if not self.mentions(statement, tile):
                continue
            if isinstance(statement, ir.For) and all(
                analyzer.prove(ir.binary("ge", low, statement.stop)) for low in later
            ):
                statements[position] = statement = _without_dead_stores(statement, tile)
            reads = _first_reads(statement, tile)
            if reads is None:
                return
            later += reads


def _first_reads(statement: ir.Statement, tile: ir.Buffer) -> list[ir.Expr] | None:
    """Places of `tile` such that `statement` reads nothing in front of all of them; None where that is not seen."""
    places: list[ir.Expr] = []
    known: set[ir.Region] = set()
    for node in find(statement, ir.Call, ir.Region, ir.Load):
        if isinstance(node, ir.Call) and (access := access_of(node)) is not None:
            known.add(access[0])
            if access[0].buffer is tile and not access[1]:
                places.append(access[0].starts[0])
        elif isinstance(node, ir.Region) and root(node.buffer) is tile and node not in known:
            return None
        elif isinstance(node, ir.Load) and root(node.buffer) is tile:
            if node.buffer is not tile:
                return None
            inside = isinstance(statement, ir.For) and _window(node.indices, node.dtype.lanes, statement) is not None
            places.append(statement.start if inside and isinstance(statement, ir.For) else node.indices[0])
    declared = {node.var for node in find(statement, ir.For)}
    return None if any(node in declared for place in places for node in find(place, ir.Var)) else places


def _is_own(buffer: ir.Buffer) -> bool:
    return buffer.scope in PRIVATE and buffer.source is None


def _without_dead_stores(loop: ir.For, tile: ir.Buffer) -> ir.For:
    """`loop`, the last to use `tile`, without stores whose values none of its iterations loads."""
    body = loop.body
    if not isinstance(loop.step, ir.Const):
        return loop
    parts = body.statements
    if any(
        isinstance(node, ir.For) or (isinstance(node, ir.Region) and root(node.buffer) is tile) for node in walk(body)
    ):
        return loop
    loads = [[load for load in find(part, ir.Load) if load.buffer is tile] for part in parts]
    loaded = [[_window(load.indices, load.dtype.lanes, loop) for load in some] for some in loads]
    if any(window is None for windows in loaded for window in windows):
        return loop  # an iteration may load what another one has stored
    kept: list[ir.Statement] = []
    for position, part in enumerate(parts):
        if isinstance(part, ir.Store) and part.buffer is tile:
            window = _window(part.indices, part.value.dtype.lanes, loop)
            later = [other for windows in loaded[position + 1 :] for other in windows if other is not None]
            if window is not None and all(other[1] <= window[0] or window[1] <= other[0] for other in later):
                continue
        kept.append(part)
    return loop if len(kept) == len(parts) else replace(loop, body=with_statements(body, kept))


def _window(indices: tuple[ir.Expr, ...], lanes: int, loop: ir.For) -> tuple[int, int] | None:
    """The elements behind the loop's variable that an access touches, where no other iteration touches them."""
    if len(indices) != 1:
        return None
    (place,) = indices
    index, low = place, 0
    if isinstance(place, ir.Binary) and place.op == "add" and isinstance(place.right, ir.Const):
        index, low = place.left, int(place.right.value)
    assert isinstance(loop.step, ir.Const)
    inside = index is loop.var and low >= 0 and low + lanes <= int(loop.step.value)
    return (low, low + lanes) if inside else None
