"""What a host program takes: its parameters, then the sizes that are known only at launch.

Every room that passes or receives arguments (interpreter, emitters, launchers) uses this one order.
"""

from __future__ import annotations

from tilewright.ir import nodes as ir
from tilewright.ir.effects import root, touched
from tilewright.ir.walking import find, walk

POINTERS = "pointers"
"""Function attribute: names of the parameters that are tables of pointers, whose entries are addresses of tensors."""


ADDRESSED = "addressed"
"""Function attribute: names of the parameters that are pointers, for which calls may give an address."""

MAY_SHARE = "may_share"
"""Function attribute: names of the tensors that calls may give the same memory."""


def size_variables(function: ir.Function) -> tuple[ir.Var, ...]:
    """Variables that occur in parameters' shapes and strides and are not parameters, in order of appearance."""
    found: dict[ir.Var, None] = {}
    for param in function.params:
        if isinstance(param, ir.Buffer):
            for extent in (*param.shape, *(param.strides or ())):
                if isinstance(extent, ir.Expr):
                    found.update((v, None) for v in find(extent, ir.Var))
    return tuple(var for var in found if var not in function.params)


def entry_parameters(function: ir.Function) -> tuple[ir.Buffer | ir.Var, ...]:
    """The entry point's arguments: parameters in the author's order, then `size_variables`."""
    return (*function.params, *size_variables(function))


def written_parameters(function: ir.Function) -> frozenset[ir.Buffer]:
    """Global buffers among the parameters that some statement may write, views resolved to their source."""
    written = touched(function.body).writes
    return frozenset(param for param in function.params if isinstance(param, ir.Buffer) and param in written)


def conditional_parameters(function: ir.Function) -> frozenset[ir.Buffer]:
    """Global buffers among the parameters that are touched under conditions alone: calls may leave them out."""
    touched: set[ir.Buffer] = set()
    for one in walk(function.body, lambda node: not isinstance(node, ir.If)):
        mentioned = walk(one.condition) if isinstance(one, ir.If) else (one,)
        touched.update(root(buffer) for buffer in mentioned if isinstance(buffer, ir.Buffer))
    return frozenset(p for p in function.inputs if isinstance(p, ir.Buffer) and p not in touched)


def counted_workspaces(function: ir.Function) -> frozenset[ir.Buffer]:
    """The workspaces that atomics, or barriers of the grid, change: numbers to count on, zeros when the first call
    begins."""
    found: set[ir.Buffer] = set()
    for node in find(function.body, ir.Call, ir.TileOperator):
        if isinstance(node, ir.TileOperator):
            effects = node.effects()
            found.update(root(region.buffer) for region in effects.writes if effects.atomic)
        elif isinstance(node, ir.Call) and node.function.startswith(("atomic_", "grid_sync")):
            found.update(root(place.buffer) for place in node.regions)
    return frozenset(buffer for buffer in found if buffer.scope == "global")


def mentioned(node: object) -> set[ir.Var | ir.Buffer]:
    """The variables of which something speaks, and the buffers that own the memory of which it does."""
    return {root(one) if isinstance(one, ir.Buffer) else one for one in find(node, ir.Var, ir.Buffer)}


def of_views(node: object) -> set[ir.Buffer]:
    """Buffers of a program that are views, and all that those are views of: memory with several names."""
    found: set[ir.Buffer] = set()
    for buffer in find(node, ir.Buffer):
        while buffer.source is not None:
            found |= {buffer, buffer.source}
            buffer = buffer.source
    return found
