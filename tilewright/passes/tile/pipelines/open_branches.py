"""Conditions in pipelined loops under which whole tiles are loaded: each statement below gets the condition for itself.

    for k in pipelined(K, num_stages=2):            statements         conditions
        if mask[k] != 0:
            copy(source=A[k], destination=a)        copy(..)           mask[k] != 0
            gemm(a=a, b=b, c=c)                     gemm(..)           mask[k] != 0

So loads can be ahead of what they serve. It takes a condition that can be asked in any iteration before, more than
once: one that all threads answer alike, from what the loop does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tilewright.ir import (
    Allocate,
    Buffer,
    Call,
    Expr,
    If,
    Let,
    Load,
    Pipelined,
    Seq,
    Statement,
    Var,
    find,
    has_effect,
    root,
    touched,
    walk,
)

Opened = list[tuple[Statement, tuple[Expr, ...]]]
"""Statements with the conditions that they stand under, outermost first."""

SEEN_BY_ALL = ("global", "shared", "scalar")


def open_branches(
    loop: Pipelined, written: Collection[Buffer], threads: Collection[Var], is_load: Callable[[Statement], bool]
) -> Opened:
    """The statements of a loop's body, those of branches that hold loads taken out of them.

    Parameters
    ----------
    written : buffers that the loop writes.
    threads : variables in which threads differ.
    """
    values = {node.var: node.value for node in find(loop.body, Let)}

    def used_anywhere(condition: Expr) -> bool:
        seen: set[Var] = set()
        values_left = [condition]
        while values_left:
            for node in walk(values_left.pop()):
                if isinstance(node, Var) and node in values and node not in seen:
                    seen.add(node)
                    values_left.append(values[node])
                private = isinstance(node, Load) and (
                    root(node.buffer) in written or root(node.buffer).scope not in SEEN_BY_ALL
                )
                if private or node in threads or (isinstance(node, Call) and has_effect(node)):
                    return False
        return True

    def statements(body: Seq, conditions: tuple[Expr, ...]) -> Iterator[tuple[Statement, tuple[Expr, ...]]]:
        for one in body.statements:
            if (
                isinstance(one, If)
                and one.otherwise is None
                and _holds_loads(one, is_load)
                and used_anywhere(one.condition)
                and all(touched(let).reads.isdisjoint(written) for let in one.then.statements if isinstance(let, Let))
            ):
                yield from statements(one.then, (*conditions, one.condition))
            else:
                yield one, conditions

    return list(statements(loop.body, ()))


def _holds_loads(branch: If, is_load: Callable[[Statement], bool]) -> bool:
    """Whether loads are among the statements of a branch, or of one in it, and no tiles are declared there."""
    below = branch.then.statements
    if any(isinstance(one, Allocate) for one in below):
        return False
    return any(is_load(one) or (isinstance(one, If) and _holds_loads(one, is_load)) for one in below)
