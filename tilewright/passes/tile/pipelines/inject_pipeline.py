"""Software pipelining: loads of later iterations are under way while this one's work is done.

Before::

    for k in pipelined(K, num_stages=3):
        copy(source=A[:, k * 32 : +32], destination=a, prefer="cp_async")
        gemm(a=a, b=b, c=c)

After::

    with scope():
        a_stages = shared(float16[3, 64, 32])
        if 0 < K:
            copy(
                token="cp_async_0",
                source=A[:, 0 * 32 : +32],
                destination=a_stages[0, :, :],
                prefer="cp_async",
            )
        commit("cp_async_0")
        if 1 < K:
            copy(
                token="cp_async_0",
                source=A[:, 1 * 32 : +32],
                destination=a_stages[1, :, :],
                prefer="cp_async",
            )
        commit("cp_async_0")
        for k in range(K):
            wait("cp_async_0", pending=1, full=k + 1 < K)
            if k + 2 < K:
                copy(
                    token="cp_async_0",
                    source=A[:, (k + 2) * 32 : +32],
                    destination=a_stages[(k + 2) % 3, :, :],
                    prefer="cp_async",
                )
            commit("cp_async_0")
            gemm(a=a_stages[k % 3, :, :], b=b, c=c)

The first copies stand before the loop; the last rounds are rounds of the same loop that start no copies, so that
the body stands in the text once.  A step begins by waiting for what it works on, so that one barrier behind the wait
serves both the data that has landed and the slot that is filled next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.ir import bodies, header, root, touched, uses
from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewriter, Rewritten, changed, put, without_tiles
from tilewright.ir.walking import declared, find, walk
from tilewright.layout import Layout, expand
from tilewright.machine.arch import Arch
from tilewright.ops import CP_ASYNC, SYNC, Copy
from tilewright.passes import Context, Fact, map_kernels, plain_loop
from tilewright.passes.tile.copies.gathers import filled_by
from tilewright.passes.tile.pipelines import register_staging as staging
from tilewright.passes.tile.pipelines.emission import Emission
from tilewright.passes.tile.pipelines.pipeline_plan import PipelinePlan, obstacle, plan_pipeline, said
from tilewright.passes.tile.pipelines.tile_views import sees_all, views_of
from tilewright.passes.tile.pipelines.transposed_tiles import Transposed, transposed_copies

GROUPS: Fact[dict[ir.Token, tuple[tuple[Copy, ...], ...]]] = Fact("groups", dict)
"""By a pipeline's token, of each group that a step of it closes the copies that are always in it."""


def inject_pipeline(function: ir.Function, context: Context) -> ir.Function:
    """Let iterations of pipelined loops overlap; a loop that cannot becomes a plain one, and a warning says why.

    Raises
    ------
    PipelinePlanError : the author's ``order=`` or ``stage=`` breaks a dependence.
    """
    return map_kernels(function, lambda kernel: _Inject(kernel, context).run(), stage="pipelined")


class _Inject(Rewriter):
    def __init__(self, kernel: ir.Kernel, context: Context) -> None:
        self.kernel, self.context = kernel, context
        self.stages: dict[ir.Buffer, list[ir.Buffer]] = {}
        self.transposed: dict[ir.Buffer, ir.Buffer] = {}
        self.layouts: dict[ir.Buffer, Layout] = {}
        self.tokens = 0
        self.declared = {node.buffer: node.span for node in find(kernel.body, ir.Allocate)}

    def run(self) -> ir.Kernel:
        body = self(self.kernel.body)
        body = _JoinWaits(self.token)(body)
        transposed = lambda one: replace(one, buffer=self.transposed.get(one.buffer, one.buffer))  # noqa: E731
        body = changed(body, ir.Allocate, by=transposed) if self.transposed else body
        used = {node for node in uses(body) if isinstance(node, ir.Buffer)}
        used |= {node.source for node in used if node.source is not None}
        body = without_tiles(body, set(self.stages) - used)
        layouts: list[tuple[ir.Buffer, Any]] = [*self.kernel.layouts, *self.layouts.items()]
        for buffer, layout in list(layouts):
            layouts += [(made, expand(layout, made.static_shape[0])) for made in self.stages.get(buffer, ())]
        kept = tuple((buffer, layout) for buffer, layout in layouts if buffer in used or buffer not in self.stages)
        return replace(self.kernel, body=body, layouts=kept)

    def token(self) -> str:
        self.tokens += 1
        return f"{CP_ASYNC}_{self.tokens - 1}"

    def visit_Pipelined(self, original: ir.Pipelined) -> ir.Statement:
        loop = replace(original, body=self(original.body))
        if (loop.num_stages == 0 and loop.stage is None) or not _loads_ahead(self.context.arch):
            return self._plain(loop, original)
        found = obstacle(original)
        if found is not None:
            self._refuse(loop, *found)
            return plain_loop(loop)
        shared = unstageable(self.kernel, original)
        before: list[ir.Statement] = []
        under: list[staging.Under] | None = None
        beyond: frozenset[int] = frozenset()
        if self.context.arch.has("register_staging"):
            plain, threads = loop, self.kernel.thread_vars
            flat, _ = staging.opened(original, threads)
            transposed = transposed_copies(self.kernel, flat, shared, self._bits()) if loop.num_stages > 1 else {}
            loop, transposed = self._through_registers(loop, transposed)
            flat, conditions = staging.opened(loop, threads)
            spare = staging.registers_to_spare(self.kernel, self.context.arch)
            divided = staging.staged_in_registers(flat, conditions, shared, self.kernel, transposed, spare)
            if divided is not None:
                loop, under, before, beyond = divided.loop, divided.conditions, divided.before, divided.beyond
                self.layouts.update(divided.layouts)
                self._note({copy: way for copy, way in transposed.items() if way.tile in divided.layouts})
            elif loop.stage is None and loop.order is None and not _started(loop):
                return self._plain(plain, original)
            else:
                loop, under = flat, conditions
        plan = plan_pipeline(loop, shared, self.kernel.thread_vars, under)
        plan.beyond = beyond
        self._report(plan)
        emission = Emission(plan, self.token(), self.declared, views_of(self.kernel))
        made = emission.run()
        self.context.facts[GROUPS][emission.token] = emission.copies_of_groups()
        for buffer, staged in emission.staged.items():
            self.stages.setdefault(buffer, []).append(staged)
        return ir.Seq((*before, *made), span=loop.span)

    def _plain(self, loop: ir.Pipelined, original: ir.Pipelined) -> ir.Statement:
        """The loop without overlap; operands across k are transposed all the same."""
        bits = self._bits()
        if not bits:
            return plain_loop(loop)
        transposed = transposed_copies(self.kernel, original, unstageable(self.kernel, original), bits)
        transposing, ways = self._through_registers(loop, transposed)
        transposing, layouts = staging.transposed_in_place(transposing, ways, self.kernel.num_threads)
        self.layouts.update(layouts)
        self._note({copy: way for copy, way in ways.items() if way.tile in layouts})
        return plain_loop(transposing)

    def _bits(self) -> set[int]:
        """Sizes of elements whose tiles are transposed. Halves by themselves cost lanes no work; where few registers
        are left beside the products' they are read so."""
        features = {16: "transposed_halves", 8: "transposed_bytes"}
        return {bits for bits, feature in features.items() if self.context.arch.has(feature)}

    def _note(self, transposed: Transposed) -> None:
        """Tiles that others take the place of, and what ``explain()`` says of them."""
        for copy, way in transposed.items():
            self.transposed[copy.destination.buffer] = way.tile
            self.context.chose(f"copy: {way.tile.name} is transposed in registers", copy.span)

    def _through_registers(self, loop: ir.Pipelined, transposed: Transposed) -> tuple[ir.Pipelined, Transposed]:
        """The loop, where copies that threads start have no room for all their slots, or are to be transposed, as loads
        and stores; and what becomes of those that are transposed."""
        roomy = self._has_room(loop)
        others = {
            one: replace(one, schedule=replace(one.schedule, prefer=SYNC))
            for one in _started(loop)
            if one.token is None and (not roomy or one in transposed)
        }
        body = put(loop.body, others)
        return replace(loop, body=body), {others.get(copy, copy): way for copy, way in transposed.items()}

    def _has_room(self, loop: ir.Pipelined) -> bool:
        """Whether a block has memory for a slot of each stage of what a loop's copies start: in registers there is one
        less."""
        filled = {copy.destination.buffer for copy in _started(loop)}
        tiles = declared(self.kernel.body, "shared")
        slots = [one for staged in self.stages.values() for one in staged]
        more = sum((loop.num_stages - 1) * one.dtype.nbytes(one.size) for one in filled)
        return more + sum(one.dtype.nbytes(one.size) for one in (*tiles, *slots)) <= self.context.arch.shared_bytes

    # What is said ----------------------------------------------------------------------------

    def _report(self, plan: PipelinePlan) -> None:
        wanted = plan.loop.num_stages > 1
        if wanted and not any(stage < plan.depth for stage in plan.stages):
            if plan.refused:
                self._refuse(plan.loop, *plan.refused[0])
            else:
                self.context.warn("this loop is not pipelined: no copy in it fills a shared tile", plan.loop.span)
            return
        for statement, reason in plan.refused if wanted else ():
            self.context.warn(f"this is not started ahead of its iteration: {reason}", statement.span)

    def _refuse(self, loop: ir.Pipelined, statement: ir.Statement, reason: str) -> None:
        self.context.warn(f"this loop is not pipelined: {said(statement)}: {reason}", loop.span)


def _started(loop: ir.Pipelined) -> list[Copy]:
    """Copies of a loop that its threads start and do not wait for."""
    return [one for one in find(loop.body, Copy) if one.schedule.prefer == CP_ASYNC]


def _loads_ahead(arch: Arch) -> bool:
    """Whether a block's threads work on while what they load is on its way: else more slots than one only take
    memory."""
    return arch.has("register_staging") or arch.async_copy is not None or arch.copy_engine is not None


def unstageable(kernel: ir.Kernel, loop: ir.Pipelined) -> dict[ir.Buffer, str]:
    """The tiles of a kernel that cannot have a copy for each stage of a loop, and why."""
    reasons: dict[ir.Buffer, str] = {}
    for node in walk(kernel.body):
        buffer = node.buffer if isinstance(node, ir.Allocate) else node
        if isinstance(buffer, ir.Buffer) and buffer.source is not None and not sees_all(buffer):
            reasons[root(buffer)] = f"it is also used as {buffer.name}"
    for buffer in _exposed(kernel.body, loop):
        reasons.setdefault(buffer, "what it holds is read outside of the loop")
    return reasons


def _exposed(statement: ir.Statement, loop: ir.Pipelined) -> set[ir.Buffer]:
    """Memory that statements other than `loop` read before they have written all of it."""
    if statement is loop:
        return set()
    if isinstance(statement, ir.Seq):
        found: set[ir.Buffer] = set()
        filled: set[ir.Buffer] = set()
        for one in statement.statements:
            if any(node is loop for node in walk(one)):
                # What it fills is read behind it, or in the next iteration around it.
                found |= _exposed(one, loop)
                filled -= touched(loop).writes
                continue
            found |= _exposed(one, loop) - filled
            filled |= {region.buffer for region in filled_by(one) if region.is_whole}
        return found
    below = bodies(statement)
    asked = header(statement) if below else (statement,)
    return {one for part in asked for one in touched(part).reads}.union(*(_exposed(body, loop) for body in below))


class _JoinWaits(Rewriter):
    """Copies side by side, outside of pipelines, are waited for together."""

    def __init__(self, token: Callable[[], str]) -> None:
        self.token = token

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        made = self.generic(body)
        statements: list[ir.Statement] = []
        run: list[Copy] = []
        for statement in made.statements:
            alone = isinstance(statement, Copy) and statement.schedule.prefer == CP_ASYNC and statement.token is None
            if isinstance(statement, Copy) and alone:
                if statement.destination.buffer in {copy.destination.buffer for copy in run}:
                    statements += self._joined(run)
                    run = []
                run.append(statement)
                continue
            statements += [*self._joined(run), statement]
            run = []
        statements += self._joined(run)
        changed = len(statements) != len(made.statements)
        return replace(made, statements=tuple(statements)) if changed else made

    def _joined(self, run: list[Copy]) -> list[ir.Statement]:
        if len(run) < 2:
            return list(run)
        token = self.token()
        return [*(replace(copy, token=token) for copy in run), ir.Commit(token), ir.Wait(token)]
