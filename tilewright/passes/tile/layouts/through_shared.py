"""A statement that reads or writes a fragment at places that its threads do not hold does so through a shared tile."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.effects import has_effect, root
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Evaluate,
    Let,
    Load,
    Parallel,
    Region,
    Seq,
    Statement,
    Store,
    seq,
    whole,
)
from tilewright.ir.visitor import find, substitute, walk
from tilewright.ops.copy import Copy
from tilewright.passes.context import Fact

EXCHANGED: Fact[set[Buffer]] = Fact("exchanged", set)
"""The fragments that pass through shared tiles before layouts are inferred."""


def through_shared(statement: Statement, fragments: Collection[Buffer], fresh: Collection[Buffer]) -> Seq:
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
    stored = {node.buffer for node in find(statement, Store)}
    loaded = {node.buffer for node in find(statement, Load)}
    before: list[Statement] = []
    after: list[Statement] = []
    for buffer, tile in tiles.items():
        before.append(Allocate(tile, span=statement.span))
        if buffer in loaded or buffer not in fresh:
            before.append(Copy(whole(buffer), whole(tile), span=statement.span).lower())
        if buffer in stored:
            after.append(Copy(whole(tile), whole(buffer), span=statement.span).lower())
    return seq(before, substitute(statement, buffers=tiles), after)


def happens_once(loop: Parallel) -> bool:
    """Whether an element's work must not be repeated by all threads that hold it, although all need what it leaves in
    registers.

    One of them would write to memory what the others still have to read, or each would have an effect of its own.
    """
    nodes = list(walk(loop.body))
    if not any(isinstance(node, Store) and node.buffer.scope == "fragment" for node in nodes):
        return False
    memory = ("global", "shared")
    read = {root(node.buffer) for node in nodes if isinstance(node, Load) and node.buffer.scope in memory}
    changed = {root(node.buffer) for node in nodes if isinstance(node, Store) and node.buffer.scope in memory}
    for node in nodes:
        if isinstance(node, (Let, Store)) and has_effect(node.value):
            return True
        if isinstance(node, Evaluate) and has_effect(node.value):
            changed |= {root(one.buffer) for one in find(node.value, Region)}
    return bool(read & changed)
