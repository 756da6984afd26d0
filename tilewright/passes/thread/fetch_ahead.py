"""What the next block reads is asked for while this one computes: rows too short for the hardware to run ahead of.

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

A block that reads its rows first, computes, and then writes leaves the memory idle while it computes; with the next
block's rows asked for by a loop that reads none itself, both go on together.  Blocks follow one another in the first
dimension of the grid.  What is asked for and does not exist, behind the last block, is never loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import (
    Buffer,
    Call,
    Const,
    Evaluate,
    Expr,
    For,
    Function,
    Kernel,
    Load,
    Region,
    Seq,
    Statement,
    Store,
    Var,
    index_binary,
)
from tilewright.ir.signature import root
from tilewright.ir.visitor import walk
from tilewright.passes.context import Context
from tilewright.passes.scoped import ScopedRewriter, bind_loop, free_of, with_values
from tilewright.passes.thread.first_lanes import LOAD

LINE = 64
"""Bytes that one request fetches."""
MOST_REQUESTS = 8
"""In one iteration; longer ones would ask faster than the memory answers."""


def fetch_ahead(function: Function, context: Context) -> Function:
    """Let blocks ask for the rows of the block behind them."""
    if context.arch.has_threads:
        return function
    body = _Ahead(function, context.arch.l2_bytes // 4)(function.body)
    return function if body is function.body else function.with_body(body)


@dataclass(frozen=True)
class _Stream:
    """Consecutive elements that one loop of a block reads, and how far those of the next block are from them."""

    buffer: Buffer
    loop: For
    index: Expr
    apart: int


class _Ahead(ScopedRewriter):
    def __init__(self, function: Function, most_bytes: int) -> None:
        super().__init__(function)
        self.most_bytes = most_bytes

    def visit_Kernel(self, kernel: Kernel) -> Any:
        along = _first_dimension(kernel)
        if along is None or not isinstance(kernel.body, Seq):
            return kernel
        with self.analyzer.scope():
            for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
                self.analyzer.bind_extent(var, extent)
            statements = list(kernel.body.statements)
            read = _read_only(kernel)
            for position, statement in enumerate(kernel.body.statements):
                if isinstance(statement, For):
                    for stream in self.streams(statement, along, read):
                        self.ask(stream, statements, position)
        if all(new is old for new, old in zip(statements, kernel.body.statements, strict=True)):
            return kernel
        return replace(kernel, body=replace(kernel.body, statements=tuple(statements)))

    def streams(self, loop: For, along: Var, read: set[Buffer]) -> Iterator[_Stream]:
        """The tensors that `loop` reads from end to end, other parts in every block."""
        seen: set[Buffer] = set()
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            for load in _direct_loads(loop):
                if load.buffer in seen or load.buffer not in read or not free_of(load.indices[0], *_inner(loop)):
                    continue
                seen.add(load.buffer)
                index = load.indices[0]
                step, apart = self.analyzer.stride(index, loop.var), self.analyzer.stride(index, along)
                if not (isinstance(step, Const) and step.value == 1 and isinstance(apart, Const)):
                    continue
                size = load.buffer.dtype.storage_bytes
                if LINE <= int(apart.value) * size <= self.most_bytes:
                    yield _Stream(load.buffer, loop, index, int(apart.value))

    def ask(self, stream: _Stream, statements: list[Statement], position: int) -> None:
        """Put the requests into the first loop behind `position` that walks the same way and reads nothing."""
        per_line = LINE // stream.buffer.dtype.storage_bytes
        for later in range(position + 1, len(statements)):
            loop = statements[later]
            if not isinstance(loop, For) or not self.walks_as_far(loop, stream.loop):
                continue
            step = loop.step
            if not isinstance(step, Const) or any(load.buffer is stream.buffer for load in _direct_loads(loop)):
                continue
            if int(step.value) % per_line or int(step.value) // per_line > MOST_REQUESTS:
                continue
            first = with_values(stream.index, {stream.loop.var: loop.var})
            places = [
                index_binary("add", first, stream.apart + offset) for offset in range(0, int(step.value), per_line)
            ]
            requests = [Evaluate(Call(INT32, "prefetch", (Region(stream.buffer, (at,), (1,)),))) for at in places]
            statements[later] = replace(loop, body=Seq((*requests, *_statements(loop.body))), kind="serial")
            return

    def walks_as_far(self, one: For, other: For) -> bool:
        """Whether `one` begins where `other` does and ends there, or a little behind."""
        low, high = self.analyzer.bounds(index_binary("sub", one.stop, other.stop))
        most = MOST_REQUESTS * LINE
        return (
            self.analyzer.equal(one.start, other.start)
            and low is not None
            and high is not None
            and 0 <= low <= high <= most
        )


def _first_dimension(kernel: Kernel) -> Var | None:
    """The index that moves from a block to the next: the first whose extent is not 1."""
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
        if not (extent == 1 or (isinstance(extent, Const) and extent.value == 1)):
            return var
    return None


def _read_only(kernel: Kernel) -> set[Buffer]:
    """Tensors that the kernel reads and does not change, none of them a view."""
    loads = {node.buffer for node in walk(kernel.body) if isinstance(node, Load)}
    ends = {node.arguments[0] for node in walk(kernel.body) if isinstance(node, Call) and node.function == LOAD}
    changed = {root(n.buffer) for n in walk(kernel.body) if isinstance(n, (Store, Region)) and n not in ends}
    return {b for b in loads if b.scope == "global" and b.source is None and not b.dtype.is_packed} - changed


def _direct_loads(loop: For) -> Iterator[Load]:
    for node in walk(loop.body):
        if isinstance(node, Load) and len(node.indices) == 1:
            yield node


def _inner(loop: For) -> tuple[Var, ...]:
    return tuple(node.var for node in walk(loop.body) if isinstance(node, For))


def _statements(body: Statement) -> tuple[Statement, ...]:
    return body.statements if isinstance(body, Seq) else (body,)
