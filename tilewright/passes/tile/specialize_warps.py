"""Splits a kernel around its pipelined loop into a role that loads tiles and a role that computes on them.

Before::

    fill(total, 0.0)
    for k in pipelined(steps, num_stages=4):
        copy(A[..., k * 64], a)
        copy(B[..., k * 64], b)
        gemm(a, b, total)
    copy(total, C[...])

After::

    channel("loads", a_ring, b_ring, stages=4, writers=("producer",), readers=("consumer",))
    with roles():
        with role("consumer", warps=8, registers=232):
            for k in range(steps):
                receive("loads", k)
                gemm(token="wgmma", a_ring[k % 4, :, :], b_ring[k % 4, :, :], total, clear=k == 0)
                commit("wgmma")
                wait("wgmma", pending=1)
                if k > 0:
                    release("loads", k - 1)
            wait("wgmma", pending=0)
            release("loads", steps - 1)
            copy(total, C[...])
        with role("producer", warps=4, registers=40):
            for k in range(steps):
                acquire("loads", k)
                copy(A[..., k * 64], a_ring[k % 4, :, :])
                copy(B[..., k * 64], b_ring[k % 4, :, :])
                publish("loads", k)

The author's threads become the consumer's; the producer's come on top.  A loop whose loads the copy engine cannot
make, or whose gemms read what it has not loaded, stays as it is, and a note says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir import nodes
from tilewright.ir.nodes import (
    Acquire,
    Allocate,
    Buffer,
    Channel,
    Commit,
    Const,
    Expr,
    For,
    Function,
    If,
    Kernel,
    Let,
    Load,
    Pipelined,
    Publish,
    Receive,
    Region,
    Release,
    Role,
    Roles,
    Seq,
    Statement,
    Var,
    Wait,
    const,
    index_binary,
    seq,
)
from tilewright.ir.visitor import Rewriter, variables, walk
from tilewright.ops.copy import Copy
from tilewright.ops.fill import Fill
from tilewright.ops.gemm import Gemm
from tilewright.passes.context import Context
from tilewright.passes.scoped import ScopedRewriter, fresh
from tilewright.passes.tile.select_copies import engine_misfit
from tilewright.passes.tile.select_instructions import WARP, plan_gemm

LOADS, WGMMA = "loads", "wgmma"
SPECIALIZED = "specialized"
"""Attribute of kernels whose roles the compiler made, so that it may also deal their tiles."""

GROUP = 128
REGISTERS = 65536


def specialize_warps(function: Function, context: Context) -> Function:
    """Give kernels whose pipelined loop the copy engine can feed a producer and a consumer role."""
    body = _Specialize(function, context)(function.body)
    return function if body is function.body else function.with_body(body)


class _Specialize(ScopedRewriter):
    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = context

    def visit_Kernel(self, kernel: Kernel) -> Any:
        loops = [node for node in walk(kernel.body) if isinstance(node, Pipelined)]
        wanted = [loop for loop in loops if loop.num_stages > 0 and loop.specialize is not False]
        if not wanted:
            return kernel
        with self.analyzer.scope():
            for var, extent in zip(kernel.block_vars, kernel.grid, strict=True):
                self.analyzer.bind_extent(var, extent)
            found = _split(kernel, wanted, self.context, self.analyzer)
        if isinstance(found, Kernel):
            return found
        self._refused(wanted[0], found)
        return kernel

    def _refused(self, loop: Pipelined, reason: str) -> None:
        place = f"{loop.span.file}:{loop.span.line}: " if loop.span else ""
        self.context.facts.setdefault("choices", []).append(f"{place}pipeline: one role (no producer: {reason})")
        if loop.specialize:
            self.context.warn(f"this loop has no warps of its own for its loads: {reason}", loop.span)


def _split(kernel: Kernel, loops: Sequence[Pipelined], context: Context, analyzer: Analyzer) -> Kernel | str:
    """The kernel with two roles, or why there are none."""
    if not context.arch.has("tma") or not context.arch.has("wgmma"):
        return f"{context.arch.name} has no copy engine and warpgroup gemms"
    if any(isinstance(node, (Roles, nodes.Return)) for node in walk(kernel.body)):
        return "the author divides the work"
    if len(loops) != 1 or not any(statement is loops[0] for statement in kernel.body.statements):
        return "the kernel has several pipelined loops, or one inside of other statements"
    threads = kernel.num_threads
    if kernel.threads[1:] != (1, 1) or threads % GROUP or threads + GROUP > context.arch.max_threads:
        return f"{threads} threads are no warpgroups with room for one more"
    if any(var in variables(kernel.body) for var in kernel.thread_vars):
        return "the kernel speaks of its threads"
    split = _Split(kernel, loops[0], context)
    return split.refusal(analyzer) or split.kernel()


@dataclass(slots=True)
class _Split:
    """One kernel while it is divided."""

    source: Kernel
    loop: Pipelined
    context: Context
    rings: dict[Buffer, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for copy in self.loads:
            tile = copy.destination.buffer
            shape = (self.stages, *tile.shape)
            self.rings.setdefault(tile, replace(tile, name=f"{tile.name}_ring", shape=shape))

    # What there is -------------------------------------------------------------------------------

    @property
    def stages(self) -> int:
        return self.context.schedule.num_stages or self.loop.num_stages

    @property
    def loads(self) -> list[Copy]:
        return [one for one in self.loop.body.statements if isinstance(one, Copy) and _is_load(one)]

    @property
    def names(self) -> list[Let]:
        """Values that both roles compute for themselves."""
        return [one for one in self.loop.body.statements if isinstance(one, Let)]

    @property
    def work(self) -> list[Statement]:
        """What the consumer does in an iteration, names apart."""
        return [one for one in self.loop.body.statements if not isinstance(one, Let) and one not in self.loads]

    @property
    def gemms(self) -> list[Gemm]:
        return [node for node in walk(self.loop.body) if isinstance(node, Gemm)]

    # Why not -------------------------------------------------------------------------------------

    def refusal(self, analyzer: Analyzer) -> str | None:
        """Why the loop cannot be divided; None where it can."""
        if not self.loads or not self.gemms:
            return "it loads no tiles for gemms"
        if any(isinstance(node, Load) for let in self.names for node in walk(let.value)):
            return "a value in it is read from memory"
        needed = sum(ring.dtype.nbytes(ring.size) for ring in self.rings.values()) + 16 * self.stages
        if needed > self.context.arch.shared_bytes:
            return f"{self.stages} stages take {needed} bytes of {self.context.arch.shared_bytes} of shared memory"
        return self._strange_use() or self._copy_misfit(analyzer) or self._gemm_misfit()

    def _strange_use(self) -> str | None:
        """Whether a loaded tile is used for anything but its gemms."""
        own = {id(node) for node in (*self.loads, *self.gemms)}
        allocated = {one.buffer for one in self.source.body.statements if isinstance(one, Allocate)}
        for tile in self.rings:
            if tile not in allocated or any(buffer is tile for buffer, _ in self.source.layouts):
                return f"{tile.name} is allocated or laid out in a way of the author's"
        for node in walk(self.source.body, lambda node: id(node) not in own and not isinstance(node, Allocate)):
            if isinstance(node, Buffer) and id(node) not in own and (node in self.rings or node.source in self.rings):
                return f"{node.name} is used by more than its load and its gemms"
        return None

    def _copy_misfit(self, analyzer: Analyzer) -> str | None:
        for copy in self.loads:
            if not copy.destination.is_whole:
                return f"a load fills a part of {copy.destination.buffer.name}"
            moved = replace(copy, destination=self._slot(copy.destination, const(0)))
            reason = engine_misfit(moved, self.source, self.context, analyzer)
            if reason is not None:
                return reason
        return None

    def _gemm_misfit(self) -> str | None:
        tiles = frozenset(self.rings.values())
        for gemm in self.gemms:
            moved = _Slots(self, const(0))(gemm)
            plan, refused = plan_gemm(moved, self.source.num_threads, self.context.arch, False, tiles)
            if plan is None or not plan.instruction.asynchronous:
                return f"no warpgroup instruction executes its gemm{refused}"
        return None

    # The kernel with roles -----------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """The divided kernel."""
        place = next(i for i, one in enumerate(self.source.body.statements) if one is self.loop)
        before, after = self.source.body.statements[:place], self.source.body.statements[place + 1 :]
        common = [one for one in before if _is_common(one) and getattr(one, "buffer", None) not in self.rings]
        own = [one for one in before if not _is_common(one)]
        rings = [Allocate(ring, span=self._span(tile)) for tile, ring in self.rings.items()]
        channel = Channel(
            LOADS, tuple(self.rings.values()), self.stages, ("producer",), ("consumer",), span=self.loop.span
        )  # fmt: skip
        threads = self.source.num_threads
        producing, consuming = _registers(threads)
        consumer = Role("consumer", threads // WARP, self._consumer(own, after), consuming, span=self.loop.span)
        producer = Role("producer", GROUP // WARP, self._producer(), producing, span=self.loop.span)
        body = seq(common, rings, channel, Roles((consumer, producer), span=self.loop.span))
        return replace(self.source, body=replace(self.source.body, statements=body.statements),
                       threads=(threads + GROUP, 1, 1),
                       attributes=(*self.source.attributes, (SPECIALIZED, True)))  # fmt: skip

    def _span(self, tile: Buffer) -> Span | None:
        return next(
            one.span for one in self.source.body.statements if isinstance(one, Allocate) and one.buffer is tile
        )  # fmt: skip

    def _number(self, var: Var) -> Expr:
        """The running number of an iteration."""
        return index_binary("sub", var, nodes.cast(self.loop.start, var.dtype))

    def _slot(self, region: Region, number: Expr) -> Region:
        ring = self.rings[region.buffer]
        place = index_binary("floormod", number, self.stages)
        return Region(ring, (place, *region.starts), (1, *region.extents))

    def _for(self, body: Seq) -> For:
        loop = self.loop
        start, stop = (nodes.cast(end, loop.var.dtype) for end in (loop.start, loop.stop))
        return For(loop.var, start, stop, const(1, loop.var.dtype), body, span=loop.span)

    def _producer(self) -> Seq:
        number = self._number(self.loop.var)
        copies = [
            replace(copy, destination=self._slot(copy.destination, number), prefer=None) for copy in self.loads
        ]  # fmt: skip
        span = self.loop.span
        body = seq(self.names, Acquire(LOADS, number, span=span), copies, Publish(LOADS, number, span=span))
        return seq(fresh(self._for(body)))

    def _consumer(self, before: Sequence[Statement], after: Sequence[Statement]) -> Seq:
        alone = len(self.work) == 1 and isinstance(self.work[0], Gemm) and self.stages > 1
        steps = self._in_flight(before) if alone else [*before, self._in_turn()]
        return seq(steps, after)

    def _in_turn(self) -> For:
        """Several operators an iteration, or one slot: each gemm is waited for where it stands."""
        number, span = self._number(self.loop.var), self.loop.span
        work = [_Slots(self, number)(one) for one in self.work]
        return self._for(
            seq(self.names, Receive(LOADS, number, span=span), work, Release(LOADS, number, span=span))
        )  # fmt: skip

    def _in_flight(self, before: Sequence[Statement]) -> list[Statement]:
        """One gemm an iteration: the next is started before the last is waited for, whose slot is then free."""
        gemm, span, var = self.work[0], self.loop.span, self.loop.var
        assert isinstance(gemm, Gemm)
        number = self._number(var)
        count = self._number_of_iterations()
        started = replace(_Slots(self, number)(gemm), token=WGMMA)
        cleared, before = _cleared(before, gemm)
        if cleared is not None:
            started = replace(started, clear=index_binary("eq", number, 0))
        previous = index_binary("sub", number, 1)
        body = seq(
            self.names, Receive(LOADS, number, span=span), started, Commit(WGMMA, span=gemm.span),
            Wait(WGMMA, 1, span=gemm.span),
            If(index_binary("gt", number, 0), seq(Release(LOADS, previous, span=span)), span=span),
        )  # fmt: skip
        last = Release(LOADS, index_binary("sub", count, 1), span=span)
        runs = isinstance(count, Const) and count.value > 0
        # Cleared behind the loop where that does not run: before it, the gemms' registers would have two writers.
        empty = seq(cleared) if cleared is not None else None
        end: Statement = last if runs else If(index_binary("gt", count, 0), seq(last), empty, span=span)
        return [*before, self._for(body), Wait(WGMMA, 0, span=gemm.span), end]

    def _number_of_iterations(self) -> Expr:
        return index_binary("sub", nodes.cast(self.loop.stop, self.loop.var.dtype), self.loop.start)


class _Slots(Rewriter):
    """Regions of loaded tiles become those of their ring's slot."""

    def __init__(self, split: _Split, number: Expr) -> None:
        self.split, self.number = split, number

    def visit_Region(self, region: Region) -> Region:
        return self.split._slot(region, self.number) if region.buffer in self.split.rings else region


def _is_load(copy: Copy) -> bool:
    return copy.source.buffer.scope == "global" and copy.destination.buffer.scope == "shared"


def _is_common(statement: Statement) -> bool:
    """Whether a statement before the loop serves both roles: shared tiles and names."""
    if isinstance(statement, Allocate):
        return statement.buffer.scope == "shared"
    return isinstance(statement, (Let, nodes.Assume))


def _cleared(before: Sequence[Statement], gemm: Gemm) -> tuple[Fill | None, list[Statement]]:
    """The statement that sets a gemm's accumulator to zero and that nothing follows, and the others."""
    last = before[-1] if before else None
    if not isinstance(last, Fill) or gemm.clear is not False:
        return None, list(before)
    zero = isinstance(last.value, Const) and last.value.value == 0
    whole = last.destination.is_whole and last.destination.buffer is gemm.c.buffer
    return (last, list(before[:-1])) if zero and whole else (None, list(before))


def _registers(threads: int) -> tuple[int | None, int | None]:
    """Registers of a producer's and a consumer's thread, where the even share would be too small."""
    if threads <= GROUP:
        return None, None
    producing = 40 if threads <= 2 * GROUP else 32
    consuming = min(240, (REGISTERS - producing * GROUP) // threads // 8 * 8)
    return producing, consuming
