"""Places the barriers that shared memory needs: one where a dependence between threads crosses, no more.

Before::

    for i in parallel(128):
        tile[i] = A[i]
    gemm(tile, ...)

After::

    for i in parallel(128):
        tile[i] = A[i]
    sync_threads()
    gemm(tile, ...)

A barrier orders everything before it, so a walk through the program needs to remember only what was read and
written since the last one.  Loops are walked twice: the second time with what the first left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import (
    BOOL,
    Buffer,
    Call,
    Evaluate,
    For,
    Function,
    If,
    Kernel,
    Load,
    Parallel,
    Region,
    Roles,
    Seq,
    Statement,
    Store,
    TileOperator,
    While,
)
from tilewright.ir.signature import root
from tilewright.ir.visitor import walk
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels
from tilewright.passes.tile.select_copies import slot_buffers


def plan_synchronization(function: Function, context: Context) -> Function:
    """Insert ``sync_threads`` where threads hand shared memory to one another."""
    return map_kernels(function, _synchronize)


def barrier() -> Evaluate:
    """A barrier of all threads of the block."""
    return Evaluate(Call(BOOL, "sync_threads", ()))


@dataclass(frozen=True, slots=True)
class Pending:
    """Shared buffers touched since the last barrier."""

    read: frozenset[Buffer] = frozenset()
    written: frozenset[Buffer] = frozenset()

    def then(self, other: Pending) -> Pending:
        return Pending(self.read | other.read, self.written | other.written)

    def conflicts(self, next: Pending) -> bool:
        """Whether what comes next must see, or must not disturb, what is pending."""
        return bool(next.read & self.written or next.written & (self.read | self.written))


NOTHING = Pending()


def _synchronize(kernel: Kernel) -> Kernel:
    body, _ = _Walk(slot_buffers(kernel)).sequence(kernel.body, NOTHING)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Walk:
    """Walks statements in order; each method gives the statement with its barriers and what is pending after it.

    Buffers of channels are left to the channels.
    """

    def __init__(self, slots: frozenset[Buffer]) -> None:
        self.slots = slots

    def touches(self, statement: Statement) -> Pending:
        found = touches(statement)
        return Pending(found.read - self.slots, found.written - self.slots)

    def sequence(self, body: Seq, pending: Pending) -> tuple[Seq, Pending]:
        result: list[Statement] = []
        for statement in body.statements:
            made, pending = self.statement(statement, pending)
            result.extend(made)
        same = len(result) == len(body.statements) and all(map(lambda a, b: a is b, result, body.statements))
        return (body if same else replace(body, statements=tuple(result))), pending

    def statement(self, statement: Statement, pending: Pending) -> tuple[list[Statement], Pending]:
        if isinstance(statement, Seq):
            inner, pending = self.sequence(statement, pending)
            return [inner], pending
        if isinstance(statement, Roles):
            return self._roles(statement, pending)
        if isinstance(statement, (For, While)):
            return self._loop(statement, pending)
        if isinstance(statement, If) and _holds_barriers(statement):
            return self._branch(statement, pending)
        if _is_barrier(statement):
            return [statement], NOTHING
        return self._simple(statement, pending)

    def _simple(self, statement: Statement, pending: Pending) -> tuple[list[Statement], Pending]:
        touched = self.touches(statement)
        if pending.conflicts(touched):
            return [barrier(), statement], touched
        return [statement], pending.then(touched)

    def _loop(self, loop: For | While, pending: Pending) -> tuple[list[Statement], Pending]:
        header = self.touches(Seq((Evaluate(loop.condition),))) if isinstance(loop, While) else NOTHING
        before = [barrier()] if pending.conflicts(header) else []
        entry = header if before else pending.then(header)
        _, left = self.sequence(loop.body, entry)
        body, left = self.sequence(loop.body, entry.then(left))
        if left.conflicts(header):
            body, left = replace(body, statements=(*body.statements, barrier())), header
        made: Statement = loop if body is loop.body else replace(loop, body=body)
        return [*before, made], entry.then(left)  # the loop may run zero times

    def _roles(self, roles: Roles, pending: Pending) -> tuple[list[Statement], Pending]:
        """Roles meet before they begin and after they end; in between each has barriers of its own threads."""
        before = [barrier()] if pending != NOTHING else []
        made, left = [], NOTHING
        for role in roles.roles:
            body, after = self.sequence(role.body, NOTHING)
            made.append(replace(role, body=body))
            left = left.then(after)
        return [*before, replace(roles, roles=tuple(made))], left

    def _branch(self, branch: If, pending: Pending) -> tuple[list[Statement], Pending]:
        """A condition under which threads meet is the same for all of them, so barriers may stand inside."""
        then, after_then = self.sequence(branch.then, pending)
        otherwise, after_otherwise = branch.otherwise, pending
        if otherwise is not None:
            otherwise, after_otherwise = self.sequence(otherwise, pending)
        return [replace(branch, then=then, otherwise=otherwise)], after_then.then(after_otherwise)


def _holds_barriers(branch: If) -> bool:
    """Whether the branches hold work of the whole block."""
    return any(isinstance(node, (Parallel, TileOperator)) or _is_barrier(node) for node in walk(branch))


def _is_barrier(node: object) -> bool:
    return isinstance(node, Evaluate) and isinstance(node.value, Call) and node.value.function == "sync_threads"


def touches(statement: Statement) -> Pending:
    """The shared buffers that a statement reads and writes."""
    read: set[Buffer] = set()
    written: set[Buffer] = set()
    for node in walk(statement):
        if isinstance(node, Load):
            read.add(root(node.buffer))
        elif isinstance(node, Store):
            written.add(root(node.buffer))
        elif isinstance(node, TileOperator):
            effects = node.effects()
            read.update(root(region.buffer) for region in effects.reads)
            written.update(root(region.buffer) for region in effects.writes)
        elif isinstance(node, Call):
            regions = {root(part.buffer) for part in node.arguments if isinstance(part, Region)}
            read |= regions
            written |= set() if INTRINSICS[node.function].pure else regions
    return Pending(
        frozenset(buffer for buffer in read if buffer.scope == "shared"),
        frozenset(buffer for buffer in written if buffer.scope == "shared"),
    )
