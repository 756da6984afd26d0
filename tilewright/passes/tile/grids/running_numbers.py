"""Running numbers of channels in a role that goes through many tiles: they go on from the tiles before, and slots
follow them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.effects import root
from tilewright.ir.nodes import Binary, Buffer, ChannelStatement, Expr, Statement
from tilewright.passes.scoped import PlaceRewriter


class Renumber(PlaceRewriter):
    """Adds what the tiles before have counted.

    Parameters
    ----------
    bases : by the name of a channel, how many iterations there were before this tile.
    rings : the channel of each buffer of slots.
    stages : of each channel.
    """

    def __init__(self, bases: dict[str, Expr], rings: dict[Buffer, str], stages: dict[str, int]) -> None:
        self.bases, self.rings, self.stages = bases, rings, stages

    def visit_ChannelStatement(self, statement: ChannelStatement) -> Statement:
        return replace(statement, iteration=self.bases[statement.channel] + statement.iteration)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """The slot of a ring that the tiles before leave next."""
        name = self.rings.get(root(buffer))
        if name is None:
            return buffer, indices
        first, *others = indices
        number = first.left if isinstance(first, Binary) and first.op == "floormod" else first
        slot = (self.bases[name] + number) % self.stages[name]
        return buffer, (slot, *others)
