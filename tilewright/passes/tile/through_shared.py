"""A statement that reads or writes a fragment at places that its threads do not hold does so through a shared tile."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.nodes import Allocate, Buffer, Load, Statement, Store, seq, whole
from tilewright.ir.visitor import substitute, walk
from tilewright.ops.copy import Copy


def through_shared(statement: Statement, fragments: Collection[Buffer], fresh: Collection[Buffer]) -> Statement:
    """`statement` with shared tiles in the place of `fragments`, which are copied there before and back after.

    Parameters
    ----------
    fragments : what to replace.
    fresh : those that the statement overwrites without reading them: what they held need not be copied.
    """
    tiles = {
        buffer: Buffer(f"{buffer.name}_shared", buffer.shape, buffer.dtype, "shared")
        for buffer in sorted(fragments, key=lambda buffer: buffer.name)
    }
    stored = {node.buffer for node in walk(statement) if isinstance(node, Store)}
    loaded = {node.buffer for node in walk(statement) if isinstance(node, Load)}
    before: list[Statement] = []
    after: list[Statement] = []
    for buffer, tile in tiles.items():
        before.append(Allocate(tile, span=statement.span))
        if buffer in loaded or buffer not in fresh:
            before.append(Copy(whole(buffer), whole(tile), span=statement.span).lower())
        if buffer in stored:
            after.append(Copy(whole(tile), whole(buffer), span=statement.span).lower())
    return seq(before, substitute(statement, buffers=tiles), after)
