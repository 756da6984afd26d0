"""Which statements of a kernel differ from thread to thread.

Everything else is done once a block.  A variable varies where its value mentions a thread index or something
else that varies; a private buffer (a scalar, a local array, registers) where such a value, index or condition
decides what is stored in it.  The rest of a block's buffers belong to the whole block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tilewright.ir import INTRINSICS, children, find, has_effect, mentioned, nodes, own_writes, root, updates, walk
from tilewright.ir.nodes import Buffer, Call, Expr, Kernel, Statement, TileOperator, Var

PRIVATE = frozenset({"scalar", "local", "register"})
"""Scopes of which each thread has its own, where it matters."""

BARRIERS = frozenset({"sync_threads"})
"""Collective functions that exchange no values."""

_LOOPS = (nodes.For, nodes.Pipelined, nodes.While, nodes.Parallel)


@dataclass(slots=True)
class Varying:
    """What varies in one kernel.

    Attributes
    ----------
    names : variables and root buffers.
    lanes : statements to run for all threads at once, each with all that is below it.
    dependent : statements that mention something varying, or have such a statement below.
    instances : of each role, how many there are.
    """

    names: set[Var | Buffer] = field(default_factory=set)
    lanes: set[Statement] = field(default_factory=set)
    dependent: set[Statement] = field(default_factory=set)
    instances: dict[str, int] = field(default_factory=dict)


def find_varying(kernel: Kernel, known: Collection[Var | Buffer] = ()) -> Varying:
    """Find what differs between the threads of a block, where some names are known to."""
    mentions: dict[Statement, frozenset[Var | Buffer]] = {}
    for statement in _statements(kernel.body):
        mentions[statement] = frozenset(_own_names(statement))
        if is_exchange(statement):
            mentions[statement] |= {kernel.thread_vars[0]}
    for node in walk(kernel.body, lambda node: not isinstance(node, nodes.Parallel)):
        if isinstance(node, Statement) and updates(node):  # each thread for itself
            mentions[node] |= {kernel.thread_vars[0]}
    for role in find(kernel.body, nodes.Role):  # what its threads have from outside is not the other roles'
        inside = {node.buffer for node in find(role.body, nodes.Allocate)}
        for statement in _statements(role.body):
            if any(root(one) not in inside and root(one).scope in PRIVATE for one in own_writes(statement)):
                mentions[statement] |= {kernel.thread_vars[0]}
    result = Varying({*kernel.thread_vars, *known})
    result.instances = {node.name: node.instances for node in mentions if isinstance(node, nodes.Role)}
    if all(map(result.names.isdisjoint, mentions.values())):
        return result
    analysis = _Analysis(mentions, result)
    size = -1
    while size != len(result.names) + len(result.lanes):
        size = len(result.names) + len(result.lanes)
        analysis.visit(kernel.body, False)
    return result


def _statements(statement: Statement) -> Iterator[Statement]:
    yield statement
    for child in children(statement):
        if isinstance(child, Statement):
            yield from _statements(child)


def _own_names(statement: Statement) -> Iterator[Var | Buffer]:
    """Variables and root buffers in a statement's own expressions and operands."""
    for child in children(statement):
        if not isinstance(child, Statement):
            yield from mentioned(child)


def is_exchange(statement: Statement) -> bool:
    """Whether a statement's own expressions call what threads do together, barriers apart."""
    calls = (found for child in children(statement) if isinstance(child, Expr) for found in find(child, Call))
    return any(INTRINSICS[found.function].collective and found.function not in BARRIERS for found in calls)


class _Analysis:
    def __init__(self, mentions: dict[Statement, frozenset[Var | Buffer]], result: Varying) -> None:
        self.mentions, self.result = mentions, result

    def visit(self, statement: Statement, divergent: bool) -> None:
        """Spread what varies over `statement`; `divergent`: threads may be apart when they come here."""
        varies = not self.result.names.isdisjoint(self.mentions[statement])
        inner = divergent or (varies and not isinstance(statement, nodes.Parallel))
        below = [child for child in children(statement) if isinstance(child, Statement)]
        if isinstance(statement, _LOOPS) and _leaves_apart(statement, self.result.lanes):
            inner = varies = True
        self._spread(statement, varies, divergent)
        for child in below:
            self.visit(child, inner)
        whole = isinstance(statement, (nodes.Parallel, TileOperator)) or (
            isinstance(statement, nodes.For) and statement.kind == "vectorize"
        )
        if varies or any(child in self.result.dependent for child in below):
            self.result.dependent.add(statement)
            if (varies or whole) and not isinstance(statement, (nodes.Seq, nodes.Allocate)):
                self.result.lanes.add(statement)

    def _spread(self, statement: Statement, varies: bool, divergent: bool) -> None:
        names = self.result.names
        apart = varies or divergent
        let = isinstance(statement, nodes.Let) and divergent and has_effect(statement.value)
        if isinstance(statement, (nodes.Let, nodes.For, nodes.Pipelined)) and (varies or let):
            names.add(statement.var)
        elif isinstance(statement, nodes.Allocate) and varies and statement.buffer.scope in PRIVATE:
            names.add(statement.buffer)
        elif apart:
            names.update(root(buffer) for buffer in own_writes(statement) if root(buffer).scope in PRIVATE)


def _leaves_apart(loop: Statement, lanes: set[Statement]) -> bool:
    """Whether some threads may leave an iteration of `loop` before others."""

    def inside(statement: Statement, apart: bool) -> bool:
        if isinstance(statement, (nodes.Break, nodes.Continue)):
            return apart
        if isinstance(statement, _LOOPS):
            return False
        below = (child for child in children(statement) if isinstance(child, Statement))
        return any(inside(child, apart or statement in lanes) for child in below)

    return any(inside(child, False) for child in children(loop) if isinstance(child, Statement))
