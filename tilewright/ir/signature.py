"""What a host program takes: its parameters, then the sizes that are known only at launch.

Every room that passes or receives arguments (interpreter, emitters, launchers) uses this one order.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import (
    Buffer,
    Call,
    Evaluate,
    Expr,
    Function,
    If,
    Let,
    Region,
    Statement,
    Store,
    TensorMap,
    TileOperator,
    Var,
)
from tilewright.ir.visitor import children, find, walk

POINTERS = "pointers"
"""Function attribute: names of the parameters that are tables of pointers, whose entries are addresses of tensors."""


ADDRESSED = "addressed"
"""Function attribute: names of the parameters that are pointers, for which calls may give an address."""

MAY_SHARE = "may_share"
"""Function attribute: names of the tensors that calls may give the same memory."""


def size_variables(function: Function) -> tuple[Var, ...]:
    """Variables that occur in parameters' shapes and strides and are not parameters, in order of appearance."""
    found: dict[Var, None] = {}
    for param in function.params:
        if isinstance(param, Buffer):
            for extent in (*param.shape, *(param.strides or ())):
                if isinstance(extent, Expr):
                    found.update((v, None) for v in find(extent, Var))
    return tuple(var for var in found if var not in function.params)


def entry_parameters(function: Function) -> tuple[Buffer | Var, ...]:
    """The entry point's arguments: parameters in the author's order, then `size_variables`."""
    return (*function.params, *size_variables(function))


def written_parameters(function: Function) -> frozenset[Buffer]:
    """Global buffers among the parameters that some statement may write, views resolved to their source."""
    written: set[Buffer] = set()
    for node in find(function.body, Store, TileOperator, Call):
        if isinstance(node, Store):
            written.add(root(node.buffer))
        elif isinstance(node, TileOperator):
            written.update(root(region.buffer) for region in node.effects().writes)
        elif isinstance(node, Call) and not INTRINSICS[node.function].pure:
            written.update(writes_of(node))
    return frozenset(param for param in function.params if isinstance(param, Buffer) and param in written)


def conditional_parameters(function: Function) -> frozenset[Buffer]:
    """Global buffers among the parameters that are touched under conditions alone: calls may leave them out."""
    touched: set[Buffer] = set()
    for one in walk(function.body, lambda node: not isinstance(node, If)):
        mentioned = walk(one.condition) if isinstance(one, If) else (one,)
        touched.update(root(buffer) for buffer in mentioned if isinstance(buffer, Buffer))
    return frozenset(p for p in function.inputs if isinstance(p, Buffer) and p not in touched)


def own_writes(statement: Statement) -> Iterator[Buffer]:
    """Buffers that a statement itself, not one below it, may write."""
    if isinstance(statement, Store):
        yield statement.buffer
    elif isinstance(statement, TileOperator):
        yield from (region.buffer for region in statement.effects().writes)
    elif isinstance(statement, Evaluate):
        yield from (found.buffer for found in find(statement.value, Region))
    if isinstance(statement, (Let, Store)):  # an atomic gives what was there before
        for call in find(statement.value, Call):
            if not INTRINSICS[call.function].pure:
                yield from writes_of(call)


def counted_workspaces(function: Function) -> frozenset[Buffer]:
    """The workspaces that atomics, or meetings of the grid, touch: numbers to count on, zeros when the first call
    begins."""
    found: set[Buffer] = set()
    for node in find(function.body, Call, TileOperator):
        if isinstance(node, TileOperator):
            effects = node.effects()
            found.update(root(region.buffer) for region in effects.writes if effects.atomic)
        elif isinstance(node, Call) and node.function.startswith(("atomic_", "grid_sync")):
            found.update(root(place.buffer) for place in node.arguments if isinstance(place, Region))
    return frozenset(buffer for buffer in found if buffer.scope == "global")


def has_effect(node: object) -> bool:
    """Whether something calls a function that has an effect."""
    return any(not INTRINSICS[call.function].pure for call in find(node, Call))


UPDATES = frozenset(f"atomic_{kind}" for kind in ("add", "max", "min", "and", "or", "xor", "exchange"))
"""Functions that change an element by what it is: that many threads call them is not the same as that one does."""


def updates(statement: Statement) -> bool:
    """Whether each thread that comes to a statement's own expressions changes memory by what is there."""
    calls = (found for child in children(statement) if isinstance(child, Expr) for found in find(child, Call))
    return any(found.function in UPDATES for found in calls)


READS = {
    "cp_async": 1, "cp_async_zfill": 1, "cp_async_hint": 1, "cp_async_zfill_hint": 1, "cp_async_prefetch": 1,
    "cp_async_zfill_prefetch": 1, "bulk_load": 1, "bulk_load_hint": 1,
    "bulk_load_multicast": 1, "prefetch": 0, "prefetch_far": 0, "load_first": 0, "stream_head": 0,
    "tma_load": 1, "tma_load_hint": 1, "tma_load_multicast": 1, "tma_load_multicast_hint": 1, "cpu.tile_load": 1,
    "simdgroup_store": 2,
}  # fmt: skip
"""Functions of places: which argument of each is the one that they only read."""


FILLS = frozenset({"simdgroup_store"})
"""Functions of places that read none but the one in `READS`."""


def reads_of(call: Call) -> set[Buffer]:
    """Memory that a call may read: places among its arguments."""
    places = [call.arguments[READS[call.function]]] if call.function in FILLS else call.arguments
    return {root(part.buffer) for part in places if isinstance(part, Region)}


def writes_of(call: Call) -> set[Buffer]:
    """Memory that a call may write: places among its arguments, and tensors that the copy engine knows by their
    maps."""
    read = call.arguments[READS[call.function]] if call.function in READS else None
    places = [part for part in call.arguments if part is not read]
    regions = {root(part.buffer) for part in places if isinstance(part, Region)}
    return regions | {root(part.tensor) for part in places if isinstance(part, TensorMap)}


def root(buffer: Buffer) -> Buffer:
    """The buffer that owns the memory of a view."""
    while buffer.source is not None:
        buffer = buffer.source
    return buffer


def mentioned(node: object) -> set[Var | Buffer]:
    """The variables of which something speaks, and the buffers that own the memory of which it does."""
    return {root(one) if isinstance(one, Buffer) else one for one in find(node, Var, Buffer)}


def of_views(node: object) -> set[Buffer]:
    """Buffers of a program that are views, and all that those are views of: memory with several names."""
    found: set[Buffer] = set()
    for buffer in find(node, Buffer):
        while buffer.source is not None:
            found |= {buffer, buffer.source}
            buffer = buffer.source
    return found
