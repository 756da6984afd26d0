"""Arrays of single threads that hold the same in every thread become scalars of the block.

Before::

    first = local(int32[1])
    first[0] = starts[k]
    copy(source=A[first[0] : +64, :], destination=tile)

After::

    first = scalar(int32[()])
    first[()] = starts[k]
    copy(source=A[first[()] : +64, :], destination=tile)

So what such an array decides, where a tile begins or whether a block works at all, is known to all threads alike:
copies that it places may be those of the copy engine, and conditions on it those of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.interpreter.varying import find_varying
from tilewright.ir import Rewritten, declared, find, root
from tilewright.ir import nodes as ir
from tilewright.passes import Context, PlaceRewriter, map_kernels

LARGEST = 16
"""Elements of the largest array that is taken apart."""


def unify_locals(function: ir.Function, context: Context) -> ir.Function:
    """Replace arrays that do not differ from thread to thread by scalars, one an element."""
    return map_kernels(function, _unified)


def _unified(kernel: ir.Kernel) -> ir.Kernel:
    found = {one for one in declared(kernel.body, "local") if 0 < one.size <= LARGEST}
    if found:
        found -= set(_taken_otherwise(kernel))
    if found:
        found -= find_varying(kernel).names
    if not found:
        return kernel
    made = {
        buffer: [replace(buffer, name=_name(buffer, place), shape=(), scope="scalar") for place in range(buffer.size)]
        for buffer in found
    }
    return replace(kernel, body=_Scalars(made)(kernel.body))


def _name(buffer: ir.Buffer, place: int) -> str:
    return buffer.name if buffer.size == 1 else f"{buffer.name}_{place}"


def _taken_otherwise(kernel: ir.Kernel) -> Iterator[ir.Buffer]:
    """Arrays that more than loads and stores of known elements use, or that hold what elements of tiles do."""
    for node in find(kernel.body, ir.Load, ir.Store, ir.Region, ir.Buffer, ir.Parallel):
        if isinstance(node, (ir.Load, ir.Store)) and not all(isinstance(index, ir.Const) for index in node.indices):
            yield node.buffer
        if isinstance(node, ir.Region):
            yield root(node.buffer)
        if isinstance(node, ir.Buffer) and node.source is not None:
            yield root(node)
        if isinstance(node, ir.Parallel):
            yield from (one.buffer for one in find(node.body, ir.Store))
        if isinstance(node, ir.Store) and any(one.buffer.scope == "fragment" for one in find(node.value, ir.Load)):
            yield node.buffer


class _Scalars(PlaceRewriter):
    def __init__(self, made: dict[ir.Buffer, list[ir.Buffer]]) -> None:
        self.made = made

    def _scalar(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> ir.Buffer:
        place = 0
        for index, extent in zip(indices, buffer.static_shape, strict=True):
            assert isinstance(index, ir.Const)
            place = place * extent + int(index.value)
        return self.made[buffer][place]

    def visit_Allocate(self, allocate: ir.Allocate) -> Rewritten:
        made = self.made.get(allocate.buffer)
        return self.generic(allocate) if made is None else [replace(allocate, buffer=one) for one in made]

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        return (self._scalar(buffer, indices), ()) if buffer in self.made else (buffer, indices)
