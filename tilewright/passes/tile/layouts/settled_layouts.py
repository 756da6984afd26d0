"""What the inference of layouts changes in a program: fragments that change hands, and layouts as they are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import Rewriter, find
from tilewright.ir import nodes as ir
from tilewright.layout import Layout, compacted, permuted, reduced
from tilewright.ops import Fill, Reduce, element, elementwise, store_element
from tilewright.passes.tile.layouts.layout_flow import accesses_of, overwrites
from tilewright.passes.tile.layouts.through_shared import happens_once, through_shared


class ReduceApart(Rewriter):
    """Reductions into fragments that lie otherwise leave their results in one of their own, and a loop hands them
    over."""

    def __init__(self, reductions: Sequence[Reduce]) -> None:
        self.reductions = reductions

    def visit_Role(self, role: ir.Role) -> ir.Role:
        return role

    def visit_Reduce(self, reduction: Reduce) -> ir.Statement:
        if reduction not in self.reductions:
            return reduction
        wanted = reduction.destination
        part = ir.Buffer(f"{wanted.buffer.name}_part", wanted.buffer.shape, reduction.value_dtype, "fragment")
        left = replace(wanted, buffer=part)

        def hand_over(*index: ir.Expr) -> ir.Statement:
            total = element(left, index)
            old = None if reduction.clear else reduction.with_old(element(wanted, index), total)
            return store_element(wanted, index, ir.cast(total, wanted.dtype) if old is None else old)

        handing = elementwise(wanted, hand_over, span=reduction.span)
        return ir.seq(ir.Allocate(part, span=reduction.span), replace(reduction, destination=left, clear=True), handing)


class Exchange(Rewriter):
    """Loops with fragments of other threads: those pass through shared tiles."""

    def __init__(self, strangers: dict[ir.Parallel, set[ir.Buffer]], notes: list[str]) -> None:
        self.strangers, self.notes = strangers, notes

    def visit_Role(self, role: ir.Role) -> ir.Role:
        return role

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        if loop not in self.strangers:
            return loop
        fragments = self.strangers[loop]
        place = f"line {loop.span.line}: " if loop.span else ""
        names = ", ".join(sorted(buffer.name for buffer in fragments))
        self.notes.append(f"{place}loop: {names} through shared memory ({self.why(loop)})")
        return through_shared(loop, fragments, {buffer for buffer in fragments if overwrites(loop, buffer)})

    @staticmethod
    def why(loop: ir.Parallel) -> str:
        return "what it does to memory happens once" if happens_once(loop) else "its elements are in other threads"


class SetLayouts(Rewriter):
    """Loops get their layouts, and fragments that begin with zeros a loop that clears them where they lie."""

    def __init__(self, layouts: dict[ir.Parallel, Layout | None], cleared: dict[ir.Buffer, Layout]) -> None:
        self.layouts, self.cleared = layouts, cleared

    def visit_Allocate(self, allocate: ir.Allocate) -> ir.Statement | list[ir.Statement]:
        layout = self.cleared.get(allocate.buffer)
        if layout is None:
            return allocate
        fill = Fill(ir.whole(allocate.buffer), ir.const(0, allocate.buffer.dtype), span=allocate.span).lower()
        return [allocate, SetLayouts({loop: _of_loop(loop, layout) for loop in find(fill, ir.Parallel)}, {})(fill)]

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Statement:
        """A thread counts its elements: where the layout is that of a part of a fragment, or one by hand that skips
        registers, no element has the numbers between."""
        layout = self.layouts.get(loop)
        return replace(loop, layout=layout and compacted(layout)) if loop in self.layouts else loop


def _of_loop(loop: ir.Parallel, layout: Layout) -> Layout:
    """The layout of a loop over a whole fragment; where either has a single element, its dimension may have no match in
    the other."""
    (access,) = accesses_of(loop)
    assert access.axes is not None
    for axis in reversed(range(layout.rank)):
        layout = reduced(layout, axis) if access.axes[axis] is None else layout
    kept = [axis for axis in access.axes if axis is not None]
    return permuted(layout, tuple(kept.index(axis) if axis in kept else None for axis in range(len(loop.vars))))
