"""Until when instructions of warpgroups read the tiles that they know by descriptor: what they do goes on behind their
statement.

In this program, ``a`` is read until the last statement::

    for k in range(4):
        tile = wgmma_descriptor(a[0], ...)
        wgmma_ss(total[0:64], tile, ...)
        wgmma_commit()
        wgmma_wait(1)
    b[tx] = 0.0
    wgmma_wait(0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.effects import own, root
from tilewright.ir.nodes import Buffer, Call, Const, Expr, Let, Region, Seq, Statement, Var
from tilewright.ir.visitor import children, find, variables


def read_until(statements: Sequence[Statement]) -> dict[Buffer, int]:
    """For each tile that matrix instructions read by descriptor, in which of the statements the last of them is waited
    for.

    One that nobody waits for is read until behind all of them.
    """
    reads = _Reads()
    last: dict[Buffer, int] = {}
    for position, statement in enumerate(statements):
        before = reads.flying
        reads.flying = reads.after(statement, before)
        last.update(dict.fromkeys(before | reads.met, position))
        reads.met = set()
    return {**last, **dict.fromkeys(reads.flying, len(statements))}


@dataclass(slots=True)
class _Reads:
    tiles: dict[Var, frozenset[Buffer]] = field(default_factory=dict)
    """What descriptors are of."""
    met: set[Buffer] = field(default_factory=set)
    flying: frozenset[Buffer] = frozenset()
    """Tiles that may be read at a place."""

    def after(self, statement: Statement, flying: frozenset[Buffer]) -> frozenset[Buffer]:
        """Tiles that are read behind a statement; a wait under a condition, or in a loop, counts for what began
        there."""
        if isinstance(statement, Seq):
            for one in statement.statements:
                flying = self.after(one, flying)
            return flying
        if isinstance(statement, Let):
            self.tiles[statement.var] = self._of(statement.value)
        for node in own(statement):
            if isinstance(node, Call) and node.function.startswith("wgmma"):
                flying = self._call(node, flying)
        bodies = [child for child in children(statement) if isinstance(child, Statement)]
        return flying.union(*(self.after(body, frozenset()) for body in bodies))

    def _call(self, call: Call, flying: frozenset[Buffer]) -> frozenset[Buffer]:
        if call.function == "wgmma_wait":
            pending = call.arguments[0]
            return frozenset() if isinstance(pending, Const) and pending.value == 0 else flying
        read = frozenset().union(*(self._of(one) for one in call.arguments if isinstance(one, Expr)))
        self.met |= read
        return flying | read

    def _of(self, value: Expr) -> frozenset[Buffer]:
        """The tiles that a descriptor is of."""
        regions = {root(one.buffer) for one in find(value, Region) if one.buffer.scope == "shared"}
        return frozenset(regions).union(*(self.tiles.get(var, frozenset()) for var in variables(value)))
