"""What statements are to the threads of a block: work that these share, or do together; waits for one another; and
which groups of warps can go on side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir import nodes
from tilewright.ir.effects import root
from tilewright.ir.nodes import (
    Buffer,
    Call,
    Const,
    Evaluate,
    Load,
    Parallel,
    Roles,
    Seq,
    Statement,
    Store,
    TileOperator,
    While,
)
from tilewright.ir.visitor import find, holds, walk
from tilewright.language.sinking import TOGETHER, all_written
from tilewright.ops.copy import TMA_LOADS, TMA_STORES

BY_ENGINE = (TMA_LOADS, TMA_STORES)
"""Tokens of what one thread gives to the copy engine."""


def is_dealt(statement: Statement) -> bool:
    """Whether threads divide a statement among them: all but copies that one thread gives to the engine, and what fills
    own tiles."""
    if isinstance(statement, TileOperator):
        by_one = getattr(statement, "barrier", None) is not None or statement.token in BY_ENGINE
        return not by_one and {root(region.buffer).scope for region in statement.effects().writes} != {"local"}
    return any(root(buffer).scope != "local" for buffer in all_written(Seq((statement,))))


def is_together(statement: Statement) -> bool:
    """Whether a statement holds work that threads do together, or waits for others."""
    return any(
        isinstance(node, (TileOperator, Parallel, nodes.Commit, nodes.Wait, Roles))
        or (isinstance(node, Call) and node.function in TOGETHER)
        for node in walk(statement)
    )


def is_shared_work(statement: Statement) -> bool:
    """Whether threads divide a statement among them; copies that one thread gives to the engine are none."""
    if isinstance(statement, Parallel):
        touched = [node.buffer for node in find(statement, Load, Store)]
    elif isinstance(statement, TileOperator) and getattr(statement, "barrier", None) is None:
        effects = statement.effects()
        touched = [region.buffer for region in (*effects.reads, *effects.writes)]
        if getattr(statement, "prefer", None) == "tma":
            return False
    else:
        return False
    return any(root(buffer).scope in ("fragment", "shared") for buffer in touched)


def agree(bodies: Iterable[frozenset[int]], further: Iterable[frozenset[int]]) -> bool:
    """Whether the warps of one division are those of another, or others."""
    return all(one == other or not one & other for one in further for other in bodies)


def in_order(bodies: Mapping[frozenset[int], Sequence[Seq]], further: Mapping[frozenset[int], Seq]) -> bool:
    """Whether warps need what other warps have done to shared tiles, and nobody waits for anybody: then the block does,
    between them."""
    parts = [part for some in bodies.values() for part in some]
    if any(waits(part) for part in (*parts, *further.values())):
        return False
    before = [part for warps, some in bodies.items() for part in some if warps not in further]
    written, used = ({one for part in before for one in of(part)} for of in (shared_written, shared_used))
    return any(written & shared_used(part) or used & shared_written(part) for part in further.values())


def waits(part: Seq) -> bool:
    """Whether threads wait for others, or tell them something, by words of the author's: relaxed atomics add up,
    and tell nobody unless a loop asks again and again."""
    asks = holds(part, While)
    return any(
        node.function in TOGETHER
        or "barrier" in node.function
        or (node.function.startswith("atomic") and (asks or node.arguments[-1] != "relaxed"))
        for node in find(part, Call)
    ) or any(getattr(node, "barrier", None) is not None for node in find(part, TileOperator))


def shared_written(part: Seq) -> set[Buffer]:
    return {root(buffer) for buffer in all_written(part) if root(buffer).scope == "shared"}


def shared_used(part: Seq) -> set[Buffer]:
    return {root(buffer) for buffer in find(part, Buffer) if root(buffer).scope == "shared"}


def kept_registers(statement: object) -> int | None:
    """The registers that a statement sets."""
    if (
        isinstance(statement, Evaluate)
        and isinstance(statement.value, Call)
        and statement.value.function == "setmaxnreg"
    ):
        assert isinstance(statement.value.arguments[0], Const)
        return int(statement.value.arguments[0].value)
    return None
