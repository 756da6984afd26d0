"""Keeps warpgroup gemms in flight: the next one starts before the last one is waited for.

Before (in the role that computes)::

    fill(total, 0.0)
    for k in range(steps):
        receive("loads", k)
        gemm(a_ring[k % 4, :, :], b_ring[k % 4, :, :], total)
        release("loads", k)

After::

    for k in range(steps):
        receive("loads", k)
        gemm(token="wgmma", a_ring[k % 4, :, :], b_ring[k % 4, :, :], total, clear=k == 0)
        commit("wgmma")
        wait("wgmma", pending=1)
        if k > 0:
            release("loads", k - 1)
    wait("wgmma", pending=0)
    if steps > 0:
        release("loads", steps - 1)
    if steps <= 0:
        fill(total, 0.0)

Where an iteration has several gemms, `rotate_gemms` moves the last one into the next iteration. A slot is released once
the gemm that reads it is done, an iteration later than before; so a channel needs two of them. Gemms whose operands or
sums the loop uses for anything else are waited for where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.arith import Analyzer
from tilewright.ir import LOOPS, Rewritten, find, put, substitute, touched, walk
from tilewright.ir import nodes as ir
from tilewright.ops import Fill, Product, SparseGemm
from tilewright.passes import Context, map_kernels, negated
from tilewright.passes.tile.gemms.gemm_candidates import may_start_alone
from tilewright.passes.tile.gemms.gemm_groups import RoleRewriter, conditional
from tilewright.passes.tile.gemms.pair_iterations import pair_iterations, trips_of
from tilewright.passes.tile.gemms.rotate_gemms import rotate_gemms


def overlap_gemms(function: ir.Function, context: Context) -> ir.Function:
    """Let gemms of roles run while the next iteration begins, where nothing else needs what they touch."""
    return map_kernels(function, lambda kernel: kernel.with_body(_Roles(kernel)(kernel.body)))


@dataclass(frozen=True, slots=True)
class Iterations:
    """How the iterations of a loop in which a sequence runs count on: its running number and what surrounds it.

    Attributes
    ----------
    before : statements that must stand in front of the loop.
    number : the running number of this iteration; it grows by one an iteration.
    first, last : those of the first and, behind the loop, of the last iteration.
    any : behind the loop, whether there was an iteration at all.
    """

    before: tuple[ir.Statement, ...]
    number: ir.Expr
    first: ir.Expr
    last: ir.Expr
    any: ir.Expr


def iterations_of(loop: ir.For, home: ir.Seq, number: ir.Expr) -> Iterations | None:
    """What is known of a channel's running number in `home`, somewhere in `loop`; None where it may jump."""
    if isinstance(number, ir.Var) and number is not loop.var:
        let = next((one for one in home.statements if isinstance(one, ir.Let) and one.var is number), None)
        if let is None or not isinstance(let.value, ir.Load) or let.value.buffer.scope != "scalar":
            return None
        counter = let.value.buffer
        if sum(isinstance(node, ir.Store) and node.buffer is counter for node in walk(loop)) != 1:
            return None
        start, now = ir.Var(number.dtype, "first"), ir.Load(number.dtype, counter, ())
        last = now - 1
        return Iterations((ir.Let(start, now, span=loop.span),), number, start, last, ir.binary("gt", now, start))
    counts = ir.is_literal(loop.step, 1) and ir.is_literal(Analyzer().stride(number, loop.var), 1)
    if home is not loop.body or not counts:
        return None
    analyzer = Analyzer()
    first = analyzer.simplify(substitute(number, {loop.var: loop.start}))
    last = analyzer.simplify(substitute(number, {loop.var: loop.stop - 1}))
    return Iterations((), number, first, last, analyzer.simplify(ir.index_binary("lt", loop.start, loop.stop)))


class _Roles(RoleRewriter):
    """Looks for loops in roles."""

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        made: ir.Seq = self.generic(body)
        if self.role is None or not any(isinstance(one, ir.For) for one in made.statements):
            return made
        statements: list[ir.Statement] = []
        changed = False
        for statement in made.statements:
            found = None
            if isinstance(statement, ir.For):
                found = self._in_flight(statement, statements) or self._rotated(statement, statements)
            if found is None:
                statements.append(statement)
            else:
                statements, changed = found, True
        return replace(made, statements=tuple(statements)) if changed else made

    # One gemm -------------------------------------------------------------------------------------

    def _in_flight(self, loop: ir.For, before: list[ir.Statement]) -> list[ir.Statement] | None:
        """The statements up to and behind a loop whose gemm may run into the next iteration."""
        found = _innermost_gemms(loop)
        if len(found) != 1:
            return None
        (gemm, home), releases = found[0], []
        if not self._is_free(gemm, loop):
            return None
        place = home.statements.index(gemm)
        for statement in home.statements[place + 1 :]:
            if isinstance(statement, ir.Release) and any(
                region.buffer in self.channels[statement.channel].buffers for region in gemm.operands
            ):
                releases.append(statement)
        iterations = [iterations_of(loop, home, release.iteration) for release in releases]
        known = [one for one in iterations if one is not None]
        inside = {node.channel for node in find(loop.body, ir.Release)}
        handed = {buffer for name in inside for buffer in self.channels[name].buffers}
        read = {region.buffer for region in gemm.operands} & handed
        freed = {buffer for release in releases for buffer in self.channels[release.channel].buffers}
        shallow = any(self.channels[release.channel].stages < 2 for release in releases)
        if len(known) != len(iterations) or not read <= freed or shallow or not known:
            return None
        if isinstance(gemm, SparseGemm) and (home is not loop.body or trips_of(loop) is None):
            return None
        return self._emitted(loop, home, gemm, list(zip(releases, known, strict=True)), before)

    def _is_free(self, gemm: Product, loop: ir.For) -> bool:
        """Whether nothing in the loop but a gemm touches its sum or changes its operands."""
        if not may_start_alone(gemm):
            return False
        operands = {region.buffer for region in gemm.operands}
        for node in walk(loop.body):
            if not isinstance(node, ir.Statement) or node is gemm or isinstance(node, (ir.Seq, ir.If, *LOOPS)):
                continue
            effects = touched(node)
            if gemm.c.buffer in effects.all or operands & effects.writes:
                return False
        return True

    def _rotated(self, loop: ir.For, before: list[ir.Statement]) -> list[ir.Statement] | None:
        """The same for a loop whose last gemm may run beside the first gemm of the next iteration and what follows
        it."""
        made = rotate_gemms(loop, self.channels, self.new_group)
        return None if made is None else [*before, *made]

    def _emitted(
        self,
        loop: ir.For,
        home: ir.Seq,
        gemm: Product,
        releases: list[tuple[ir.Release, Iterations]],
        before: list[ir.Statement],
    ) -> list[ir.Statement]:
        token = self.new_group()
        cleared = before[-1] if before and _clears(before[-1], gemm) else None
        first = releases[0][1]
        started = replace(gemm, token=token)
        if cleared is not None:
            before = before[:-1]
            clear = ir.index_binary("eq", first.number, first.first)
            started = replace(started, clear=clear)  # type: ignore[call-arg]  # a field of each class of products
        waited: list[ir.Statement] = [ir.Commit(token, span=gemm.span), ir.Wait(token, 1, span=gemm.span)]
        for release, iterations in releases:
            earlier = replace(release, iteration=iterations.number - 1)
            waited += conditional(ir.index_binary("gt", iterations.number, iterations.first), [earlier], release.span)
        gone = {release for release, _ in releases}

        def looped(one: Product) -> ir.For:
            """The loop with a gemm that is started, and what follows it."""
            inner = [
                part
                for old in home.statements
                if old not in gone
                for part in ([one, *waited] if old is gemm else [old])
            ]
            return replace(loop, body=put(loop.body, {home: replace(home, statements=tuple(inner))}))

        made = pair_iterations(looped, started) if isinstance(started, SparseGemm) else [looped(started)]
        after: list[ir.Statement] = [ir.Wait(token, 0, span=gemm.span)]
        for release, iterations in releases:
            after += conditional(iterations.any, [replace(release, iteration=iterations.last)], release.span)
        if cleared is not None:
            after += conditional(negated(first.any), [cleared], cleared.span)
        names = [one for _, iterations in releases for one in iterations.before]
        return [*before, *names, *made, *after]


def _innermost_gemms(loop: ir.For) -> list[tuple[Product, ir.Seq]]:
    """The gemms of a loop's body with the sequences they stand in, loops in it apart."""
    found: list[tuple[Product, ir.Seq]] = []
    for node in walk(loop.body, lambda one: not isinstance(one, LOOPS)):
        if isinstance(node, ir.Seq):
            found += [(one, node) for one in node.statements if isinstance(one, Product)]
    return found


def _clears(statement: ir.Statement, gemm: Product) -> bool:
    """Whether a statement sets all of a gemm's sum to zero."""
    if not isinstance(statement, Fill) or gemm.clear is not False:
        return False
    zero = ir.is_literal(statement.value, 0)
    return zero and statement.destination.is_whole and statement.destination.buffer is gemm.c.buffer
