"""What statements are to the threads of a block: work that these share, or do together; waits for one another; and
which groups of warps can go on side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir import find, holds, root, touched, walk
from tilewright.ir import nodes as ir
from tilewright.language.sinking import TOGETHER
from tilewright.ops import Copy


def is_dealt(statement: ir.Statement) -> bool:
    """Whether threads divide a statement among them: all but copies that one thread gives to the engine, and what fills
    own tiles."""
    if isinstance(statement, Copy) and statement.by_hand:
        return False
    if isinstance(statement, ir.TileOperator):
        return {root(region.buffer).scope for region in statement.effects().writes} != {"local"}
    return any(buffer.scope != "local" for buffer in touched(statement).writes)


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
        buffers = [node.buffer for node in find(statement, ir.Load, ir.Store)]
    elif isinstance(statement, ir.TileOperator):
        effects = statement.effects()
        buffers = [region.buffer for region in (*effects.reads, *effects.writes)]
        if isinstance(statement, Copy) and (statement.by_hand or statement.schedule.by_engine):
            return False
    else:
        return False
    return any(root(buffer).scope in ("fragment", "shared") for buffer in buffers)


def agree(bodies: Iterable[frozenset[int]], further: Iterable[frozenset[int]]) -> bool:
    """Whether the warps of one division are those of another, or others."""
    return all(one == other or not one & other for one in further for other in bodies)


def in_order(bodies: Mapping[frozenset[int], Sequence[ir.Seq]], further: Mapping[frozenset[int], ir.Seq]) -> bool:
    """Whether warps need what other warps have done to memory, and nobody waits for anybody: then the block does,
    between them."""
    parts = [part for some in bodies.values() for part in some]
    if any(waits(part, signals=False) for part in (*parts, *further.values())):
        return False
    return any(
        warps != others and (hands_on(one, part) or hands_on(part, one))
        for warps, part in further.items()
        for others, some in bodies.items()
        for one in some
    )


def hands_on(one: ir.Seq, other: ir.Seq) -> bool:
    """Whether one part changes shared tiles that another uses, or tensors that it reads."""
    written, used = touched(one).writes, touched(other, combining=False)
    return any(buffer.scope == "shared" for buffer in written & used.all) or any(
        buffer.scope == "global" for buffer in written & used.reads
    )


def waits(part: ir.Seq, signals: bool = True) -> bool:
    """Whether threads wait for others by words of the author's, as a loop does that asks an atomic again and again what
    it found; or, with `signals`, tell others something: relaxed atomics add up, and tell nobody."""
    told = {id(one.value) for one in find(part, ir.Evaluate)}
    asking = [loop for loop in find(part, ir.While, ir.For) if isinstance(loop, ir.While) or holds(loop, ir.Break)]
    return (
        any(_is_atomic(node) and id(node) not in told for loop in asking for node in find(loop, ir.Call))
        or any(
            node.function in TOGETHER
            or _is_of_barrier(node)
            or (signals and _is_atomic(node) and node.arguments[-1] != "relaxed")
            for node in find(part, ir.Call)
        )
        or any(copy.barrier is not None for copy in find(part, Copy))
    )


def _is_atomic(call: ir.Call) -> bool:
    return call.function.startswith("atomic")


def _is_of_barrier(call: ir.Call) -> bool:
    """Whether threads arrive or wait at a barrier in shared memory, announce bytes to one, or arrive at a named one."""
    return call.function == "named_barrier_arrive" or any(one.buffer.scope == "barrier" for one in call.regions)


def kept_registers(statement: object) -> int | None:
    """The registers that a statement sets."""
    if isinstance(statement, ir.Evaluate) and statement.value.function == "set_registers":
        assert isinstance(statement.value.arguments[0], ir.Const)
        return int(statement.value.arguments[0].value)
    return None
