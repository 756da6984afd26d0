"""How statements control others: the sequences below them, what decides there, what leaves; and calls for an effect."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Span
from tilewright.ir.nodes import (
    BOOL,
    Break,
    Call,
    Continue,
    Evaluate,
    Expr,
    For,
    If,
    Pipelined,
    Region,
    Return,
    Seq,
    Statement,
    While,
)
from tilewright.ir.visitor import find, walk

LOOPS = (For, Pipelined, While)
"""Loops whose iterations come one after the other."""

LEAVING = (Return, Break, Continue)
"""Statements behind which, in their sequence, nothing is done."""


def bodies(statement: Statement) -> tuple[Seq, ...]:
    """The sequences directly below a statement that only controls; none for a leaf."""
    if isinstance(statement, Seq):
        return (statement,)
    if isinstance(statement, LOOPS):
        return (statement.body,)
    if isinstance(statement, If):
        return (statement.then,) if statement.otherwise is None else (statement.then, statement.otherwise)
    return ()


def header(statement: Statement) -> tuple[Expr, ...]:
    """The expressions by which a statement controls what is below it."""
    if isinstance(statement, (If, While)):
        return (statement.condition,)
    if isinstance(statement, Pipelined):
        return (statement.start, statement.stop)
    if isinstance(statement, For):
        return (statement.start, statement.stop, statement.step)
    return ()


def flattened(statement: Statement) -> Iterator[Statement]:
    """A statement, or those of a sequence one by one, those of sequences in it too."""
    if isinstance(statement, Seq):
        for one in statement.statements:
            yield from flattened(one)
    else:
        yield statement


def leaving(statement: Statement) -> Iterator[Statement]:
    """What in a statement leaves, or goes on with, a loop around it."""
    inner = {id(node) for loop in find(statement, *LOOPS) for node in walk(loop.body)}
    return (node for node in find(statement, Break, Continue) if id(node) not in inner)


def perform(function: str, *arguments: Expr | Region | str, span: Span | None = None) -> Evaluate:
    """A statement that calls a function of the machine's vocabulary for its effect."""
    return Evaluate(Call(BOOL, function, arguments), span=span)


def performed(statement: object) -> str | None:
    """The function that a statement calls for its effect; None for a statement that calls none."""
    call = statement.value if isinstance(statement, Evaluate) else None
    return call.function if isinstance(call, Call) else None
