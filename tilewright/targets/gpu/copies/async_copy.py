"""Asynchronous copies: each thread starts cp.async for its pieces of a tile, or of rows that a parallel loop brings,
zeros where the tensor ends.

A copy with a token only starts here; its `Commit` and `Wait` are statements of their own.  One without waits at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.errors import Span
from tilewright.ir import BOOL, INT32, UINT32, guard_of, holds, perform
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, spread
from tilewright.ops import CP_ASYNC, Copy
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.copies.gathers import Gather, gather_bytes, gather_of
from tilewright.targets.gpu.copies.started_copies import piece_width, place_of, source_of, start, wait


def lower_copy(copy: Copy, context: Context) -> ir.Statement | None:
    """The thread code of a copy that was chosen to be asynchronous."""
    block = context.facts[BLOCK]
    instruction = context.arch.async_copy
    if copy.schedule.prefer != CP_ASYNC or instruction is None:
        return None
    width = piece_width(copy, instruction, block, block.layouts.get(copy.destination.buffer))
    started = _CopyPieces(copy.destination.static_tile_shape, width, block, copy.span, copy).statement()
    return started if copy.token is not None else ir.seq(started, _commit(), wait(0))


def lower_commit(commit: ir.Commit, context: Context) -> ir.Statement | None:
    """Closes the thread's group of copies."""
    return replace(_commit(), span=commit.span) if commit.token.startswith(CP_ASYNC) else None


MOST_AT_ONCE = 16
"""Pieces of a thread that are written out one behind the other: compilers keep the address of each across all
iterations of the loop around them, and 32 of a tile have taken the registers that sums need."""


def lower_wait(asked: ir.Wait, context: Context) -> ir.Statement | None:
    """Waits for groups of copies.

    Groups end in the order in which they were closed, whatever their token, so that the last few of all groups
    hold at most as many of one token: waiting may be longer than asked for, never shorter.
    """
    return replace(wait(asked.pending), span=asked.span) if asked.token.startswith(CP_ASYNC) else None


def _commit() -> ir.Evaluate:
    return perform("async_copy_commit")


@dataclass(slots=True)
class Pieces(ABC):
    """The pieces of `width` elements that make up a tile, dealt out to the threads."""

    tile_shape: Sequence[int]
    width: int
    block: BlockView
    span: Span | None

    @abstractmethod
    def start(self, offsets: Sequence[ir.Expr]) -> ir.Statement:
        """Starts the piece whose first element is at `offsets` in the tile."""

    def statement(self) -> ir.Statement:
        *rows, columns = self.tile_shape
        shape = (*rows, columns // self.width)
        layout = spread(shape, self.block.threads, 1)
        count = layout.extent(REGISTER)
        divisors = (one for one in range(min(count, MOST_AT_ONCE), 3, -1) if count % one == 0)
        inner = next(divisors, count)
        group, piece = ir.Var(INT32, "group"), ir.Var(INT32, "piece")
        with self.block.analyzer.scope():
            self.block.analyzer.bind_extent(group, count // inner)
            self.block.analyzer.bind_extent(piece, inner)
            number: ir.Expr = piece if inner == count else group * inner + piece
            coordinates = [self.block.simplify(value) for value in layout.held_at(self.block.thread, number)]
            inside = self._inside(coordinates, shape)
            if inside is not None:
                self.block.analyzer.assume(inside)
            statement = self.start([*coordinates[:-1], coordinates[-1] * self.width])
        if inside is not None:
            statement = ir.If(inside, ir.seq(statement), span=self.span)
        loop = ir.counted(piece, inner, ir.seq(statement), "unroll", span=self.span)
        if inner == count:
            return loop
        return ir.counted(group, count // inner, ir.seq(loop), span=self.span)

    def _inside(self, coordinates: Sequence[ir.Expr], shape: Sequence[int]) -> ir.Expr | None:
        """Whether the piece exists, where threads are more than pieces."""
        tests = [
            ir.index_binary("lt", coordinate, extent) for coordinate, extent in zip(coordinates, shape, strict=True)
        ]
        return guard_of(test for test in tests if not self.block.analyzer.prove(test))

    def valid_bytes(self, tensor: ir.Buffer, index: ir.Expr, guard: ir.Expr | None) -> ir.Expr | None:
        """Bytes of a piece that exist, where `guard` says whether its first element does; None where all always do."""
        with self.block.analyzer.scope():
            if guard is not None:
                self.block.analyzer.assume(guard)
            size = self._bytes_from(tensor, index)
        if guard is not None:
            return ir.Select(UINT32, guard, size, ir.const(0, UINT32))
        whole = tensor.dtype.nbytes(self.width)
        return None if ir.is_literal(size, whole) else size

    def _bytes_from(self, tensor: ir.Buffer, index: ir.Expr) -> ir.Expr:
        """Bytes of a piece whose first element is in bounds: fewer than all of it where the row ends within."""
        whole = tensor.dtype.nbytes(self.width)
        size = ir.const(whole, UINT32)
        extent = tensor.shape[-1]
        last = index + (self.width - 1)
        if self.block.analyzer.divides(extent, self.width) or self.block.analyzer.prove(
            ir.index_binary("lt", last, extent)
        ):
            return size
        left = extent - index
        if tensor.dtype.is_packed:
            left = left // tensor.dtype.per_byte
        else:
            left = left * tensor.dtype.nbytes(1)
        least = ir.index_binary("min", left, whole)
        return ir.cast(self.block.simplify(least), UINT32)


@dataclass(slots=True)
class _CopyPieces(Pieces):
    """The pieces of a copy."""

    copy: Copy

    def start(self, offsets: Sequence[ir.Expr]) -> ir.Evaluate:
        copy = self.copy
        place = place_of(copy.destination, self.block, offsets, self.width)
        source, guard = source_of(copy.source, self.block, offsets, self.width)
        valid = self.valid_bytes(source.buffer, source.starts[-1], guard)
        if copy.schedule.prefetch is not None:
            return start(place, source, valid, copy.span, "_prefetch", ir.const(copy.schedule.prefetch))
        if copy.schedule.eviction is not None:
            return start(place, source, valid, copy.span, "_hint", copy.schedule.eviction)
        return start(place, source, valid, copy.span)


def lower_gather(loop: ir.Parallel, context: Context) -> ir.Statement | None:
    """The thread code of a loop that was chosen to be asynchronous."""
    block = context.facts[BLOCK]
    instruction, gather = context.arch.async_copy, gather_of(loop)
    if instruction is None or gather is None:
        return None
    size = gather_bytes(gather, instruction, block.analyzer, block.layouts.get(gather.tile))
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
