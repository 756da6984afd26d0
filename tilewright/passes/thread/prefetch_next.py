"""Prefetch the rows that the next block reads while this one computes: they are too short for hardware prefetchers.

Before::

    @stage("final")
    def f(A: float32[1024, 4096], C: float32[1024, 4096]) -> C:
        with kernel(blocks={bx: 1024}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[4096])
            for i in range(0, 4096, 16):
                row[i].x16 = A[bx * 4096 + i].x16
            for j in range(0, 4096, 32):
                row[j].x16 = exp2(row[j].x16)
                row[j + 16].x16 = exp2(row[j + 16].x16)

After::

    @stage("final")
    def f(A: float32[1024, 4096], C: float32[1024, 4096]) -> C:
        with kernel(blocks={bx: 1024}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[4096])
            for i in range(0, 4096, 16):
                row[i].x16 = A[bx * 4096 + i].x16
            for j in range(0, 4096, 32):
                prefetch(A[bx * 4096 + j + 4096 : +1], dtype=int32)
                prefetch(A[bx * 4096 + j + 4112 : +1], dtype=int32)
                row[j].x16 = exp2(row[j].x16)
                row[j + 16].x16 = exp2(row[j + 16].x16)

A block that first reads its rows, then computes and then writes leaves the memory idle while it computes. A loop that
reads nothing new can prefetch the next block's rows meanwhile. Blocks follow one another in the first dimension of the
grid. A prefetch behind the last block, of rows that do not exist, loads nothing.

Where many lines may be in flight to the second-level cache, rows are prefetched into it: the first-level cache holds
this block's. Hardware prefetches for loops that only read, and faster than requests, which wait for one another. Where
it keeps up with the memory, only loops that write at least as many bytes as they would prefetch get requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir import INT32, find, root, with_statements
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.passes import Context, ScopedRewriter, bind_loop, free_of, with_values
from tilewright.passes.thread.first_lanes import LOAD

MOST_REQUESTS = 8
"""In one iteration; more would exceed the memory's rate."""


def prefetch_next(function: ir.Function, context: Context) -> ir.Function:
    """Prefetch the rows of the next block."""
    return function.with_body(_Prefetch(function, context.arch)(function.body))


@dataclass(frozen=True)
class _Stream:
    """Consecutive elements that one loop of a block reads, and how far those of the next block are from them."""

    buffer: ir.Buffer
    loop: ir.For
    index: ir.Expr
    distance: int


class _Prefetch(ScopedRewriter):
    def __init__(self, function: ir.Function, arch: Arch) -> None:
        super().__init__(function)
        self.line, self.most_requested = arch.line_bytes, MOST_REQUESTS * arch.line_bytes
        self.most_bytes, self.always_requests = arch.l2_bytes // 4, arch.has("slow_streams")
        self.request = "prefetch_far" if arch.has("far_requests") else "prefetch"

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        along = _first_dimension(kernel)
        if along is None:
            return kernel
        with self.analyzer.scope():
            for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
                self.analyzer.bind_extent(var, extent)
            statements = list(kernel.body.statements)
            read = _read_only(kernel)
            for position, statement in enumerate(kernel.body.statements):
                if isinstance(statement, ir.For):
                    for stream in self.streams(statement, along, read):
                        if self.place_requests(stream, statements, position):
                            read.remove(stream.buffer)
        return kernel.with_body(with_statements(kernel.body, statements))

    def streams(self, loop: ir.For, along: ir.Var, read: set[ir.Buffer]) -> Iterator[_Stream]:
        """The tensors that `loop` reads from end to end, other parts in every block."""
        seen: set[ir.Buffer] = set()
        inner = [one.var for one in find(loop.body, ir.For)]
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            for load in _direct_loads(loop):
                if load.buffer in seen or load.buffer not in read or not free_of(load.indices[0], *inner):
                    continue
                seen.add(load.buffer)
                index = load.indices[0]
                step, distance = self.analyzer.stride(index, loop.var), self.analyzer.stride(index, along)
                if not (ir.is_literal(step, 1) and isinstance(distance, ir.Const)):
                    continue
                size = load.buffer.dtype.storage_bytes
                if self.line <= int(distance.value) * size <= self.most_bytes:
                    yield _Stream(load.buffer, loop, index, int(distance.value))

    def place_requests(self, stream: _Stream, statements: list[ir.Statement], position: int) -> bool:
        """Put the requests into the first loop behind `position` that has the same range and leaves the memory idle."""
        for later in range(position + 1, len(statements)):
            loop = statements[later]
            if isinstance(loop, ir.For) and self.same_range(loop, stream.loop) and self.has_idle_memory(loop, stream):
                places = self.places(loop, stream)
                requests = [
                    ir.Evaluate(ir.Call(INT32, self.request, (ir.Region(stream.buffer, (at,), (1,)),))) for at in places
                ]
                statements[later] = replace(loop, body=ir.Seq((*requests, *loop.body.statements)), kind="serial")
                return True
        return False

    def places(self, loop: ir.For, stream: _Stream) -> list[ir.Expr]:
        """An element of each line of the next block's rows that an iteration of `loop` prefetches."""
        first = with_values(stream.index, {stream.loop.var: loop.var})
        per_line = self.line // stream.buffer.dtype.storage_bytes
        return [first + (stream.distance + offset) for offset in range(0, _step(loop), per_line)]

    def has_idle_memory(self, loop: ir.For, stream: _Stream) -> bool:
        """Whether `loop` leaves the memory idle: what it reads of the tensor is cached, and it works long enough."""
        requested = _step(loop) * stream.buffer.dtype.storage_bytes
        if not 0 < requested <= self.most_requested or (requested % self.line and self.line % requested):
            return False
        loads = [load for load in _direct_loads(loop) if load.buffer is stream.buffer]
        if not all(self.is_cached(load, loop, stream) for load in loads):
            return False
        moving = [
            store for store in find(loop.body, ir.Store) if not all(free_of(index, loop.var) for index in store.indices)
        ]
        return self.always_requests or sum(store.value.dtype.nbytes(1) for store in moving) >= requested

    def is_cached(self, load: ir.Load, loop: ir.For, stream: _Stream) -> bool:
        """Whether a load reads the row that `stream` has read."""
        stride = self.analyzer.stride(load.indices[0], loop.var)
        here = with_values(load.indices[0], {loop.var: loop.start})
        read = with_values(stream.index, {stream.loop.var: stream.loop.start})
        return ir.is_literal(stride, 1) and self.is_close_behind(here, read, self.most_requested - 1)

    def same_range(self, one: ir.For, other: ir.For) -> bool:
        """Whether `one` begins where `other` does, and ends there or shortly behind."""
        begins = self.analyzer.equal(one.start, other.start)
        return begins and self.is_close_behind(one.stop, other.stop, self.most_requested)

    def is_close_behind(self, place: ir.Expr, other: ir.Expr, most: int) -> bool:
        low, high = self.analyzer.bounds(place - other)
        return low is not None and high is not None and 0 <= low <= high <= most


def _first_dimension(kernel: ir.Kernel) -> ir.Var | None:
    """The index that moves from a block to the next: the first whose extent is not 1."""
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
        if not ir.is_literal(extent, 1):
            return var
    return None


def _read_only(kernel: ir.Kernel) -> set[ir.Buffer]:
    """Tensors that the kernel reads and does not change, none of them a view."""
    loads = {load.buffer for load in find(kernel.body, ir.Load)}
    ends = {call.arguments[0] for call in find(kernel.body, ir.Call) if call.function == LOAD}
    changed = {root(node.buffer) for node in find(kernel.body, ir.Store, ir.Region) if node not in ends}
    return {b for b in loads if b.scope == "global" and b.source is None and not b.dtype.is_packed} - changed


def _direct_loads(loop: ir.For) -> Iterator[ir.Load]:
    return (load for load in find(loop.body, ir.Load) if len(load.indices) == 1)


def _step(loop: ir.For) -> int:
    """The step of a loop; 0 where it is not known."""
    return int(loop.step.value) if isinstance(loop.step, ir.Const) else 0
