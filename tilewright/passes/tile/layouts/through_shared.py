"""A statement that reads or writes a fragment at places that its threads do not hold does so through a shared tile."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir import find, has_effect, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.ops import Copy
from tilewright.passes.context import Fact

EXCHANGED: Fact[set[ir.Buffer]] = Fact("exchanged", set)
"""The fragments that pass through shared tiles before layouts are inferred."""


def through_shared(statement: ir.Statement, fragments: Collection[ir.Buffer], fresh: Collection[ir.Buffer]) -> ir.Seq:
    """`statement` with shared tiles in the place of `fragments`, which are copied there before and back after.

    Parameters
    ----------
    fragments : what to replace.
    fresh : those that the statement overwrites without reading them: what they held need not be copied.
    """
    tiles = {
        buffer: ir.Buffer(f"{buffer.name}_shared", buffer.shape, buffer.dtype, "shared")
        for buffer in sorted(fragments, key=lambda buffer: buffer.name)
    }
    stored = {node.buffer for node in find(statement, ir.Store)}
    loaded = {node.buffer for node in find(statement, ir.Load)}
    before: list[ir.Statement] = []
    after: list[ir.Statement] = []
    for buffer, tile in tiles.items():
        before.append(ir.Allocate(tile, span=statement.span))
        if buffer in loaded or buffer not in fresh:
            before.append(Copy(ir.whole(buffer), ir.whole(tile), span=statement.span).lower())
        if buffer in stored:
            after.append(Copy(ir.whole(tile), ir.whole(buffer), span=statement.span).lower())
    return ir.seq(before, substitute(statement, buffers=tiles), after)


def happens_once(loop: ir.Parallel) -> bool:
    """Whether an element's work must not be repeated by all threads that hold it, although all need what it leaves in
    registers.

    One of them would write to memory what the others still have to read, or each would have an effect of its own.
    """
    nodes = list(walk(loop.body))
    if not any(isinstance(node, ir.Store) and node.buffer.scope == "fragment" for node in nodes):
        return False
    memory = ("global", "shared")
    read = {root(node.buffer) for node in nodes if isinstance(node, ir.Load) and node.buffer.scope in memory}
    changed = {root(node.buffer) for node in nodes if isinstance(node, ir.Store) and node.buffer.scope in memory}
    for node in nodes:
        if isinstance(node, (ir.Let, ir.Store)) and has_effect(node.value):
            return True
        if isinstance(node, ir.Evaluate) and has_effect(node.value):
            changed |= {root(one.buffer) for one in find(node.value, ir.Region)}
    return bool(read & changed)
