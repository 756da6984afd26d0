"""What memory statements read and write, and which calls have an effect: one answer for all who ask."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tilewright.ir import nodes as ir
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.walking import children, find, walk


def root(buffer: ir.Buffer) -> ir.Buffer:
    """The buffer that owns the memory of a view."""
    while buffer.source is not None:
        buffer = buffer.source
    return buffer


def uses(node: object) -> Iterator[ir.Record]:
    """`node` and all below it that is used: to declare a buffer is no use of it, but the first value of a scalar is
    computed.

    Who asks which memory a statement touches asks here, so that no value that stands in a declaration is forgotten.
    """
    waiting = [node]
    while waiting:
        for one in walk(waiting.pop(), lambda below: not isinstance(below, ir.Allocate)):
            yield one
            if isinstance(one, ir.Allocate) and one.initial is not None:
                waiting.append(one.initial)


def own(statement: ir.Statement, *classes: type) -> Iterator[ir.Record]:
    """What a statement itself evaluates: all that is used by it and not by the statements below it, of some classes or
    of all."""
    below = (statement.initial,) if isinstance(statement, ir.Allocate) else children(statement)
    for child in below:
        if child is not None and not isinstance(child, ir.Statement):
            yield from find(child, *classes) if classes else walk(child)


def has_effect(node: object) -> bool:
    """Whether something calls a function that has an effect."""
    return any(not INTRINSICS[call.function].pure for call in find(node, ir.Call))


UPDATES = frozenset(f"atomic_{kind}" for kind in ("add", "max", "min", "and", "or", "xor", "exchange"))
"""Functions that change an element by what it is: that many threads call them is not the same as that one does."""


def updates(statement: ir.Statement) -> bool:
    """Whether each thread that comes to a statement's own expressions changes memory by what is there."""
    calls = (found for child in children(statement) if isinstance(child, ir.Expr) for found in find(child, ir.Call))
    return any(found.function in UPDATES for found in calls)


def accesses(node: object) -> tuple[Collection[ir.Buffer], Collection[ir.Buffer]]:
    """The buffers that a node itself, nothing below it, may read, and those that it may write."""
    if isinstance(node, ir.Load):
        return (node.buffer,), ()
    if isinstance(node, ir.Store):
        return (), (node.buffer,)
    if isinstance(node, ir.TileOperator):
        effects = node.effects()
        return [region.buffer for region in effects.reads], [region.buffer for region in effects.writes]
    if isinstance(node, ir.Call):
        record, places = INTRINSICS[node.function], list(enumerate(node.arguments))
        reads = [part.buffer for n, part in places if isinstance(part, ir.Region) and n not in record.fills]
        written = [part for n, part in places if record.may_write(n)]
        maps = [part.tensor for part in written if isinstance(part, ir.TensorMap)]  # what the copy engine stores to
        return reads, [*(part.buffer for part in written if isinstance(part, ir.Region)), *maps]
    return (), ()


def own_writes(statement: ir.Statement) -> Iterator[ir.Buffer]:
    """Buffers that a statement itself, not one below it, may write; an atomic gives what was there before."""
    yield from accesses(statement)[1]
    if isinstance(statement, (ir.Evaluate, ir.Let, ir.Store)):
        for call in find(statement.value, ir.Call):
            yield from accesses(call)[1]


@dataclass(frozen=True, slots=True)
class Touched:
    """Memory that a statement reads and writes, by the buffers that own it."""

    reads: frozenset[ir.Buffer]
    writes: frozenset[ir.Buffer]

    @property
    def all(self) -> frozenset[ir.Buffer]:
        return self.reads | self.writes


def combines(node: ir.Record) -> bool:
    """Whether a node itself combines what it writes with what is there, whoever else does so at the same time."""
    return node.effects().atomic if isinstance(node, ir.TileOperator) else getattr(node, "function", "") in UPDATES


def touched(node: object, combining: bool = True) -> Touched:
    """The memory that a statement, or a value, and all below it read and write.

    Parameters
    ----------
    combining : whether what is only combined with counts as read: several that do so come in any order.
    """
    found = []
    for one in find(node, ir.Load, ir.Store, ir.TileOperator, ir.Call):
        read, written = accesses(one)
        brought = read if combining or not combines(one) else [each for each in read if each not in written]
        found.append((brought, written))
    reads, writes = (frozenset(root(one) for pair in found for one in pair[side]) for side in (0, 1))
    return Touched(reads, writes)
