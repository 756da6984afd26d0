"""Rows that a parallel loop brings: each thread starts cp.async for its pieces, zeros for rows that are not wanted or
do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import BOOL, guard_of, holds
from tilewright.ir import nodes as ir
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK
from tilewright.passes.tile.copies.gathers import Gather, gather_bytes, gather_of
from tilewright.passes.tile.copies.pieces import asynchronous_copy
from tilewright.targets.cuda.async_copy import Pieces
from tilewright.targets.gpu.started_copies import start


def lower_gather(loop: ir.Parallel, context: Context) -> ir.Statement | None:
    """The thread code of a loop that was chosen to be asynchronous."""
    block = context.facts[BLOCK]
    instruction, gather = asynchronous_copy(context.arch), gather_of(loop)
    if instruction is None or gather is None:
        return None
    size = gather_bytes(gather, instruction, block.analyzer, block.memory_layout(gather.tile))
    assert isinstance(size, int), size
    return _Rows(gather.shape, size * 8 // gather.source.dtype.stored_bits, block, loop.span, gather).statement()


@dataclass(slots=True)
class _Rows(Pieces):
    """The pieces of gathered rows."""

    gather: Gather

    def start(self, offsets: Sequence[ir.Expr]) -> ir.Statement:
        gather, block = self.gather, self.block
        to = gather.destination
        place = block.shared(to, [*(ir.const(0) for _ in gather.slot), *offsets])
        place = replace(place, extents=(*place.extents[:-1], self.width))
        indices, condition = gather.at(offsets)
        named: list[ir.Statement] = []
        if condition is not None:
            wanted = ir.Var(BOOL, "wanted")
            named.append(ir.Let(wanted, *block.visited([condition]), span=self.span))
            condition = wanted
        places = [self._place(index, condition, named) for index in indices]
        tensor = gather.source.buffer
        source = ir.Region(tensor, tuple(places), (*(1,) * (len(places) - 1), self.width))
        guard = guard_of([condition, block.guard(tensor, places)])
        return ir.seq(*named, start(place, source, self.valid_bytes(tensor, places[-1], guard), self.span))

    def _place(self, index: ir.Expr, condition: ir.Expr | None, named: list[ir.Statement]) -> ir.Expr:
        """An index of the source; one that memory says is asked for rows that are wanted alone."""
        if not holds(index, ir.Load):
            return self.block.simplify(index)
        (value,) = self.block.visited([index])
        if condition is not None:
            value = ir.Select(value.dtype, condition, value, ir.const(0, value.dtype))
        var = ir.Var(index.dtype, "place")
        named.append(ir.Let(var, value, span=self.span))
        return var
