"""Persistent loops: the loop over tiles that `persist_grid` puts around a role.

The schedule of tiles is static (`static_tile_loop`), or dynamic: blocks take the next tile when they are free
(`DynamicTiles`). A word in global memory then counts the tiles that were taken. The role that loads takes the next
number and passes it to all roles through a channel::

    with role("producer", ...):
        for iteration in range(tiles + 1):
            acquire("claims", iteration)
            for i in parallel(1):
                number = atomic_add(claimed[0], 1)
                claims[iteration % 2, 0] = number
                if number == tiles + blocks - 1:
                    claimed[0] = 0                   # the last one: the next launch begins anew
            publish("claims", iteration)
            receive("claims", iteration)
            tile = claims[iteration % 2, 0]
            release("claims", iteration)
            if tile >= tiles:
                break
            ...

The consumer's loop is the same from `receive` on. Every block takes one number beyond the last tile, so the last number
of all is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import Span
from tilewright.ir import INT32, find, root, substitute
from tilewright.ir import nodes as ir
from tilewright.passes.scoped import PlaceRewriter


def static_tile_loop(
    iteration: ir.Var,
    tile: ir.Var,
    total: ir.Expr,
    group: ir.Expr,
    groups: ir.Expr,
    work: ir.Seq,
    uneven: bool,
    span: Span | None,
) -> ir.For:
    """A role's loop over its group's tiles: group number ``g`` of ``n`` has the tiles ``g``, ``n + g``, ``2 n + g`` and
    so on. Where tiles differ in their steps, every other iteration has the reverse order, so that a group with a long
    tile has a short one next.

    Parameters
    ----------
    iteration, tile : names for how many the group had before, and the tile's number.
    total, groups : how many there are.
    work : what is done for a tile.
    uneven : whether tiles differ in their steps.
    """
    iterations, place = _iterations(total, group, groups), group
    if uneven:
        back = groups - 1 - group
        there = ir.index_binary("eq", iteration % 2, 0)
        place = ir.Select(INT32, there, ir.cast(group, INT32), ir.cast(back, INT32))
        whole = total // groups
        left = total - whole * groups
        is_one_more = ir.index_binary("lt", substitute(place, {iteration: whole}), left)
        iterations = whole + ir.Select(INT32, is_one_more, ir.const(1), ir.const(0))
    number = iteration * groups + place
    body = ir.seq(ir.Let(tile, ir.cast(number, INT32), span=span), work.statements)
    return ir.For(iteration, ir.const(0), ir.cast(iterations, INT32), ir.const(1), body, span=span)


def _iterations(total: ir.Expr, group: ir.Expr, groups: ir.Expr) -> ir.Expr:
    """Tiles of a group: as many for each where they are known to come out even."""
    even = isinstance(total, ir.Const) and isinstance(groups, ir.Const) and total.value % groups.value == 0
    return ceildiv(total if even else total - group, groups)


def ceildiv(value: ir.Expr, divisor: ir.Expr) -> ir.Expr:
    """The quotient rounded up."""
    return (value + (divisor - 1)) // divisor


PERSISTENT, CLAIM = "persistent", "claim"
"""The attribute of a grid whose blocks stay, and what the author writes there for blocks that claim tiles."""

NAME, SLOTS = "claims", 2


@dataclass(frozen=True, slots=True)
class DynamicTiles:
    """The dynamic schedule: the counter of tiles, and the slots by which a block's roles get the number of theirs."""

    claimed: ir.Buffer = field(default_factory=lambda: ir.Buffer("claimed", (1,), INT32, "global"))
    slots: ir.Buffer = field(default_factory=lambda: ir.Buffer(NAME, (SLOTS, 1), INT32, "shared"))

    def counter(self, span: Span | None) -> ir.Statement:
        """The declaration of the word, which begins as zero."""
        return ir.Allocate(self.claimed, span=span)

    def channel(self, roles: Sequence[ir.Role], span: Span | None) -> list[ir.Statement]:
        """The declaration of the slots."""
        writers = tuple(role.name for role in roles if any(one.channel == NAME for one in find(role.body, ir.Acquire)))
        names = tuple(role.name for role in roles)
        return [ir.Allocate(self.slots, span=span), ir.Channel(NAME, (self.slots,), SLOTS, writers, names, span=span)]

    def loop(
        self,
        iteration: ir.Var,
        tile: ir.Var,
        total: ir.Expr,
        blocks: ir.Expr,
        work: ir.Seq,
        claims: bool,
        span: Span | None,
        ending: ir.Statement | None = None,
    ) -> ir.For:
        """A role's loop over tiles, until there are no more.

        Parameters
        ----------
        iteration, tile : names for how many the block had before, and the tile's number.
        total, blocks : how many there are.
        work : what is done for a tile.
        claims : whether this is the role that takes numbers.
        ending : what is done when there are no more.
        """
        slot = iteration % ir.const(SLOTS)
        none_left = ir.index_binary("ge", tile, total)
        body = ir.seq(
            self._claim(iteration, slot, total, blocks, span) if claims else (),
            ir.Receive(NAME, iteration, span=span),
            ir.Let(tile, ir.Load(INT32, self.slots, (slot, ir.const(0))), span=span),
            ir.Release(NAME, iteration, span=span),
            ir.If(none_left, ir.seq(ending, ir.Break(span=span)), span=span),
            ir.Assume(ir.index_binary("ge", tile, 0), span=span),
            work.statements,
        )
        return ir.For(iteration, ir.const(0), ir.cast(total + 1, INT32), ir.const(1), body, span=span)

    def _claim(
        self, iteration: ir.Var, slot: ir.Expr, total: ir.Expr, blocks: ir.Expr, span: Span | None
    ) -> list[ir.Statement]:
        number, index = ir.Var(INT32, "number"), ir.Var(INT32, "i")
        last = total + blocks - 1
        word = ir.Region(self.claimed, (ir.const(0),), (1,))
        taken = ir.seq(
            ir.Let(number, ir.Call(INT32, "atomic_add", (word, ir.const(1), "relaxed")), span=span),
            ir.Store(self.slots, (slot, ir.const(0)), number, span=span),
            ir.If(
                ir.index_binary("eq", number, last),
                ir.seq(ir.Store(self.claimed, (ir.const(0),), ir.const(0), span=span)),
                span=span,
            ),
        )
        once = ir.Parallel((index,), (1,), taken, span=span)
        return [ir.Acquire(NAME, iteration, span=span), once, ir.Publish(NAME, iteration, span=span)]


class Renumber(PlaceRewriter):
    """Running numbers of channels go on from the tiles before, and slots follow them.

    Parameters
    ----------
    bases : by the name of a channel, how many iterations there were before this tile.
    rings : the channel of each buffer of slots.
    stages : of each channel.
    """

    def __init__(self, bases: dict[str, ir.Expr], rings: dict[ir.Buffer, str], stages: dict[str, int]) -> None:
        self.bases, self.rings, self.stages = bases, rings, stages

    def visit_ChannelStatement(self, statement: ir.ChannelStatement) -> ir.Statement:
        return replace(statement, iteration=self.bases[statement.channel] + statement.iteration)

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """The slot of a ring that the tiles before leave next."""
        name = self.rings.get(root(buffer))
        if name is None:
            return buffer, indices
        first, *others = indices
        number = first.left if isinstance(first, ir.Binary) and first.op == "floormod" else first
        slot = (self.bases[name] + number) % self.stages[name]
        return buffer, (slot, *others)
