"""Running numbers of channels in a role that goes through many tiles: they go on from the tiles before, and slots
follow them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import nodes
from tilewright.ir.nodes import ChannelStatement, Expr, Load, Region, Statement, Store, index_binary
from tilewright.ir.signature import root
from tilewright.ir.visitor import Rewriter


class Renumber(Rewriter):
    """Adds what the tiles before have counted.

    Parameters
    ----------
    bases : by the name of a channel, how many iterations there were before this tile.
    rings : the channel of each buffer of slots.
    stages : of each channel.
    """

    def __init__(self, bases: dict[str, Expr], rings: dict[nodes.Buffer, str], stages: dict[str, int]) -> None:
        self.bases, self.rings, self.stages = bases, rings, stages

    def visit_ChannelStatement(self, statement: ChannelStatement) -> Statement:
        return replace(statement, iteration=index_binary("add", self.bases[statement.channel], statement.iteration))

    def visit_Region(self, region: Region) -> Region:
        if root(region.buffer) not in self.rings:
            return region
        return Region(region.buffer, (self._slot(region.buffer, region.starts[0]), *region.starts[1:]), region.extents)

    def visit_Load(self, load: Load) -> Load:
        made: Load = self.generic(load)
        return replace(made, indices=self._moved(made.buffer, made.indices))

    def visit_Store(self, store: Store) -> Store:
        made: Store = self.generic(store)
        return replace(made, indices=self._moved(made.buffer, made.indices))

    def _moved(self, buffer: nodes.Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (self._slot(buffer, indices[0]), *indices[1:]) if root(buffer) in self.rings else indices

    def _slot(self, ring: nodes.Buffer, first: Expr) -> Expr:
        """The slot of a ring that the tiles before leave next."""
        name = self.rings[root(ring)]
        counted = isinstance(first, nodes.Binary) and first.op == "floormod"
        number = first.left if isinstance(first, nodes.Binary) and counted else first
        return index_binary("floormod", index_binary("add", self.bases[name], number), self.stages[name])
