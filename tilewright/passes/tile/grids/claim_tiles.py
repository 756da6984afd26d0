"""How the blocks of a persistent grid take tiles as they become free for them: the loop that `persist_grid` puts around
a role.

A word in global memory counts the tiles that were taken.  The role that loads takes the next number and hands it to all
roles through a channel of its own::

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
from dataclasses import dataclass, field

from tilewright.errors import Span
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.ir.visitor import find

PERSISTENT, CLAIM = "persistent", "claim"
"""The attribute of a grid whose blocks stay, and what the author writes there for blocks that claim tiles."""

NAME, SLOTS = "claims", 2


@dataclass(frozen=True, slots=True)
class Claims:
    """The word that counts tiles, and the slots through which a block's roles learn which one is theirs."""

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
        self, iteration: ir.Var, tile: ir.Var, total: ir.Expr, blocks: ir.Expr, work: ir.Seq, claims: bool,
        span: Span | None, ending: ir.Statement | None = None,
    ) -> ir.For:  # fmt: skip
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
