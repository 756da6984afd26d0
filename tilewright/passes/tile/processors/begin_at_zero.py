"""A sum that is cleared for one gemm begins at zero in the matrix unit's registers, not in memory.

Before::

    fill(destination=c, value=float32(0.0))
    for k in range(1):
        copy(source=A[bm * 64 : +64, k * 64 : +64], destination=a)
        gemm(a=a, b=b, c=c)

After::

    for k in range(1):
        copy(source=A[bm * 64 : +64, k * 64 : +64], destination=a)
        gemm(a=a, b=b, c=c, clear=True)

Dot products of vectors gain nothing: their gemms stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Buffer, For, Function, Pipelined, Rewriter, Seq, Statement, is_literal, mentioned, put
from tilewright.machine import TilePlan
from tilewright.ops import Fill, Gemm
from tilewright.passes.context import Context


def begin_at_zero(function: Function, context: Context) -> Function:
    """Leave out what clears the sums of single gemms of the matrix unit."""
    return function.with_body(_Clears()(function.body))


class _Clears(Rewriter):
    def visit_Seq(self, seq: Seq) -> Seq:
        statements = list(seq.statements)
        changed = False
        for place, statement in enumerate(statements):
            if not isinstance(statement, Fill) or not _clears_all(statement):
                continue
            cleared = statement.destination.buffer
            user = next((i for i in range(place + 1, len(statements)) if cleared in mentioned(statements[i])), None)
            gemm = None if user is None else _first_use(statements[user], cleared)
            if user is None or gemm is None or not isinstance(gemm.plan, TilePlan):
                continue
            statements[user] = put(statements[user], {gemm: replace(gemm, clear=True)})
            statements[place] = Seq(())
            changed = True
        if changed:
            seq = replace(seq, statements=tuple(s for s in statements if not (isinstance(s, Seq) and not s.statements)))
        generic: Seq = self.generic(seq)
        return generic


def _clears_all(fill: Fill) -> bool:
    buffer, zero = fill.destination.buffer, is_literal(fill.value, 0)
    return zero and fill.destination.is_whole and buffer.scope != "global" and buffer.source is None


def _first_use(node: Statement, buffer: Buffer) -> Gemm | None:
    """The gemm that is the first to touch a cleared buffer, and runs once; None where that is not so."""
    if isinstance(node, Gemm):
        mine = node.c.buffer is buffer and node.c.is_whole and node.clear is False
        others = [region for region in node.effects().reads if region is not node.c]
        return node if mine and not any(region.buffer is buffer for region in others) else None
    if isinstance(node, Seq):
        first = next((one for one in node.statements if buffer in mentioned(one)), None)
        return None if first is None else _first_use(first, buffer)
    if isinstance(node, Pipelined) or (isinstance(node, For) and node.kind == "serial"):
        return _first_use(node.body, buffer) if len(node.numbers or ()) == 1 else None
    return None
