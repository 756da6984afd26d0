"""How the blocks of a persistent grid go through tiles that are dealt beforehand: the loop that `persist_grid` puts
around a role.

Group number ``g`` of ``n`` has the tiles ``g``, ``n + g``, ``2 n + g`` and so on. Where tiles differ in their steps,
every other iteration goes the other way round, so that who has a long tile has a short one next.
"""

from __future__ import annotations

from tilewright.errors import Span
from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import Const, Expr, For, Let, Select, Seq, Var, cast, const, index_binary, seq
from tilewright.ir.substitution import substitute


def dealt_loop(
    iteration: Var, tile: Var, total: Expr, group: Expr, groups: Expr, work: Seq, uneven: bool, span: Span | None
) -> For:
    """A role's loop over its group's tiles.

    Parameters
    ----------
    iteration, tile : names for how many the group had before, and the tile's number.
    total, groups : how many there are.
    work : what is done for a tile.
    uneven : whether tiles differ in their steps.
    """
    iterations, place = _iterations(total, group, groups), group
    if uneven:
        back = groups - 1 - group
        there = index_binary("eq", iteration % 2, 0)
        place = Select(INT32, there, cast(group, INT32), cast(back, INT32))
        whole = total // groups
        left = total - whole * groups
        is_one_more = index_binary("lt", substitute(place, {iteration: whole}), left)
        iterations = whole + Select(INT32, is_one_more, const(1), const(0))
    number = iteration * groups + place
    body = seq(Let(tile, cast(number, INT32), span=span), work.statements)
    return For(iteration, const(0), cast(iterations, INT32), const(1), body, span=span)


def _iterations(total: Expr, group: Expr, groups: Expr) -> Expr:
    """Tiles of a group: as many for each where they are known to come out even."""
    even = isinstance(total, Const) and isinstance(groups, Const) and total.value % groups.value == 0
    return ceildiv(total if even else total - group, groups)


def ceildiv(value: Expr, divisor: Expr) -> Expr:
    """The quotient rounded up."""
    return (value + (divisor - 1)) // divisor
