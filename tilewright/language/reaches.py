"""Parallel loops that are longer than the tiles they index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.ir.nodes import Binary, Extent, If, Load, Select, Seq, Store, Var
from tilewright.ir.visitor import children
from tilewright.language.mistakes import IndexOutOfRange


def check_reaches(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> None:
    """Refuse elements of tiles that do not exist, where a loop's variable alone is the index and nothing asks for it.

    Raises
    ------
    IndexOutOfRange
    """
    sizes = {var: extent for var, extent in zip(variables, extents, strict=True) if isinstance(extent, int)}
    for statement in body.statements:
        for access in _certain(statement):
            _check(access, sizes, getattr(statement, "span", None))


def _certain(node: Any) -> Iterator[Load | Store]:
    """Accesses at or below a node that every iteration makes."""
    if isinstance(node, (Load, Store)) and node.buffer.scope != "global":
        yield node
    if isinstance(node, If):
        return
    if isinstance(node, Select):
        yield from _certain(node.condition)
        return
    if isinstance(node, Binary) and node.op in ("all", "any"):
        yield from _certain(node.left)
        return
    for child in children(node):
        yield from _certain(child)


def _check(access: Load | Store, sizes: Mapping[Var, int], span: Any) -> None:
    for dimension, (index, size) in enumerate(zip(access.indices, access.buffer.shape, strict=True)):
        if isinstance(index, Var) and isinstance(size, int) and sizes.get(index, 0) > size:
            error = IndexOutOfRange(f"{index.name} = {size}", dimension, size, f"the tile {access.buffer.name!r}")
            raise error.at(span) if span is not None else error
