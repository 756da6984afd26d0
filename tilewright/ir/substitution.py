"""Variables and buffers of programs replaced by others, and copies of statements under names of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewriter, Rewritten
from tilewright.ir.walking import bound_variables, find, variables

Node = TypeVar("Node")


class _Substitute(Rewriter):
    def __init__(self, vars: Mapping[ir.Var, ir.Expr], buffers: Mapping[ir.Buffer, ir.Buffer]) -> None:
        self.vars, self.buffers = vars, buffers

    def map_var(self, var: ir.Var) -> ir.Expr:
        return self.vars.get(var, var)

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        """What stands for a buffer; a view of one that is replaced is a view of what stands for it."""
        found = self.buffers.get(buffer)
        if (
            found is None
            and buffer.source is not None
            and (source := self.map_buffer(buffer.source)) is not buffer.source
        ):
            found = dataclasses.replace(buffer, source=source)
            self.buffers = {**self.buffers, buffer: found}
        return buffer if found is None else found

    def visit_Allocate(self, allocate: ir.Allocate) -> Rewritten:
        buffer = allocate.buffer
        if buffer.placed and self.vars and buffer not in self.buffers:
            self.buffers = {**self.buffers, buffer: _resized(buffer, self.vars)}
        return self.generic(allocate)


def substitute(
    node: Node, vars: Mapping[ir.Var, ir.Expr] | None = None, buffers: Mapping[ir.Buffer, ir.Buffer] | None = None
) -> Node:
    """`node` with variables and buffers replaced.  Nothing is renamed: the caller avoids capture."""
    return _Substitute(vars or {}, buffers or {})(node)


def fresh(statement: Node) -> Node:
    """A copy of `statement` whose loops, names, buffers and statements are new: it may stand beside the first."""
    return _Fresh(*new_names(statement))(statement)


class _Fresh(_Substitute):
    """Statements are told apart by which they are: one that has nothing new in it is another one all the same."""

    def visit_Statement(self, statement: ir.Statement) -> Rewritten:
        made = self.generic(statement)
        return dataclasses.replace(statement) if made is statement else made


def new_names(statement: object) -> tuple[dict[ir.Var, ir.Expr], dict[ir.Buffer, ir.Buffer]]:
    """New variables and buffers for all that `statement` declares."""
    vars: dict[ir.Var, ir.Expr] = {}
    buffers: dict[ir.Buffer, ir.Buffer] = {}
    placed: list[ir.Buffer] = []
    for node in find(statement, ir.Let, ir.For, ir.Pipelined, ir.Parallel, ir.Allocate):
        if isinstance(node, (ir.Let, ir.For, ir.Pipelined)):
            vars[node.var] = dataclasses.replace(node.var)
        elif isinstance(node, ir.Parallel):
            vars.update((var, dataclasses.replace(var)) for var in node.vars)
        elif isinstance(node, ir.Allocate):
            source = node.buffer.source
            placed += [node.buffer] if node.buffer.placed else []
            buffers[node.buffer] = dataclasses.replace(
                node.buffer, source=buffers.get(source, source) if source else None
            )
    for buffer in placed:
        buffers[buffer] = _resized(buffers[buffer], vars)
    return vars, buffers


def own_names(kernel: ir.Kernel) -> set[ir.Var | ir.Buffer]:
    """What a kernel gives names itself: its indices, variables and buffers."""
    return {*bound_variables(kernel), *(one.buffer for one in find(kernel, ir.Allocate))}


def _resized(buffer: ir.Buffer, vars: Mapping[ir.Var, ir.Expr]) -> ir.Buffer:
    """A placed buffer whose extents are said in other variables; the same one where they are not."""
    extents = [extent for extent in (*buffer.shape, *(buffer.strides or ())) if isinstance(extent, ir.Expr)]
    if not any(var in vars for extent in extents for var in variables(extent)):
        return buffer
    shape, strides = substitute_extents(buffer.shape, vars), buffer.strides
    return dataclasses.replace(buffer, shape=shape, strides=strides and substitute_extents(strides, vars))


def substitute_extents(extents: tuple[object, ...], vars: Mapping[ir.Var, ir.Expr]) -> tuple[Any, ...]:
    """Extents with variables replaced."""
    return tuple(substitute(extent, vars) if isinstance(extent, ir.Expr) else extent for extent in extents)
