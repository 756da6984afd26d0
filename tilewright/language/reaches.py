"""Parallel loops that index tiles where these have no elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.errors import Span
from tilewright.ir import Binary, Cast, Const, Expr, Extent, If, Load, Select, Seq, Store, Unary, Var, children
from tilewright.language.mistakes import IndexOutOfRange


def check_reaches(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> None:
    """Refuse elements of tiles that do not exist, where a sum of the loop's variables is the index and nothing asks for
    it.

    Raises
    ------
    IndexOutOfRange
    """
    sizes = {var: extent for var, extent in zip(variables, extents, strict=True) if isinstance(extent, int)}
    for statement in body.statements:
        for access in certain_accesses(statement):
            if access.buffer.scope != "global":
                _check(access, sizes, getattr(statement, "span", None))


def certain_accesses(node: object) -> Iterator[Load | Store]:
    """Accesses at or below a node that every iteration makes."""
    if isinstance(node, (Load, Store)):
        yield node
    if isinstance(node, If):
        return
    if isinstance(node, Select):
        yield from certain_accesses(node.condition)
        return
    if isinstance(node, Binary) and node.op in ("all", "any"):
        yield from certain_accesses(node.left)
        return
    for child in children(node):
        yield from certain_accesses(child)


def _check(access: Load | Store, sizes: Mapping[Var, int], span: Span | None) -> None:
    for dimension, (index, size) in enumerate(zip(access.indices, access.buffer.shape, strict=True)):
        sum_ = linear(index)
        if sum_ is None or not isinstance(size, int) or not sum_[0] or any(var not in sizes for var in sum_[0]):
            continue
        terms, constant = sum_
        ends = [(factor * (sizes[var] - 1), var, factor) for var, factor in terms.items()]
        if any(sizes[var] < 1 for var in terms):
            continue  # there is no iteration
        least, most = (constant + sum(pick(end, 0) for end, _, _ in ends) for pick in (min, max))
        if most >= size or least < 0:
            is_dense = all(abs(factor) == 1 for _, _, factor in ends)
            wrong = (size if is_dense and least < size else most) if most >= size else least
            error = IndexOutOfRange(
                f"{_text(terms, constant)} = {wrong}", dimension, f"the tile {access.buffer.name!r}", size
            )
            raise error.at(span) if span is not None else error


def is_negative(index: Expr, ranges: Mapping[Var, tuple[int | None, int | None]]) -> bool:
    """Whether an index lies before 0 whatever its variables are."""
    sum_ = linear(index)
    if sum_ is None:
        return False
    ends = ((by, ranges.get(var, (None, None))[by > 0]) for var, by in sum_[0].items())
    most = sum_[1]
    for by, end in ends:
        if end is None:
            return False
        most += by * end
    return most < 0


def linear(index: Expr) -> tuple[dict[Var, int], int] | None:
    """An index as multiples of variables and a constant; None where it is more than that."""
    if isinstance(index, Const) and isinstance(index.value, int):
        return {}, int(index.value)
    if isinstance(index, Var):
        return {index: 1}, 0
    if isinstance(index, Unary) and index.op == "neg":
        found = linear(index.value)
        return found and ({var: -by for var, by in found[0].items()}, -found[1])
    if isinstance(index, Cast) and index.dtype.kind == "int" and index.dtype.bits >= index.value.dtype.bits >= 32:
        return linear(index.value)
    if not isinstance(index, Binary) or index.op not in ("add", "sub", "mul"):
        return None
    left, right = linear(index.left), linear(index.right)
    if left is None or right is None:
        return None
    if index.op == "mul":
        (terms, constant), (others, factor) = (left, right) if not right[0] else (right, left)
        return None if others else ({var: by * factor for var, by in terms.items() if factor}, constant * factor)
    sign = 1 if index.op == "add" else -1
    terms = dict(left[0])
    for var, by in right[0].items():
        terms[var] = terms.get(var, 0) + sign * by
    return {var: by for var, by in terms.items() if by}, left[1] + sign * right[1]


def _text(terms: Mapping[Var, int], constant: int) -> str:
    """A sum as an author would write it."""
    text = ""
    for by, what in (*((by, var.name) for var, by in terms.items()), (constant, "")):
        if by or not text:
            sign = ("-" if by < 0 else "") if not text else (" - " if by < 0 else " + ")
            text += sign + " * ".join(part for part in (what, str(abs(by)) if abs(by) != 1 or not what else "") if part)
    return text
