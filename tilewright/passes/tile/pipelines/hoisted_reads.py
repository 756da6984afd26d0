"""Reads of tensors in the middle of a pipelined loop's work, as loops of their own that can be an iteration ahead.

Before::

    for i, j in parallel(64, 64):
        b[i, j] = codes[i, j // 2] * S[i, k * 2 + j // 32]

After, where neighbours that read the same element share it::

    S_ahead = fragment(float16[64, 2])
    for i, j in parallel(64, 2):
        S_ahead[i, j] = S[i, k * 2 + j]
    for i, j in parallel(64, 64):
        b[i, j] = codes[i, j // 2] * S_ahead[i, j // 32]

Loads come back in the order in which they were started: whoever waits for one that stands behind those of the next
iteration's tiles waits for all of them.  So they are started before those tiles, and kept where work goes on.  What is
the same in all iterations is read once, before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from tilewright.arith import Analyzer
from tilewright.ir import BOOL, INTRINSICS, Rewriter, find, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.ops.base import zero
from tilewright.passes.rows import Neighbours

KEPT = 8
"""Registers of what work reads in its middle, to have this iteration's and the next one's."""


@dataclass(frozen=True, slots=True)
class Read:
    """Elements of a tensor in a fragment, and the loop that brings them."""

    held: ir.Buffer
    loop: ir.Parallel


@dataclass(slots=True)
class Apart:
    """A parallel loop that takes from fragments what it read of tensors.

    Attributes
    ----------
    work : the loop.
    once, each : what is read before the pipelined loop, and what in each of its iterations.
    registers : 32-bit registers of a thread that hold all that, about.
    """

    work: ir.Parallel
    once: list[Read] = field(default_factory=list)
    each: list[Read] = field(default_factory=list)
    registers: int = 0

    @property
    def is_early(self) -> bool:
        """Whether the work should end before the next iteration's loads begin: it only stores what has come, or that
        takes many registers."""
        stored = [store.value for store in find(self.work.body, ir.Store)]
        return self.registers > KEPT or all(isinstance(value, ir.Load) for value in stored)

    def kept(self) -> tuple[list[Read], ir.Parallel]:
        """Loops that keep what an iteration reads, so that the next one's can be on its way, and the work on that."""
        moves: list[Read] = []
        taken: dict[ir.Buffer, ir.Buffer] = {}
        for read in self.each:
            taken[read.held] = now = replace(read.held, name=f"{read.held.name.removesuffix('_ahead')}_now")
            own = tuple(ir.Var(var.dtype, var.name) for var in read.loop.vars)
            value = ir.Call(now.dtype, "settled", (ir.Load(now.dtype, read.held, own),))
            body = ir.seq([ir.Store(now, own, value, span=self.work.span)])
            moves.append(Read(now, ir.Parallel(own, read.loop.extents, body, span=self.work.span)))
        return moves, substitute(self.work, buffers=taken)


def hoisted_reads(
    loop: ir.Pipelined, work: ir.Parallel, written: Collection[ir.Buffer], threads: Collection[ir.Var], count: int
) -> Apart | None:
    """`work`, a statement of `loop`, without its reads of tensors; None where it has none that could be ahead.

    Parameters
    ----------
    written : memory that the loop changes.
    threads, count : variables in which threads differ; how many threads there are.
    """
    if work.prefer is not None or not all(isinstance(extent, int) for extent in work.extents):
        return None
    taker = _Take(loop, work, written, threads, count)
    taker.found.work = replace(work, body=taker(work.body))
    return taker.found if taker.found.each or taker.found.once else None


class _Take(Rewriter):
    """Takes reads out of a loop's body, those within others' indices first."""

    def __init__(
        self,
        loop: ir.Pipelined,
        work: ir.Parallel,
        written: Collection[ir.Buffer],
        threads: Collection[ir.Var],
        count: int,
    ) -> None:
        self.work, self.written, self.count = work, written, count
        inner = {node.var for node in find(work.body, ir.For)}
        self.inner = inner | set(threads)
        self.changing = {loop.var, *(let.var for let in find(loop.body, ir.Let))}
        self.names: dict[ir.Var, ir.Expr] = {}
        self.found = Apart(work)
        self.made: dict[ir.Expr, ir.Expr] = {}

    def visit_While(self, loop: ir.While) -> ir.While:
        return loop  # what it reads changes as it goes

    def visit_Let(self, let: ir.Let) -> ir.Let:
        made = self.generic(let)
        self.names[made.var] = substitute(made.value, self.names)
        return made

    def visit_Select(self, select: ir.Select) -> ir.Expr:
        """An element or zero is read as that: the machine's loads know it, and wait for nothing."""
        guard = self._guard(substitute(self(select.condition), self.names)) if _is_guarded(select) else None
        found = None if guard is None else self._read(select.then, guard)
        return self.generic(select) if found is None else found

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        return self._read(load, None) or self.generic(load)

    def _read(self, load: ir.Expr, condition: ir.Expr | None) -> ir.Expr | None:
        """What the loop reads in the place of an element, which is zero where a condition says so; None where it
        reads the tensor itself."""
        assert isinstance(load, ir.Load)
        buffer = load.buffer
        if buffer.scope != "global" or root(buffer) in self.written or buffer.dtype.is_packed or load.dtype.lanes > 1:
            return None
        value: ir.Expr = substitute(self.generic(load), self.names)
        assert isinstance(value, ir.Load)
        if not all(self._is_known(node) for index in value.indices for node in walk(index)):
            return None
        if condition is not None:
            value = ir.Select(load.dtype, condition, value, zero(load.dtype))
        if value not in self.made:
            self.made[value] = self._held(buffer, value)
        return self.made[value]

    def _guard(self, condition: ir.Expr) -> ir.Expr | None:
        """A condition as one of the first of some neighbours, which all have the same; None where it is not known."""
        if not all(self._is_known(node) for node in walk(condition)):
            return None
        var, extent = self.work.vars[-1], int(str(self.work.extents[-1]))
        runs = (run for run in (16, 8, 4, 2) if extent % run == 0)
        run = next((run for run in runs if self._agree(condition, var, run)), 1)
        first = var // run * run
        return substitute(condition, {var: first}) if run > 1 or extent == 1 else None

    def _agree(self, condition: ir.Expr, var: ir.Var, run: int) -> bool:
        """Whether a condition certainly is the same for `run` neighbours."""
        if isinstance(condition, ir.Binary) and condition.dtype == BOOL and condition.left.dtype == BOOL:
            return self._agree(condition.left, var, run) and self._agree(condition.right, var, run)
        if self._neighbours(var, run).agree(condition):
            return True
        if not (isinstance(condition, ir.Binary) and condition.op in ("lt", "ge")):
            return False
        group = self._neighbours(var, run)
        start = group.begin(condition.left - condition.right)
        return start is not None and group.analyzer.divides(start, run)

    def _is_known(self, node: object) -> bool:
        """Whether part of an index is the same for all threads, before the work begins."""
        if isinstance(node, ir.Load):
            return any(node.buffer is read.held for read in self.found.once)
        if isinstance(node, ir.Call):
            return INTRINSICS[node.function].pure
        return node not in self.inner

    def _held(self, buffer: ir.Buffer, value: ir.Expr) -> ir.Expr:
        """The element of a fragment that the loop reads in a tensor's place."""
        extents = [int(str(extent)) for extent in self.work.extents]
        runs = [self._run(value, var, extent) for var, extent in zip(self.work.vars, extents, strict=True)]
        shape = tuple(extent // run for extent, run in zip(extents, runs, strict=True))
        held = ir.Buffer(f"{buffer.name}_ahead", shape, buffer.dtype, "fragment")
        own = tuple(ir.Var(var.dtype, var.name) for var in self.work.vars)
        firsts = {var: new * run for var, new, run in zip(self.work.vars, own, runs, strict=True)}
        body = ir.seq([ir.Store(held, own, substitute(value, firsts), span=self.work.span)])
        read = Read(held, ir.Parallel(own, shape, body, span=self.work.span))
        each = not self.changing.isdisjoint(walk(value))
        (self.found.each if each else self.found.once).append(read)
        share = -(-math.prod(extents) // self.count) // math.prod(runs)
        self.found.registers += -(-max(share, 1) * buffer.dtype.bits // 32)
        places = (var // run for var, run in zip(self.work.vars, runs, strict=True))
        indices = (ir.const(0) if extent == 1 else place for extent, place in zip(shape, places, strict=True))
        return ir.Load(buffer.dtype, held, tuple(indices))

    def _run(self, value: ir.Expr, var: ir.Var, extent: int) -> int:
        """How many neighbours along a variable read the same element, always."""
        return next((n for n in range(extent, 1, -1) if extent % n == 0 and self._neighbours(var, n).agree(value)), 1)

    def _neighbours(self, var: ir.Var, run: int) -> Neighbours:
        """Groups of `run` neighbours along a variable."""
        analyzer = Analyzer()
        for other, extent in zip(self.work.vars, self.work.extents, strict=True):
            analyzer.bind_extent(other, extent)
        return Neighbours(analyzer, var, run, groups=(0, None))


def _is_guarded(select: ir.Select) -> bool:
    return isinstance(select.then, ir.Load) and ir.is_literal(select.otherwise, 0)


def allocated(reads: Collection[Read]) -> list[ir.Statement]:
    """What reads do, in their order."""
    return [one for read in reads for one in (ir.Allocate(read.held, span=read.loop.span), read.loop)]
