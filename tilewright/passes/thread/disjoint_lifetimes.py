"""Which tiles declared below the outermost sequence of a kernel have disjoint lifetimes: no thread can touch one while
another needs the other.

The scratch of two reductions in one loop is an example. A program is followed with what was touched since threads last
met::

    Seq                          touched since a barrier
      a = shared(float32[64])
      sync_threads()             nothing
      a[tx] = x                  a
      sync_threads()             nothing
      x = a[tx ^ 32]             a
    Seq
      b = shared(float32[64])
      sync_threads()             nothing, so that b may take the bytes of a
      b[tx] = x                  b
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from tilewright.ir import children, find, own, performed, root, uses, variables
from tilewright.ir import nodes as ir

BARRIERS = frozenset({"sync_threads", "named_barrier_sync"})

_Path = tuple[tuple[int, bool], ...]
"""The conditions around a statement, each with the branch that was taken."""

_MET = (0, True)
"""At the end of a path: the threads that are there have met since. Others, outside of its conditions, have not."""

_Touched = Mapping[ir.Buffer, frozenset[_Path]]
"""Tiles that threads may still be at, each with the conditions under which they were touched."""


def disjoint_lifetimes(kernel: ir.Kernel, tiles: Collection[ir.Buffer]) -> frozenset[frozenset[ir.Buffer]]:
    """Pairs of `tiles` that may share bytes as the kernel is.

    Behind a barrier all threads that reach it have finished what they did before it under the same conditions; one of
    some warps tells the others nothing. What threads did under a condition that they have left counts as done under
    those around it.

    Parameters
    ----------
    tiles : shared tiles that are declared below the kernel's outermost sequence, and that only threads touch, none of
        which returns early.
    """
    if len(tiles) < 2:
        return frozenset()
    lifetimes = _Lifetimes(frozenset(tiles))
    lifetimes.body(kernel.body, (), {})
    pairs = (frozenset(pair) for pair in combinations(sorted(tiles, key=lambda one: one.name), 2))
    return frozenset(pair for pair in pairs if len(pair) == 2 and pair not in lifetimes.overlapping)


@dataclass(slots=True)
class _Lifetimes:
    tiles: frozenset[ir.Buffer]
    overlapping: set[frozenset[ir.Buffer]] = field(default_factory=set)
    """Pairs of tiles that live at one time."""
    jumps: list[_Touched] = field(default_factory=list)
    """What was touched before each `break` and `continue` of a loop."""

    def body(self, body: ir.Seq, path: _Path, touched: _Touched) -> _Touched:
        self._lives(body)
        for statement in body.statements:
            touched = self.statement(statement, path, touched)
        return touched

    def statement(self, statement: ir.Statement, path: _Path, touched: _Touched) -> _Touched:
        if isinstance(statement, ir.Seq):
            return self.body(statement, path, touched)
        touched = self._touch(own(statement), path, touched)
        if isinstance(statement, ir.If):
            return self._condition(statement, path, touched)
        if isinstance(statement, (ir.For, ir.While)):
            return self._loop(statement, path, touched)
        if isinstance(statement, (ir.Break, ir.Continue)):
            self.jumps.append(touched)
        elif _is_barrier(statement):
            met = frozenset({(*path, _MET)} if performed(statement) != "sync_threads" and path else ())
            left = {
                tile: frozenset(at for at in places if at[: len(path)] != path)
                | (met if any(at[: len(path)] == path for at in places) else frozenset())
                for tile, places in touched.items()
            }
            return {tile: places for tile, places in left.items() if places}
        return touched

    def _touch(self, nodes: object, path: _Path, touched: _Touched) -> _Touched:
        found = self._used(nodes)
        held = {tile for tile, places in touched.items() if any(not _have_met(at, path) for at in places)}
        self.overlapping |= {frozenset(pair) for pair in product(found, {*found, *held})}
        return {**touched, **{tile: touched.get(tile, frozenset()) | {path} for tile in found}} if found else touched

    def _used(self, nodes: object) -> set[ir.Buffer]:
        return {root(node) for node in nodes if isinstance(node, ir.Buffer)} & self.tiles  # type: ignore[attr-defined]

    def _condition(self, statement: ir.If, path: _Path, touched: _Touched) -> _Touched:
        cases = [(statement.then, True), *([(statement.otherwise, False)] if statement.otherwise is not None else [])]
        after = [touched]
        for body, taken in cases:
            found = self.body(body, (*path, (id(statement), taken)), touched)
            after.append({tile: frozenset(_left(at, path) for at in places) for tile, places in found.items()})
        if len(cases) == 2:
            then, otherwise = (self._used(uses(body)) for body, _ in cases)
            self.overlapping |= {frozenset(pair) for pair in product(then, otherwise)}
        return _united(after)

    def _loop(self, loop: ir.For | ir.While, path: _Path, touched: _Touched) -> _Touched:
        outer, self.jumps = self.jumps, []
        while True:
            after = _united([touched, self.body(loop.body, path, touched), *self.jumps])
            if after == touched:
                self.jumps = outer
                return after
            touched = after

    def _lives(self, body: ir.Seq) -> None:
        """A tile is needed from the first to the last statement, of the sequence that declares it, that mentions it."""
        declared = {one.buffer for one in body.statements if isinstance(one, ir.Allocate)} & self.tiles
        if not declared:
            return
        used = [self._used(uses(one)) for one in body.statements]
        for tile in declared:
            places = [place for place, found in enumerate(used) if tile in found]
            if places:
                others = set().union(*used[places[0] : places[-1] + 1])
                self.overlapping |= {frozenset((tile, other)) for other in others}


def _have_met(at: _Path, path: _Path) -> bool:
    """Whether what was done at a place is over for all threads at another."""
    return at[-1:] == (_MET,) and path[: len(at) - 1] == at[:-1]


def _left(at: _Path, path: _Path) -> _Path:
    """The place of what was done, behind the conditions that `path` has not."""
    return at if _have_met(at, path) else at[: len(path)]


def _united(states: Collection[_Touched]) -> _Touched:
    tiles = {tile for state in states for tile in state}
    return {tile: frozenset().union(*(state.get(tile, frozenset()) for state in states)) for tile in tiles}


def _is_barrier(statement: ir.Statement) -> bool:
    """Whether a statement is a barrier of all threads that reach it."""
    if not isinstance(statement, ir.Evaluate) or statement.value.function not in BARRIERS:
        return False
    return all(isinstance(one, ir.Const) for one in statement.value.arguments[:1])


def declared_below(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Tiles that are declared within a statement of the kernel's outermost sequence."""
    outermost = {one.buffer for one in kernel.body.statements if isinstance(one, ir.Allocate)}
    return frozenset(one.buffer for one in find(kernel.body, ir.Allocate)) - outermost


def read_until(statements: Sequence[ir.Statement]) -> dict[ir.Buffer, int]:
    """For each tile that matrix instructions read by descriptor, in which of the statements the last of them is waited
    for: what warpgroups do goes on behind their statement.

    One that nobody waits for is read until behind all of them. In this program, ``a`` is read until the last
    statement::

        for k in range(4):
            tile = gmma_descriptor(a[0], ...)
            wgmma_ss(total[0:64], tile, ...)
            gmma_commit()
            gmma_wait(1)
        b[tx] = 0.0
        gmma_wait(0)
    """
    reads = _Reads()
    last: dict[ir.Buffer, int] = {}
    for position, statement in enumerate(statements):
        before = reads.in_flight
        reads.in_flight = reads.after(statement, before)
        last.update(dict.fromkeys(before | reads.issued, position))
        reads.issued = set()
    return {**last, **dict.fromkeys(reads.in_flight, len(statements))}


@dataclass(slots=True)
class _Reads:
    tiles: dict[ir.Var, frozenset[ir.Buffer]] = field(default_factory=dict)
    """What descriptors are of."""
    issued: set[ir.Buffer] = field(default_factory=set)
    in_flight: frozenset[ir.Buffer] = frozenset()
    """Tiles that may be read at a place."""

    def after(self, statement: ir.Statement, in_flight: frozenset[ir.Buffer]) -> frozenset[ir.Buffer]:
        """Tiles that are read behind a statement; a wait under a condition, or in a loop, counts for what began
        there."""
        if isinstance(statement, ir.Seq):
            for one in statement.statements:
                in_flight = self.after(one, in_flight)
            return in_flight
        if isinstance(statement, ir.Let):
            self.tiles[statement.var] = self._of(statement.value)
        for node in own(statement):
            if isinstance(node, ir.Call):
                in_flight = self._call(node, in_flight)
        bodies = [child for child in children(statement) if isinstance(child, ir.Statement)]
        return in_flight.union(*(self.after(body, frozenset()) for body in bodies))

    def _call(self, call: ir.Call, in_flight: frozenset[ir.Buffer]) -> frozenset[ir.Buffer]:
        if call.function == "gmma_wait":
            (pending,) = call.operands
            return frozenset() if ir.is_literal(pending, 0) else in_flight
        read = frozenset().union(*(self._of(one) for one in call.arguments if isinstance(one, ir.Expr)))
        self.issued |= read
        return in_flight | read

    def _of(self, value: ir.Expr) -> frozenset[ir.Buffer]:
        """The tiles that a descriptor is of."""
        described = (one for one in find(value, ir.Call) if one.function == "gmma_descriptor")
        regions = {root(call.regions[0].buffer) for call in described}
        return frozenset(regions).union(*(self.tiles.get(var, frozenset()) for var in variables(value)))
