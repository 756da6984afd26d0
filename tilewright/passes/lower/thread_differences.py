"""What differs between the threads of a kernel: names, private memory, and the iterations in which they leave loops."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import children, find, root, updates, walk
from tilewright.ir import nodes as ir

PRIVATE = ("local", "scalar")
"""Scopes of memory that each thread has for itself."""


def statements_under(statement: ir.Statement) -> Iterator[ir.Statement]:
    """The statements directly below a statement."""
    return (child for child in children(statement) if isinstance(child, ir.Statement))


class ThreadDifferences:
    """Names and private memory of a kernel that differ between its threads."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.vars: set[ir.Var] = set(kernel.thread_vars)
        self.buffers: set[ir.Buffer] = set()

    def find_varying(self, body: ir.Seq) -> None:
        before = -1
        while before != len(self.vars) + len(self.buffers):
            before = len(self.vars) + len(self.buffers)
            self._mark(body, False)

    def _mark(self, statement: ir.Statement, divergent: bool) -> None:
        if isinstance(statement, ir.Let):
            if divergent or self.varies(statement.value) or updates(statement):
                self.vars.add(statement.var)
        elif isinstance(statement, ir.Allocate):
            if statement.initial is not None and self.varies(statement.initial):
                self.buffers.add(statement.buffer)
        elif isinstance(statement, ir.Store):
            if statement.buffer.scope in PRIVATE and (divergent or self.varies((*statement.indices, statement.value))):
                self.buffers.add(root(statement.buffer))
        elif isinstance(statement, (ir.If, ir.While)):
            divergent = divergent or self.varies(statement.condition)
        elif isinstance(statement, ir.For) and self.varies((statement.start, statement.stop, statement.step)):
            self.vars.add(statement.var)
            divergent = True
        elif isinstance(statement, ir.For) and divergent:
            self.vars.add(statement.var)
        if isinstance(statement, (ir.For, ir.While)) and self._jumps_vary(statement.body, False):
            divergent = True  # threads leave the loop, or skip its rest, at different times
        for child in statements_under(statement):
            self._mark(child, divergent)

    def _jumps_vary(self, statement: ir.Statement, divergent: bool) -> bool:
        """Whether a loop with this body is left, or goes on, at the word of some threads only."""
        if isinstance(statement, (ir.Break, ir.Continue)):
            return divergent
        if isinstance(statement, (ir.For, ir.While)):
            return False
        if isinstance(statement, ir.If):
            divergent = divergent or self.varies(statement.condition)
        return any(self._jumps_vary(child, divergent) for child in statements_under(statement))

    def varies(self, node: object) -> bool:
        """Whether `node` mentions something that differs between threads."""
        if isinstance(node, tuple):
            return any(self.varies(item) for item in node)
        if isinstance(node, ir.Statement) and self.updates(node):
            return True
        return any(
            found in self.vars if isinstance(found, ir.Var) else root(found) in self.buffers
            for found in find(node, ir.Var, ir.Buffer)
        )

    @staticmethod
    def updates(node: ir.Statement) -> bool:
        """Whether each thread changes memory by what is there: outside parallel loops, whose iterations do so one by
        one."""
        inside = walk(node, lambda found: not isinstance(found, ir.Parallel))
        return any(isinstance(one, ir.Statement) and updates(one) for one in inside)

    def returns_vary(self, body: ir.Statement, divergent: bool = False) -> bool:
        if isinstance(body, ir.Return):
            return divergent
        if isinstance(body, (ir.If, ir.While)):
            divergent = divergent or self.varies(body.condition)
        return any(self.returns_vary(child, divergent) for child in statements_under(body))
