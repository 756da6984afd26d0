"""Whether a region of a tensor begins inside it: where it does, only its last two dimensions may leave the tensor, at
their ends.

Accesses outside of a tensor mean zeros, before its first element and beside its planes as well as beyond its end.
Whoever reads several elements at once counts how many there are up to the end, and asks here about all else.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import Analyzer
from tilewright.ir.nodes import Expr, Region, binary, const, expr, index_binary


def unproven_beginning(region: Region, analyzer: Analyzer | None, reaching: Sequence[int] = (-2, -1)) -> list[Expr]:
    """Conditions, not known to hold, under which a region of a global buffer begins inside it.

    Every start is at least zero, and only the dimensions of `reaching` may end beyond the buffer.
    """
    if region.buffer.scope != "global":
        return []
    rank = len(region.starts)
    reaches = {axis % rank for axis in reaching}
    conditions: list[Expr] = []
    for axis, (start, extent) in enumerate(zip(region.starts, region.extents, strict=True)):
        conditions.append(binary("ge", start, const(0, start.dtype)))
        if axis not in reaches:
            end, size = start + extent, expr(region.buffer.shape[axis])
            conditions.append(index_binary("le", end, size))
    return [one for one in conditions if analyzer is None or not analyzer.prove(one)]
