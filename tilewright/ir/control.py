"""How statements control others: the sequences below them, what decides there, what leaves; and calls for an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import Span
from tilewright.ir import nodes as ir
from tilewright.ir.walking import find, holds, walk

LOOPS = (ir.For, ir.Pipelined, ir.While)
"""Loops whose iterations come one after the other."""

LEAVING = (ir.Return, ir.Break, ir.Continue)
"""Statements behind which, in their sequence, nothing is done."""


def bodies(statement: ir.Statement) -> tuple[ir.Seq, ...]:
    """The sequences directly below a statement that only controls; none for a leaf."""
    if isinstance(statement, ir.Seq):
        return (statement,)
    if isinstance(statement, LOOPS):
        return (statement.body,)
    if isinstance(statement, ir.If):
        return (statement.then,) if statement.otherwise is None else (statement.then, statement.otherwise)
    return ()


def header(statement: ir.Statement) -> tuple[ir.Expr, ...]:
    """The expressions by which a statement controls what is below it."""
    if isinstance(statement, (ir.If, ir.While)):
        return (statement.condition,)
    if isinstance(statement, ir.Pipelined):
        return (statement.start, statement.stop)
    if isinstance(statement, ir.For):
        return (statement.start, statement.stop, statement.step)
    return ()


def flattened(statement: ir.Statement) -> Iterator[ir.Statement]:
    """A statement, or those of a sequence one by one, those of sequences in it too."""
    if isinstance(statement, ir.Seq):
        for one in statement.statements:
            yield from flattened(one)
    else:
        yield statement


def leaving(statement: ir.Statement) -> Iterator[ir.Statement]:
    """What in a statement leaves, or goes on with, a loop around it."""
    inner = {id(node) for loop in find(statement, *LOOPS) for node in walk(loop.body)}
    return (node for node in find(statement, ir.Break, ir.Continue) if id(node) not in inner)


def without_jumps(
    statements: Sequence[ir.Statement], flags: Mapping[type[ir.Statement], Sequence[ir.Load]]
) -> Iterator[ir.Statement]:
    """Statements whose jumps clear flags, the last of which says whether what stands behind them is still to be done.

    Parameters
    ----------
    flags : of `Return`, which leaves loops within too; or of `Break` and `Continue`, which loops within have of their
        own.
    """
    for position, one in enumerate(statements):
        for flag in flags.get(type(one), ()):
            yield ir.Store(flag.buffer, flag.indices, ir.const(False), span=one.span)
        if type(one) in flags:
            return
        if not (holds(one, ir.Return) if ir.Return in flags else any(leaving(one))):
            yield one
            continue
        stays = next(iter(flags.values()))[-1]
        if isinstance(one, ir.If):
            then = ir.seq(*without_jumps(one.then.statements, flags))
            otherwise = None if one.otherwise is None else ir.seq(*without_jumps(one.otherwise.statements, flags))
            yield replace(one, then=then, otherwise=otherwise)
        elif isinstance(one, ir.Seq):
            yield ir.seq(*without_jumps(one.statements, flags))
        else:
            assert isinstance(one, (ir.For, ir.While)), one
            leave = ir.If(ir.Unary(ir.BOOL, "not", stays), ir.seq(ir.Break()))
            yield replace(one, body=ir.seq(*without_jumps(one.body.statements, flags), leave))
        yield ir.If(stays, ir.seq(*without_jumps(statements[position + 1 :], flags)), span=one.span)
        return


def perform(function: str, *arguments: ir.Expr | ir.Region | str, span: Span | None = None) -> ir.Evaluate:
    """A statement that calls a function of the machine's vocabulary for its effect."""
    return ir.Evaluate(ir.Call(ir.BOOL, function, arguments), span=span)


def performed(statement: object) -> str | None:
    """The function that a statement calls for its effect; None for a statement that calls none."""
    return statement.value.function if isinstance(statement, ir.Evaluate) else None
