"""Single elements of fragments, read or written outside of parallel loops by threads that do not all hold them.

Before::

    copy(source=A[:], destination=f)
    for i in range(64):
        total[0] = total[0] + f[i]

After::

    copy(source=A[:], destination=f)
    f_shared = shared(float32[64])
    for i in parallel(64):
        f_shared[i] = f[i]
    for i in range(64):
        total[0] = total[0] + f_shared[i]

The largest statement within which nothing of the whole block touches the fragment has the tile; what it stores is
copied back behind it.  A value that is read and stored again is read by all before one stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from tilewright.errors import LayoutConflict
from tilewright.ir import Rewriter, Rewritten, changed, find, touched, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.passes.tile.layouts.through_shared import through_shared


def single_fragments(body: ir.Seq) -> set[ir.Buffer]:
    """Fragments of which single threads touch elements."""
    return {node.buffer for node in _singles(body) if node.buffer.scope == "fragment"}


def share_elements(body: ir.Seq, fragments: Collection[ir.Buffer]) -> ir.Seq:
    """`body`, roles apart, with such accesses to `fragments` going through shared tiles.

    Raises
    ------
    LayoutConflict : the condition of a loop asks for an element that the loop changes.
    """
    made: ir.Seq = _Share(fragments)(body)
    return made


def _singles(node: ir.Statement) -> Iterator[ir.Load | ir.Store]:
    work = (ir.Role, ir.Parallel, ir.TileOperator)
    for one in walk(node, lambda part: not isinstance(part, work)):
        if isinstance(one, (ir.Load, ir.Store)):
            yield one


class _Share(Rewriter):
    def __init__(self, fragments: Collection[ir.Buffer]) -> None:
        self.fragments = fragments

    def visit_Role(self, role: ir.Role) -> ir.Role:
        return role

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        return with_statements(body, [part for one in body.statements for part in self._made(one)])

    def _made(self, statement: ir.Statement) -> list[ir.Statement]:
        wanted = {one.buffer for one in _singles(statement) if one.buffer in self.fragments}
        if not wanted:
            return [statement]
        if isinstance(statement, ir.Seq):
            return [self.visit_Seq(statement)]
        if not wanted & _of_the_block(statement):
            apart = _read_first(ir.Seq((statement,)), wanted)
            alone = apart.statements[0] if len(apart.statements) == 1 else apart
            return list(through_shared(alone, wanted, ()).statements)
        if isinstance(statement, ir.If):
            return self._headed(statement, "condition")
        if isinstance(statement, ir.For):
            return self._headed(statement, "start", "stop", "step")
        raise LayoutConflict(
            "the condition of this loop reads a fragment that the loop changes, and not all threads hold it",
            span=statement.span,
            hint="keep what the condition reads in a T.alloc_var, or in a shared tile",
        )

    def _headed(self, statement: Any, *heads: str) -> list[ir.Statement]:
        """The head's values under names of their own, then the statement with what is within it."""
        named: list[ir.Statement] = []
        values: dict[str, ir.Expr] = {}
        for head in heads:
            value: ir.Expr = getattr(statement, head)
            if any(one.buffer in self.fragments for one in find(value, ir.Load)):
                var = ir.Var(value.dtype, head)
                named += self._made(ir.Let(var, value, span=statement.span))
                values[head] = var
        return [*named, self.generic(replace(statement, **values))]


def _read_first(body: ir.Seq, fragments: Collection[ir.Buffer]) -> ir.Seq:
    """Values that are stored to fragments they were read of have names, so that all have read when one stores."""

    def named(store: ir.Store) -> Rewritten:
        if store.buffer not in fragments or not any(one.buffer in fragments for one in find(store.value, ir.Load)):
            return store
        var = ir.Var(store.value.dtype, "element")
        return [ir.Let(var, store.value, span=store.span), replace(store, value=var)]

    return changed(body, ir.Store, by=named)


def _of_the_block(statement: ir.Statement) -> set[ir.Buffer]:
    """Memory that the whole block touches together."""
    return {one for node in find(statement, ir.Parallel, ir.TileOperator) for one in touched(node).all}
