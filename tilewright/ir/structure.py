"""What expressions are made of: which have the same structure, and which conditions stand in one."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.ir.walking import fields_of, find, variables


def same(a: Any, b: Any) -> bool:  # any field's values
    """Whether two expressions or regions have the same structure, variables and buffers compared by identity."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (ir.Var, ir.Buffer, ir.Statement)):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (ir.Expr, ir.Region)):
        if isinstance(a, ir.Expr) and a.dtype != b.dtype:
            return False
        return all(same(getattr(a, name), getattr(b, name)) for name in fields_of(type(a)))
    return bool(a == b)


def key(node: object) -> object:
    """A hashable value that two nodes share exactly when they are `same`."""
    if isinstance(node, (ir.Var, ir.Buffer, ir.Statement)):
        return node
    if isinstance(node, tuple):
        return tuple(key(item) for item in node)
    if isinstance(node, (ir.Expr, ir.Region)):
        dtype: ir.DType | None = node.dtype if isinstance(node, ir.Expr) else None
        return (type(node), dtype, *(key(getattr(node, name)) for name in fields_of(type(node))))
    return (type(node), node)


@functools.lru_cache(maxsize=256)
def folds(loop: ir.For) -> bool:
    """Whether a loop changes by what is there a place that all its iterations have: they then run in order."""
    moving = {loop.var, *(node.var for node in find(loop.body, ir.Let, ir.For))}
    read = {(load.buffer, key(load.indices)) for load in find(loop.body, ir.Load)}
    stores = (store for store in find(loop.body, ir.Store) if (store.buffer, key(store.indices)) in read)
    return any(all(moving.isdisjoint(variables(index)) for index in store.indices) for store in stores)


def conjuncts(condition: ir.Expr) -> Iterator[ir.Expr]:
    """What must hold together for a condition to hold."""
    if isinstance(condition, ir.Binary) and condition.op == "all":
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    else:
        yield condition


def conjunction(conditions: Sequence[ir.Expr]) -> ir.Expr:
    """All of them; the first one that fails decides."""
    return functools.reduce(lambda first, second: ir.binary("all", first, second), conditions)


def guard_of(conditions: Iterable[ir.Expr | None]) -> ir.Expr | None:
    """The `conjunction` of some conditions; None where there is nothing to ask, as None among them is."""
    asked = [one for one in conditions if one is not None]
    return conjunction(asked) if asked else None
