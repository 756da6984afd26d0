"""Splits kernels around their pipelined loops into a role that loads tiles and a role that computes on them.

Before::

    fill(total, 0.0)
    for k in pipelined(steps, num_stages=4):
        if mask[k] != 0:
            copy(A[..., k * 64], a)
            copy(B[..., k * 64], b)
            gemm(a, b, total)
    copy(total, C[...])

After::

    channel("loads", a_ring, b_ring, stages=4, writers=("producer",), readers=("consumer",))
    with roles():
        with role("consumer", warps=8, registers=232):
            iterations: int32 = 0
            fill(total, 0.0)
            for k in range(steps):
                if mask[k] != 0:
                    iteration = iterations
                    iterations = iteration + 1
                    receive("loads", iteration)
                    gemm(a_ring[iteration % 4, :, :], b_ring[iteration % 4, :, :], total)
                    release("loads", iteration)
            copy(total, C[...])
        with role("producer", warps=4, registers=40):
            iterations: int32 = 0
            for k in range(steps):
                if mask[k] != 0:
                    iteration = iterations
                    iterations = iteration + 1
                    acquire("loads", iteration)
                    copy(A[..., k * 64], a_ring[iteration % 4, :, :])
                    copy(B[..., k * 64], b_ring[iteration % 4, :, :])
                    publish("loads", iteration)

Each role keeps the loops, conditions and names around its statements, so that both count the same iterations; where one
loop alone is around them, its variable counts.  `role_analysis` and `plan_channels` say which statements may move and
where channels pass tiles.  The author's threads become the consumer's; the producer's come on top.  What loads of
the producer depend on is prepared by all warps before the roles part.  What cannot be divided stays as it is, and a
note says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import Rewriter, find, flattened, performed, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.passes import Context, ScopedRewriter
from tilewright.passes.tile.pipelines.inject_pipeline import unstageable
from tilewright.passes.tile.pipelines.pipeline_plan import MANUAL, obstacle, plan_pipeline
from tilewright.passes.tile.roles.divide_roles import Division, RoleRefusal
from tilewright.passes.tile.roles.plan_channels import plan_producer
from tilewright.passes.tile.roles.role_analysis import RoleAnalysis

SPECIALIZE = "specialize"
"""The kernel's attribute by which the author asks for roles, or forbids them."""

OF_CLUSTERS = ("cluster_sync", "cluster_arrive", "cluster_arrive_relaxed", "cluster_wait")
"""Words in which all threads of several blocks meet, but for those that have ended."""


def specialize_warps(function: ir.Function, context: Context) -> ir.Function:
    """Give kernels whose pipelined loops load tiles for matrix instructions a producer and a consumer role."""
    return function.with_body(_Specialize(function, context)(function.body))


class _Specialize(ScopedRewriter):
    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function)
        self.context = context

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        by_author = kernel.attribute(SPECIALIZE)
        if by_author is not None:
            rest = tuple((name, value) for name, value in kernel.attributes if name != SPECIALIZE)
            kernel = replace(kernel, attributes=rest)
        kernel = replace(kernel, body=_Flat()(kernel.body))
        loops = [node for node in find(kernel.body, ir.Pipelined) if (node.num_stages > 0 or node.stage is not None)]
        said = {loop: by_author if loop.specialize is None else loop.specialize for loop in loops}
        asked, wanted = [loop for loop in loops if said[loop]], [loop for loop in loops if said[loop] is not False]
        if not wanted:
            return kernel
        with self.analyzer.scope():
            self.bind_kernel(kernel)
            found = self._divided(kernel, wanted, bool(asked))
        if isinstance(found, ir.Kernel):
            return found
        loop = (asked or wanted)[0]
        self.context.chose(f"pipeline: one role (no producer: {found})", loop.span)
        if asked:
            self.context.warn(f"this loop has no warps of its own for its loads: {found}", loop.span)
        return kernel

    def _divided(self, kernel: ir.Kernel, loops: Sequence[ir.Pipelined], asked: bool) -> ir.Kernel | RoleRefusal:
        """The kernel with two roles, or why there are none."""
        refusal = _kernel_unsupported(kernel, self.context, asked)
        if refusal is not None:
            return refusal
        wanted = {loop: self.context.schedule.num_stages or loop.num_stages for loop in loops}
        for loop in loops:
            if loop.order is None and loop.stage is None:
                continue
            found = obstacle(loop)
            if found is not None:
                return RoleRefusal(f"the author's plan cannot be kept: {found[1]}", found[0])
            # An iteration's slots may be held over all stages of the plan.
            wanted[loop] = max(wanted[loop], plan_pipeline(loop, unstageable(kernel, loop)).depth + 1)
        anchor = next(
            position
            for position, statement in enumerate(kernel.body.statements)
            if any(node in wanted for node in find(statement, ir.Pipelined))
        )
        barrier = _block_barrier(kernel, loops)
        if barrier is not None:
            return RoleRefusal("it has barriers of the block, which a producer would not reach", barrier)
        analysis = RoleAnalysis(kernel, anchor)
        for behind in (True, False):
            plan = plan_producer(analysis, wanted, behind)
            divided = self._planned(Division(kernel, plan, wanted, anchor), asked)
            if isinstance(divided, ir.Kernel):
                for statement, reason in plan.refused:
                    self.context.warn(f"this load stays with the warps that compute: {reason}", statement.span)
                break
        return divided

    def _planned(self, division: Division, asked: bool) -> ir.Kernel | RoleRefusal:
        """The kernel with two roles as they are planned, or why it cannot be."""
        plan = division.plan
        if plan.refused and not (asked and plan.links):
            statement, reason = plan.refused[0]
            return RoleRefusal(reason, statement)
        if all(link.late for link in plan.links):
            return RoleRefusal("it loads no tiles from global memory")
        made = division.kernel(self.context.arch)
        if isinstance(made, str):
            return RoleRefusal(made)
        return division.unsupported(made, self.context, self.analyzer, asked) or made


def _kernel_unsupported(kernel: ir.Kernel, context: Context, asked: bool) -> RoleRefusal | None:
    """Why a kernel has no roles whatever its loops do."""
    threads = kernel.num_threads
    if context.arch.copy_engine is None or not (context.arch.copies_signal and context.arch.starts_products):
        return RoleRefusal(f"{context.arch.name} has no copy engine and warpgroup gemms")
    for node in walk(kernel.body):
        if isinstance(node, MANUAL) or (isinstance(node, ir.TileOperator) and node.token is not None):
            return RoleRefusal("the author divides the work", node)
        if isinstance(node, ir.Allocate) and node.buffer.scope == "barrier":
            return RoleRefusal("the author has barriers of his own", node)
    if kernel.threads[1:] != (1, 1) or threads % ir.WARPGROUP or threads + ir.WARPGROUP > context.arch.max_threads:
        return RoleRefusal(f"{threads} threads are no warpgroups with room for one more")
    return None


def _block_barrier(kernel: ir.Kernel, loops: Sequence[ir.Pipelined]) -> ir.Statement | None:
    """Where blocks meet though a producer may have loads to do: behind the last loop its threads have ended, which
    clusters do not wait for."""
    last = max(
        position
        for position, statement in enumerate(kernel.body.statements)
        if any(loop in loops for loop in find(statement, ir.Pipelined))
    )
    for position, statement in enumerate(kernel.body.statements):
        for node in find(statement, ir.Statement):
            word = performed(node)
            if word == "grid_sync" or (word in OF_CLUSTERS and position <= last):
                return node
    return None


class _Flat(Rewriter):
    """Sequences in sequences become one: what a macro or a scope holds stands where tiles are handed over."""

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        made: ir.Seq = self.generic(body)
        return with_statements(made, list(flattened(made)))
