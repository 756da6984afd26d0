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
from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import (
    Acquire,
    Allocate,
    Assume,
    Break,
    Buffer,
    Call,
    Channel,
    Expr,
    For,
    If,
    Let,
    Load,
    Parallel,
    Publish,
    Receive,
    Region,
    Release,
    Role,
    Seq,
    Statement,
    Store,
    Var,
    cast,
    const,
    index_binary,
    seq,
)
from tilewright.ir.visitor import find

PERSISTENT, CLAIM = "persistent", "claim"
"""The attribute of a grid whose blocks stay, and what the author writes there for blocks that claim tiles."""

NAME, SLOTS = "claims", 2


@dataclass(frozen=True, slots=True)
class Claims:
    """The word that counts tiles, and the slots through which a block's roles learn which one is theirs."""

    claimed: Buffer = field(default_factory=lambda: Buffer("claimed", (1,), INT32, "global"))
    slots: Buffer = field(default_factory=lambda: Buffer(NAME, (SLOTS, 1), INT32, "shared"))

    def counter(self, span: Span | None) -> Statement:
        """The declaration of the word, which begins as zero."""
        return Allocate(self.claimed, span=span)

    def channel(self, roles: Sequence[Role], span: Span | None) -> list[Statement]:
        """The declaration of the slots."""
        writers = tuple(role.name for role in roles if any(one.channel == NAME for one in find(role.body, Acquire)))
        names = tuple(role.name for role in roles)
        return [Allocate(self.slots, span=span), Channel(NAME, (self.slots,), SLOTS, writers, names, span=span)]

    def loop(
        self, iteration: Var, tile: Var, total: Expr, blocks: Expr, work: Seq, claims: bool, span: Span | None,
        ending: Statement | None = None,
    ) -> For:  # fmt: skip
        """A role's loop over tiles, until there are no more.

        Parameters
        ----------
        iteration, tile : names for how many the block had before, and the tile's number.
        total, blocks : how many there are.
        work : what is done for a tile.
        claims : whether this is the role that takes numbers.
        ending : what is done when there are no more.
        """
        slot = iteration % const(SLOTS)
        none_left = index_binary("ge", tile, total)
        body = seq(
            self._claim(iteration, slot, total, blocks, span) if claims else (),
            Receive(NAME, iteration, span=span),
            Let(tile, Load(INT32, self.slots, (slot, const(0))), span=span),
            Release(NAME, iteration, span=span),
            If(none_left, seq(ending, Break(span=span)), span=span),
            Assume(index_binary("ge", tile, 0), span=span),
            work.statements,
        )
        return For(iteration, const(0), cast(total + 1, INT32), const(1), body, span=span)

    def _claim(self, iteration: Var, slot: Expr, total: Expr, blocks: Expr, span: Span | None) -> list[Statement]:
        number, index = Var(INT32, "number"), Var(INT32, "i")
        last = total + blocks - 1
        word = Region(self.claimed, (const(0),), (1,))
        taken = seq(
            Let(number, Call(INT32, "atomic_add", (word, const(1), "relaxed")), span=span),
            Store(self.slots, (slot, const(0)), number, span=span),
            If(index_binary("eq", number, last), seq(Store(self.claimed, (const(0),), const(0), span=span)), span=span),
        )
        once = Parallel((index,), (1,), taken, span=span)
        return [Acquire(NAME, iteration, span=span), once, Publish(NAME, iteration, span=span)]
