"""What statements are to the threads of a block: work that these share, or do together; waits for one another; and
which groups of warps can go on side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir import find, holds, root, walk
from tilewright.ir import nodes as ir
from tilewright.language.sinking import TOGETHER, all_written
from tilewright.ops import Copy


def is_dealt(statement: ir.Statement) -> bool:
    """Whether threads divide a statement among them: all but copies that one thread gives to the engine, and what fills
    own tiles."""
    if isinstance(statement, Copy) and statement.by_hand:
        return False
    if isinstance(statement, ir.TileOperator):
        return {root(region.buffer).scope for region in statement.effects().writes} != {"local"}
    return any(root(buffer).scope != "local" for buffer in all_written(ir.Seq((statement,))))


def is_together(statement: ir.Statement) -> bool:
    """Whether a statement holds work that threads do together, or waits for others."""
    return any(
        isinstance(node, (ir.TileOperator, ir.Parallel, ir.Commit, ir.Wait, ir.Roles))
        or (isinstance(node, ir.Call) and node.function in TOGETHER)
        for node in walk(statement)
    )


def is_shared_work(statement: ir.Statement) -> bool:
    """Whether threads divide a statement among them; copies that one thread gives to the engine are none."""
    if isinstance(statement, ir.Parallel):
        touched = [node.buffer for node in find(statement, ir.Load, ir.Store)]
    elif isinstance(statement, ir.TileOperator):
        effects = statement.effects()
        touched = [region.buffer for region in (*effects.reads, *effects.writes)]
        if isinstance(statement, Copy) and (statement.by_hand or statement.schedule.by_engine):
            return False
    else:
        return False
    return any(root(buffer).scope in ("fragment", "shared") for buffer in touched)


def agree(bodies: Iterable[frozenset[int]], further: Iterable[frozenset[int]]) -> bool:
    """Whether the warps of one division are those of another, or others."""
    return all(one == other or not one & other for one in further for other in bodies)


def in_order(bodies: Mapping[frozenset[int], Sequence[ir.Seq]], further: Mapping[frozenset[int], ir.Seq]) -> bool:
    """Whether warps need what other warps have done to shared tiles, and nobody waits for anybody: then the block does,
    between them."""
    parts = [part for some in bodies.values() for part in some]
    if any(waits(part) for part in (*parts, *further.values())):
        return False
    return any(
        warps != others and (shared_written(one) & shared_used(part) or shared_used(one) & shared_written(part))
        for warps, part in further.items()
        for others, some in bodies.items()
        for one in some
    )


def waits(part: ir.Seq) -> bool:
    """Whether threads wait for others, or tell them something, by words of the author's: relaxed atomics add up,
    and tell nobody unless a loop asks again and again."""
    asks = holds(part, ir.While)
    return any(
        node.function in TOGETHER
        or "barrier" in node.function
        or (node.function.startswith("atomic") and (asks or node.arguments[-1] != "relaxed"))
        for node in find(part, ir.Call)
    ) or any(copy.barrier is not None for copy in find(part, Copy))


def shared_written(part: ir.Seq) -> set[ir.Buffer]:
    return {root(buffer) for buffer in all_written(part) if root(buffer).scope == "shared"}


def shared_used(part: ir.Seq) -> set[ir.Buffer]:
    return {root(buffer) for buffer in find(part, ir.Buffer) if root(buffer).scope == "shared"}


def kept_registers(statement: object) -> int | None:
    """The registers that a statement sets."""
    if (
        isinstance(statement, ir.Evaluate)
        and isinstance(statement.value, ir.Call)
        and statement.value.function == "setmaxnreg"
    ):
        assert isinstance(statement.value.arguments[0], ir.Const)
        return int(statement.value.arguments[0].value)
    return None
