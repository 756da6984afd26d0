"""Words that a machine does not have and can do without, in others.

Votes of a block are counted in shared memory: those who agree add to a counter that all read. So are those of a role
on every machine: the words that there are wait for all threads of the block, and count them. The rank of a block in
its cluster is worked out of the block's index. Fences of the copy engine go where there is none. Threads that begin a
copy make it at once, element after element, and products of bytes are added one by one. Lanes of a warp meet with the
block where the machine runs no whole warps, and exchange values in shared memory (`lane_words`); where threads come one
by one, they cannot, and `check_words` refuses it.

Before::

    @stage("traced")
    def f(A: int32[64], B: bool[64]):
        with kernel(blocks={bx: 1}, threads={tx: 64, ty: 1, tz: 1}):
            votes: bool = sync_threads_or(A[tx] > 3)
            B[tx] = votes

After::

    @stage("traced")
    def f(A: int32[64], B: bool[64]):
        with kernel(blocks={bx: 1}, threads={tx: 64, ty: 1, tz: 1}):
            counter = shared(int32[1])
            sync_threads(dtype=bool)
            if tx == 0:
                counter[0] = 0
            sync_threads(dtype=bool)
            if A[tx] > 3:
                atomic_add(counter, 1, "relaxed")
            sync_threads(dtype=bool)
            votes: bool = counter[0] != 0
            B[tx] = votes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.interpreter.varying import Varying, find_varying
from tilewright.ir import BOOL, INT32, Rewritten, children, find, having, perform
from tilewright.ir import nodes as ir
from tilewright.ops.base import element, store_element, zero
from tilewright.passes import Context, HoistingRewriter
from tilewright.passes.tile.words.lane_words import LANE_WORDS, SIMDGROUP, exchanged

VOTES = ("sync_threads_and", "sync_threads_or", "sync_threads_count")
RANK, FENCE, LANES = "cluster_rank", "fence_proxy_async", "sync_warp"
COPIES, DOT = ("async_copy", "async_copy_zfill"), "dp4a"


def replace_words(function: ir.Function, context: Context) -> ir.Function:
    """Say in other words what the machine has no word for."""
    voting = any(call.function in VOTES for role in find(function.body, ir.Role) for call in find(role, ir.Call))
    arch = context.arch
    there = {**dict.fromkeys(VOTES, arch.has("block_votes")), **dict.fromkeys(COPIES, arch.starts_own_copies)}
    there |= {RANK: arch.clusters, FENCE: arch.reads_past_threads, DOT: arch.has(DOT)}
    absent = {word for word, able in there.items() if not able}
    if not context.arch.runs_warps:
        absent |= {LANES, *LANE_WORDS} - (SIMDGROUP if context.arch.has_threads else set())
    if not voting and not any(call.function in absent for call in find(function.body, ir.Call)):
        return function
    return function.with_body(_Replace(frozenset(absent), context.arch.has_threads)(function.body))


class _Replace(HoistingRewriter):
    def __init__(self, absent: frozenset[str], has_threads: bool) -> None:
        super().__init__()
        self.absent, self.has_threads = absent, has_threads
        self.kernel: ir.Kernel | None = None
        self.apart: set[ir.Call] = set()

    def visit_Role(self, role: ir.Role) -> ir.Role:
        with having(self, absent=self.absent | {*VOTES}):
            return self.generic(role)

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        lanes = bool({LANES} & self.absent) and self.has_threads
        apart = set(_apart(kernel.body, find_varying(kernel), any(find(kernel, ir.Return)))) if lanes else set()
        with having(self, kernel=kernel, apart=apart):
            return self.generic(kernel)

    def visit_While(self, loop: ir.While) -> ir.While:
        """Lanes cannot meet where each iteration asks first."""
        with having(self, absent=self.absent - LANE_WORDS):
            condition = self.visit(loop.condition)
        return replace(loop, condition=condition, body=self.visit_Seq(loop.body))

    def visit_Evaluate(self, statement: ir.Evaluate) -> Rewritten:
        call = statement.value
        if call.function not in self.absent & {FENCE, DOT, *COPIES}:
            return self.generic(statement)
        given: tuple[Any, ...] = self.generic(call).arguments  # as many as the intrinsic has
        return None if call.function == FENCE else _summed(*given) if call.function == DOT else _copied(*given)

    def visit_Call(self, call: ir.Call) -> ir.Expr:
        made: ir.Call = self.generic(call)
        if made.function not in self.absent or call in self.apart:
            return made
        if made.function == LANES:
            return replace(made, function="sync_threads", arguments=())
        if made.function in LANE_WORDS:
            assert self.kernel is not None
            before, value = exchanged(made, self.kernel)
            self.before += before
            return value
        return self._rank() if made.function == RANK else self._votes(made)

    def _rank(self) -> ir.Expr:
        assert self.kernel is not None
        rank: ir.Expr = ir.const(0)
        below = 1
        for index, extent in zip(self.kernel.block_vars, self.kernel.attribute("cluster", (1, 1, 1)), strict=False):
            place = index % ir.const(extent)
            rank, below = rank + place * ir.const(below), below * extent
        return ir.cast(rank, INT32)

    def _votes(self, call: ir.Call) -> ir.Expr:
        (said,) = call.arguments
        assert isinstance(said, ir.Expr) and self.kernel is not None
        everyone = call.function == "sync_threads_and"
        counter = ir.Buffer("counter", (1,), INT32, "shared")
        clear: ir.Statement = ir.Store(counter, (ir.const(0),), ir.const(0))
        for thread, extent in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
            clear = clear if extent == 1 else ir.If(ir.binary("eq", thread, ir.const(0)), ir.seq(clear))
        added = ir.Evaluate(
            ir.Call(INT32, "atomic_add", (ir.Region(counter, (ir.const(0),), (1,)), ir.const(1), "relaxed"))
        )
        agrees = ir.Unary(BOOL, "not", said) if everyone else said
        # All have read the votes before when the counter is cleared.
        barrier = partial(perform, "sync_threads")
        self.before += [ir.Allocate(counter), barrier(), clear, barrier(), ir.If(agrees, ir.seq(added)), barrier()]
        votes = ir.Load(INT32, counter, (ir.const(0),))
        if call.function == "sync_threads_count":
            return votes
        return ir.binary("eq" if everyone else "ne", votes, ir.const(0))


def _summed(left: ir.Region, right: ir.Region, total: ir.Region) -> ir.Statement:
    """A sum with four products of bytes."""
    value = element(total, [])
    for place in range(4):
        a, b = (ir.cast(element(of, [ir.const(place)]), total.dtype) for of in (left, right))
        value = ir.binary("add", value, ir.binary("mul", a, b))
    return store_element(total, [], value)


def _copied(to: ir.Region, origin: ir.Region, valid: ir.Expr | None = None) -> ir.Statement:
    """A thread's copy of a few neighbours; of zeros behind so many bytes."""
    lane, count = ir.Var(INT32, "lane"), to.extents[-1]
    value = element(origin, [lane])
    if value.dtype != to.dtype:
        value = ir.Call(to.dtype, "reinterpret", (value,))
    if valid is not None:
        given = ir.binary("lt", lane * ir.const(to.dtype.bits // 8), ir.cast(valid, INT32))
        value = ir.Select(to.dtype, given, value, zero(to.dtype))
    body = ir.seq(store_element(to, [lane], value))
    return ir.For(lane, ir.const(0), ir.expr(count), ir.const(1), body, "vectorize")


def _apart(statement: ir.Statement, varying: Varying, inside: bool) -> Iterator[ir.Call]:
    """What lanes do together where threads come one by one, or roles, not as a block."""
    inside = inside or isinstance(statement, ir.Role)
    for child in children(statement):
        if isinstance(child, ir.Statement):
            yield from _apart(child, varying, inside or statement in varying.lanes)
        elif isinstance(child, ir.Expr) and (inside or isinstance(statement, ir.While)):
            yield from (call for call in find(child, ir.Call) if call.function in (LANES, *LANE_WORDS))
