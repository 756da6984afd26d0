"""``print`` becomes lines that one thread shows, or each thread its own where threads come there apart.

Before (``acc`` is a fragment of 64 x 20, 128 threads)::

    print("after", acc)

After::

    acc_shown = shared(float32[16, 20])
    for part in range(4):
        for i, j in parallel(64, 20):
            if i >= part * 16 and i < part * 16 + 16:
                acc_shown[i - part * 16, j] = acc[i, j]
        if tx == 0:
            for i in range(16):
                for at in range(2):
                    print_line("[block {}] after acc[{}, {}:{}] = {} {} {} {} {} {} {} {}", bx, part * 16 + i, at * 8, ...)
                print_line("[block {}] after acc[{}, {}:{}] = {} {} {} {}", bx, part * 16 + i, 16, 20, acc_shown[i, 16], ...)

The elements of a fragment are distributed over threads, so they are staged in shared memory, some rows at a time. Within a parallel loop
each element shows its own line, by whichever thread it falls to.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tilewright.errors import MissingCapability
from tilewright.interpreter.varying import Varying, find_varying
from tilewright.ir import INT32, Rewriter, children, find, having, holds, perform
from tilewright.ir import nodes as ir
from tilewright.ops.prints import PER_LINE, beginning, element_place, line, words_of
from tilewright.passes import Context, linear_thread, nested

MOST_NUMBERS = 32
"""What one printf of a GPU takes."""


STAGED_BYTES = 8192
"""Shared memory in which rows of a fragment are staged."""


def lower_prints(function: ir.Function, context: Context) -> ir.Function:
    """Write every print as calls of ``print_line``; breakpoints, which no machine has, go with a warning."""
    if not holds(function.body, ir.Print):
        return function
    return function.with_body(_Lower(context)(function.body))


class _Lower(Rewriter):
    def __init__(self, context: Context) -> None:
        self.context = context
        self.kernel: ir.Kernel | None = None
        self.role: ir.Role | None = None
        self.in_loop = False
        self.apart: set[ir.Print] = set()

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        with having(self, kernel=kernel, apart=set(_divergent(kernel.body, find_varying(kernel)))):
            return self.generic(kernel)

    def visit_Role(self, role: ir.Role) -> ir.Role:
        with having(self, role=role):
            return self.generic(role)

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Parallel:
        with having(self, in_loop=True):
            return self.generic(loop)

    def visit_Print(self, node: ir.Print) -> list[ir.Statement]:
        if node.stop:
            self.context.warn("breakpoint() stops in the interpreter alone; compiled code goes on", node.span)
            return []
        tiles = [region for region in node.values if isinstance(region, ir.Region)]
        if self.kernel is None:
            if tiles:
                raise MissingCapability(
                    f"{tiles[0].buffer.name} is printed outside of a kernel, where a program knows sizes alone",
                    span=node.span,
                    hint="print it within T.Kernel, or after the call",
                )
            return [node]
        words, numbers = words_of(node.values)
        apart = node in self.apart
        head = beginning(len(self.kernel.block_vars), apart, self.role.name if self.role else "")
        text = line((head, *words))
        own = [*self.kernel.block_vars, *([self._thread()] if apart else []), *numbers]
        if not tiles:
            return self._by_one(node, [perform("print_line", text, *own, span=node.span)], apart)
        made: list[ir.Statement] = []
        for tile in tiles:
            if tile.buffer.scope == "fragment" and self.context.arch.has_threads:
                made += self._through_shared(node, text, own, tile, apart)
            else:
                made += self._by_one(node, _tile_lines(text, own, tile, tile, node), apart)
        return made

    def _thread(self) -> ir.Expr:
        """The index of the executing thread in its block, x fastest, or in its role."""
        assert self.kernel is not None
        return linear_thread(self.kernel) if self.role is None else self.kernel.thread_vars[0]

    def _by_one(self, node: ir.Print, lines: list[ir.Statement], apart: bool) -> list[ir.Statement]:
        """What the whole block has is shown by one of its threads."""
        if self.context.arch.has_threads:
            self._check(node, lines)
        if apart or self.in_loop or not self.context.arch.has_threads:
            return lines
        assert self.kernel is not None
        threads = self.role.threads if self.role else self.kernel.num_threads
        if node.thread >= threads:
            whose = f"the role {self.role.name}" if self.role else "the block"
            raise MissingCapability(
                f"thread {node.thread} shall print, and {whose} has {threads} threads",
                span=node.span,
                hint="leave warp_group_id and warp_id out: any thread can show what the whole block has",
            )
        if threads == 1:
            return lines
        return [ir.If(ir.binary("eq", self._thread(), ir.const(node.thread)), ir.seq(lines), span=node.span)]

    def _through_shared(
        self, node: ir.Print, text: str, own: list[ir.Expr], tile: ir.Region, apart: bool
    ) -> list[ir.Statement]:
        """Stage a fragment's rows in shared memory, where the thread that prints can read them."""
        if apart or self.in_loop:
            raise MissingCapability(
                f"the fragment {tile.buffer.name} is shown by the whole block together, and here its threads are apart",
                span=node.span,
                hint="print it outside of parallel loops and conditions on threads, or print single elements",
            )
        rows, *others = (int(extent) for extent in tile.extents if isinstance(extent, int))
        count = _rows_at_once(rows, tile.dtype.nbytes(math.prod(others)), 1 if others else PER_LINE)
        shown = ir.Buffer(f"{tile.buffer.name}_shown", (count, *others), tile.dtype, "shared")
        part = ir.Var(INT32, "part")
        first = tile.starts[0] + (part * count if count < rows else ir.const(0))
        piece = ir.Region(tile.buffer, (first, *tile.starts[1:]), (count, *others))
        body = [
            _staged(piece, shown, node),
            *self._by_one(node, _tile_lines(text, own, piece, ir.whole(shown), node), apart),
        ]
        parts = body if count == rows else [_loop(part, rows // count, ir.seq(body), node)]
        return [ir.Allocate(shown, span=node.span), *parts]

    def _check(self, node: ir.Print, lines: list[ir.Statement]) -> None:
        most = max(len(call.arguments) - 1 for call in _calls(lines))
        if most > MOST_NUMBERS:
            raise MissingCapability(
                f"{self.context.arch.name} prints at most {MOST_NUMBERS} numbers in a line, and this one has {most}",
                span=node.span,
                hint="write several prints",
            )


def _divergent(statement: ir.Statement, varying: Varying, inside: bool = False) -> Iterator[ir.Print]:
    """Prints that threads come to one by one, not as a block."""
    inside = inside or statement in varying.lanes
    if isinstance(statement, ir.Print) and inside:
        yield statement
    for child in children(statement):
        if isinstance(child, ir.Statement):
            yield from _divergent(child, varying, inside)


def _rows_at_once(rows: int, row_bytes: int, unit: int) -> int:
    """How many rows are staged at a time: as many as divide all of them and take little shared memory."""
    fitting = (n for n in range(rows, 0, -1) if rows % n == 0 and n % unit == 0 and n * row_bytes <= STAGED_BYTES)
    return next(fitting, 1 if unit == 1 else rows)


def _staged(piece: ir.Region, shown: ir.Buffer, node: ir.Print) -> ir.Parallel:
    """Each thread brings what it holds of a piece of a fragment."""
    names = _loop_names(len(piece.extents))
    places = [ir.Var(INT32, name) for name in names]
    at = tuple(place - start for place, start in zip(places, piece.starts, strict=True))
    store: ir.Statement = ir.Store(shown, at, ir.Load(piece.dtype, piece.buffer, tuple(places)), span=node.span)
    for place, start, extent, size in zip(places, piece.starts, piece.extents, piece.buffer.shape, strict=True):
        if extent != size:
            inside = ir.binary("all", ir.binary("ge", place, start), ir.binary("lt", place, start + extent))
            store = ir.If(inside, ir.seq(store), span=node.span)
    extents = tuple(piece.buffer.shape)
    return ir.Parallel(tuple(places), extents, ir.seq(store), None, span=node.span)


def _tile_lines(
    text: str, numbers: list[ir.Expr], tile: ir.Region, shown: ir.Region, node: ir.Print
) -> list[ir.Statement]:
    """Loops over a tile's rows and pieces of rows; `shown` is where its elements can be read."""
    outer = [ir.Var(INT32, name) for name in _loop_names(len(tile.extents) - 1)]
    last = tile.extents[-1]

    def piece(first: ir.Expr, count: int) -> ir.Statement:
        inside = [*outer, first]
        indices = [start + at for start, at in zip(tile.starts, inside, strict=True)]
        ends = [indices[-1] + count] if count > 1 else []
        elements = []
        for number in range(count):
            at = [*outer, first + number]
            elements.append(_element(shown, at))
        name = element_place(tile.buffer.name, len(tile.extents), count)
        return perform("print_line", line((text, name)), *numbers, *indices, *ends, *elements, span=node.span)

    at = ir.Var(INT32, "at")
    if isinstance(last, int):
        first = at * PER_LINE
        body = [_loop(at, last // PER_LINE, piece(first, PER_LINE), node)] if last >= PER_LINE else []
        body += [piece(ir.const(last - last % PER_LINE), last % PER_LINE)] if last % PER_LINE else []
    else:
        body = [_loop(at, last, piece(at, 1), node)]
    rows = tile.extents[:-1]
    return [nested(outer, rows, ir.seq(body), ["serial"] * len(rows), node.span)] if rows else body


def _element(region: ir.Region, at: list[ir.Expr]) -> ir.Expr:
    indices = tuple(start + place for start, place in zip(region.starts, at, strict=True))
    return ir.Load(region.dtype, region.buffer, indices)


def _loop(var: ir.Var, extent: Any, body: ir.Statement, node: ir.Print) -> ir.Statement:
    return ir.For(var, ir.const(0), ir.expr(extent), ir.const(1), ir.seq(body), "serial", span=node.span)


def _loop_names(count: int) -> list[str]:
    return list("ijk"[:count]) if count <= 3 else [f"i{axis}" for axis in range(count)]


def _calls(lines: list[ir.Statement]) -> Iterator[ir.Call]:
    for statement in lines:
        yield from (call for call in find(statement, ir.Call) if call.function == "print_line")
