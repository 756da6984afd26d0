"""Whether a kernel changes a tensor in place: no block touches what another does, and in a loop each iteration has
elements of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.nodes import Buffer, Expr, Extent, Function, Kernel, Load, Parallel, Region, Store, Var, index_binary
from tilewright.ir.visitor import Rewritten, having
from tilewright.passes.scoped import ScopedRewriter, free_of


def changes_in_place(function: Function, buffer: Buffer) -> bool:
    """Whether every block, every iteration and every thread certainly reads only such elements of a tensor as no other
    writes.

    Parameters
    ----------
    function : a traced one.
    buffer : one of its parameters.
    """
    search = _Search(function, buffer)
    search(function.body)
    return search.apart


class _Search(ScopedRewriter):
    def __init__(self, function: Function, buffer: Buffer) -> None:
        super().__init__(function)
        self.buffer, self.apart = buffer, True
        self.ways: dict[Var, set[tuple[int, int]] | None] = {}
        """For each index of blocks the dimensions, and the elements a block has there, that keep blocks apart."""
        self.threads: tuple[Var, ...] = ()
        self.together: list[Sequence[Expr]] | None = None
        """Places that iterations of the loop touch; None outside of loops whose order nobody knows."""
        self.of_threads: list[Sequence[Expr]] = []

    def visit_Kernel(self, kernel: Kernel) -> Kernel:
        self.ways = {var: None for var, extent in zip(kernel.block_vars, kernel.grid, strict=True) if extent != 1}
        self.threads, self.of_threads = kernel.thread_vars, []
        result = super().visit_Kernel(kernel)
        self.apart &= all(way is None or way for way in self.ways.values())
        return result

    def visit_Parallel(self, loop: Parallel) -> Rewritten:
        with having(self, together=[] if self.together is None else self.together):
            return super().visit_Parallel(loop)

    def visit_Load(self, access: Load | Store) -> Load | Store:
        self._touch(access.buffer, access.indices, [1] * len(access.indices))
        return self.generic(access)

    visit_Store = visit_Load

    def visit_Region(self, region: Region) -> Region:
        self._touch(region.buffer, region.starts, region.extents)
        return self.generic(region)

    def _touch(self, buffer: Buffer, starts: Sequence[Expr], extents: Sequence[Extent]) -> None:
        if buffer is not self.buffer:
            self.apart &= buffer.source is None or buffer.scope != "global"
            return
        for var, known in self.ways.items():
            found = {way for way in enumerate(self._stride(*one, var) for one in zip(starts, extents)) if way[1]}
            self.ways[var] = found if known is None else known & found
        touched = self.together
        if touched is None and not all(free_of(start, *self.threads) for start in starts):
            touched = self.of_threads
        if touched is not None:
            touched.append(starts)
            self.apart &= all(map(self.analyzer.equal, touched[0], starts))

    def _stride(self, start: Expr, extent: Extent, var: Var) -> int:
        """How far a block's part begins from that of the block before, where it ends before that; else 0."""
        constant = self.analyzer.linear(start)[0].get(var, 0)
        rest = start - var * constant
        end = rest + extent
        inside = self.analyzer.nonnegative(rest) and self.analyzer.prove(index_binary("le", end, constant))
        return constant if free_of(self.analyzer.simplify(rest), var) and inside else 0
