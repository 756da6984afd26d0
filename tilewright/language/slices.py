"""How long a slice is: ``(i + 1) * 64 - i * 64`` is 64, whatever ``i``."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import nodes as ir
from tilewright.ir.structure import key

Polynomial = Mapping[tuple[int, ...], int]
"""Sums of products: the sorted numbers of a product's atoms, and its factor."""


def length(start: ir.Extent, stop: ir.Extent) -> ir.Extent:
    """``stop - start``: an int where it is provably the same for all values of the variables."""
    if isinstance(start, int) and isinstance(stop, int):
        return stop - start
    atoms: dict[object, int] = {}
    difference = _sum(_expand(ir.expr(stop), atoms), _expand(ir.expr(start), atoms), -1)
    if all(product == () for product in difference):
        return difference.get((), 0)
    return stop - start


def _expand(expr: ir.Expr, atoms: dict[object, int]) -> Polynomial:
    if isinstance(expr, ir.Const):
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, ir.Binary) and expr.op in ("add", "sub", "mul"):
        left, right = _expand(expr.left, atoms), _expand(expr.right, atoms)
        if expr.op == "mul":
            return _product(left, right)
        return _sum(left, right, 1 if expr.op == "add" else -1)
    if isinstance(expr, ir.Unary) and expr.op == "neg":
        return _sum({}, _expand(expr.value, atoms), -1)
    number = atoms.setdefault(key(expr), len(atoms))
    return {(number,): 1}


def _sum(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    total = dict(left)
    for product, factor in right.items():
        total[product] = total.get(product, 0) + sign * factor
        if not total[product]:
            del total[product]
    return total


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    total: dict[tuple[int, ...], int] = {}
    for a, x in left.items():
        for b, y in right.items():
            product = tuple(sorted((*a, *b)))
            total[product] = total.get(product, 0) + x * y
    return {product: factor for product, factor in total.items() if factor}
