"""What a host program takes: its parameters, then the sizes that are known only at launch.

Every room that passes or receives arguments (interpreter, emitters, launchers) uses this one order.
"""

from __future__ import annotations

from tilewright.ir.nodes import Buffer, Expr, Function, Var
from tilewright.ir.visitor import walk


def size_variables(function: Function) -> tuple[Var, ...]:
    """Variables that occur in parameters' shapes and strides and are not parameters, in order of appearance."""
    found: dict[Var, None] = {}
    for param in function.params:
        if isinstance(param, Buffer):
            for extent in (*param.shape, *(param.strides or ())):
                if isinstance(extent, Expr):
                    found.update((v, None) for v in walk(extent) if isinstance(v, Var))
    return tuple(var for var in found if var not in function.params)


def entry_parameters(function: Function) -> tuple[Buffer | Var, ...]:
    """The entry point's arguments: parameters in the author's order, then `size_variables`."""
    return (*function.params, *size_variables(function))
