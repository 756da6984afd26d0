"""Parallel loops that only bring rows of a tensor into a shared tile: what an author writes where no region says which
rows.

    for i, d in parallel(64, 128):
        tile[i, d] = K[rows[first + i], d] if first + i < length else 0.0

Every such row is made of pieces that threads move by cp.async, as those of a copy; where the choice fails, or the
tensor ends, the piece is zeros. Who decides what is started ahead asks `gather_of`, and `gather_bytes` for the size of
the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.arith import Analyzer
from tilewright.ir import find, has_effect, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.layout.layout import Layout
from tilewright.machine.instructions import AsyncCopy
from tilewright.passes.forwarding import stored_by
from tilewright.passes.rows import Neighbours, is_plain_tensor, row_unsupported, runs_of
from tilewright.passes.scoped import negated


@dataclass(frozen=True, slots=True)
class Gather:
    """A parallel loop that brings rows.

    Attributes
    ----------
    slot : indices of the tile before those of the loop, where it is one of several.
    source : the element that the loop's variables say.
    condition : under which it is wanted; the others are zero.
    """

    loop: ir.Parallel
    tile: ir.Buffer
    slot: tuple[ir.Expr, ...]
    source: ir.Load
    condition: ir.Expr | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent for extent in self.loop.extents if isinstance(extent, int))

    @property
    def destination(self) -> ir.Region:
        starts = (*self.slot, *(ir.const(0) for _ in self.loop.vars))
        return ir.Region(self.tile, starts, (*(1 for _ in self.slot), *self.loop.extents))

    def at(self, offsets: Sequence[ir.Expr]) -> tuple[tuple[ir.Expr, ...], ir.Expr | None]:
        """The indices of the source, and the condition, for one element of the tile."""
        values = dict(zip(self.loop.vars, offsets, strict=True))
        indices = tuple(substitute(index, values) for index in self.source.indices)
        return indices, None if self.condition is None else substitute(self.condition, values)


def gather_of(statement: ir.Statement) -> Gather | None:
    """What a statement brings, where it is a parallel loop that does nothing else."""
    if not isinstance(statement, ir.Parallel) or not all(isinstance(extent, int) for extent in statement.extents):
        return None
    work = stored_by(statement)
    if work is None or tuple(work[0]) != statement.vars:
        return None
    store = work[1]
    found = _conditional_load(store.value)
    count = len(statement.vars)
    if found is None or store.buffer.scope != "shared" or store.buffer.source is not None:
        return None
    source, condition = found
    slot, own = store.indices[:-count], store.indices[-count:]
    moved = any(node in statement.vars for index in slot for node in walk(index))
    if moved or len(own) != count or any(one is not var for one, var in zip(own, statement.vars, strict=True)):
        return None
    if source.buffer.scope != "global" or source.dtype != store.buffer.dtype:
        return None
    values = [*source.indices, *([] if condition is None else [condition])]
    private = any(load.buffer.scope in ("fragment", "local") for value in values for load in find(value, ir.Load))
    if private or any(map(has_effect, values)):  # threads may see different values
        return None
    return Gather(statement, store.buffer, slot, source, condition)


def _conditional_load(value: ir.Expr) -> tuple[ir.Load, ir.Expr | None] | None:
    """The load that a value is, and the condition under which it is not zero."""
    if isinstance(value, ir.Load):
        return value, None
    if not isinstance(value, ir.Select):
        return None
    for way, other, condition in (
        (value.then, value.otherwise, value.condition),
        (value.otherwise, value.then, negated(value.condition)),
    ):
        if is_zero(other):
            found = _conditional_load(way)
            if found is not None:
                source, inner = found
                return source, condition if inner is None else ir.binary("all", condition, inner)
    return None


def is_zero(value: ir.Expr) -> bool:
    """Whether all bits of a literal are zero."""
    return isinstance(value, ir.Const) and value.value == 0 and not str(value.value).startswith("-")


def gather_bytes(gather: Gather, instruction: AsyncCopy, analyzer: Analyzer, layout: Layout | None) -> int | str:
    """How many bytes one instruction moves of each row, or why none can.

    Parameters
    ----------
    layout : of the shared tile, where it is known already.
    """
    source, tile = gather.source, gather.tile
    if not is_plain_tensor(source.buffer) or source.dtype.is_packed:
        return f"{source.buffer.name} is no plain tensor of whole bytes"
    columns = gather.shape[-1]
    for size in instruction.bytes:
        width = size * 8 // source.dtype.stored_bits
        if not width or columns % width or row_unsupported(source.buffer, size, analyzer) is not None:
            continue
        lies = tile.static_shape[-1] % width == 0 if layout is None else runs_of(layout, width)
        if lies and _is_whole(gather, width, analyzer):
            return size
    return f"rows do not consist of pieces of {instruction.bytes[-1]} bytes"


def _is_whole(gather: Gather, width: int, analyzer: Analyzer) -> bool:
    """Whether `width` neighbours of the tile are neighbours in the tensor, wanted together, the first at a multiple of
    `width`."""
    *rows, var = gather.loop.vars
    *outer, inner = gather.source.indices
    with analyzer.scope():
        for row, extent in zip(rows, gather.shape, strict=False):
            analyzer.bind_extent(row, extent)
        group = Neighbours(analyzer, var, width, groups=(0, gather.shape[-1] // width - 1))
        first = group.begin(inner)
        together = all(map(group.agree, outer)) and (gather.condition is None or _agree(group, gather.condition))
        return first is not None and together and analyzer.divides(first, width)


def _agree(group: Neighbours, condition: ir.Expr) -> bool:
    """Whether a condition is the same for all of a group, wherever a pipeline puts it: what the loop's range says of
    `k * 8 + i < K` is not known of `i < K` before the loop, but no multiple of the width lies within a group."""
    if isinstance(condition, ir.Binary) and condition.op in ("all", "any"):
        return _agree(group, condition.left) and _agree(group, condition.right)
    if isinstance(condition, ir.Binary) and condition.op == "lt" and condition.left.dtype.kind == "int":
        apart = group.begin(condition.left - condition.right)
        if apart is not None and group.analyzer.divides(apart, group.width):
            return True
    return group.agree(condition)


def filled_by(statement: ir.Statement) -> tuple[ir.Region, ...]:
    """The regions that a statement writes all of: those of an operator, or the tile of a gather."""
    if isinstance(statement, ir.TileOperator):
        return statement.effects().writes
    found = gather_of(statement)
    return () if found is None else (found.destination,)
