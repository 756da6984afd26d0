"""Both ways of a condition that store to the same element become one store of a choice.

Before::

    for i, d in parallel(64, 128):
        if i < rows:
            tile[i, d] = K[first + i, d]
        else:
            tile[i, d] = 0.0

After::

    for i, d in parallel(64, 128):
        tile[i, d] = K[first + i, d] if i < rows else 0.0

So every element is seen to be written, whichever way is taken; and what moves neighbours together, or without threads,
knows one form of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.ir import Expr, Function, If, Load, Parallel, Select, Seq, Statement, Store, has_effect, key
from tilewright.ir.visitor import Rewriter, Rewritten, having
from tilewright.ir.walking import walk
from tilewright.passes.context import Context


def join_branches(function: Function, context: Context) -> Function:
    """Replace conditions in parallel loops by choices where both ways store to the same places."""
    return function.with_body(_Join()(function.body))


class _Join(Rewriter):
    def __init__(self) -> None:
        self.in_loop = False

    def visit_Parallel(self, loop: Parallel) -> Rewritten:
        with having(self, in_loop=True):
            return self.generic(loop)

    def visit_If(self, branch: If) -> Rewritten:
        made = self.generic(branch)
        if not self.in_loop or made.otherwise is None:
            return made
        pairs = list(_pairs(made.then, made.otherwise))
        if not pairs or not _independent(made.condition, [store for pair in pairs for store in pair]):
            return made
        return [
            replace(one, value=Select(one.value.dtype, made.condition, one.value, other.value)) for one, other in pairs
        ]


def _pairs(then: Seq, otherwise: Seq) -> Iterator[tuple[Store, Store]]:
    """Stores of the two ways to the same places, in order; nothing where there is anything else."""
    stores = [[one for one in way.statements if isinstance(one, Store)] for way in (then, otherwise)]
    if any(len(found) != len(way.statements) for found, way in zip(stores, (then, otherwise), strict=True)):
        return
    if len(stores[0]) == len(stores[1]) and all(map(_same_place, *stores)):
        yield from zip(*stores, strict=True)


def _same_place(first: Statement, second: Statement) -> bool:
    assert isinstance(first, Store) and isinstance(second, Store)
    return first.buffer is second.buffer and key(first.indices) == key(second.indices)


def _independent(condition: Expr, stores: Sequence[Store]) -> bool:
    """Whether no store changes what the condition, or a later store, depends on."""
    stored = {store.buffer for store in stores}
    read = [condition, *(index for store in stores for index in store.indices)]
    read += [store.value for store in stores[2:]]
    nodes = [node for value in read for node in walk(value)]
    return not has_effect(condition) and not any(isinstance(node, Load) and node.buffer in stored for node in nodes)
