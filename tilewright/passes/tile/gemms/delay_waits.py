"""Moves the wait for a warpgroup gemm behind statements that do not depend on it, so that they run beside it.

Before (in the role that computes)::

    gemm(a_ring[k % 4, :, :], b_ring[k % 4, :, :], part, clear=True)
    scale_b: float32 = B_scales[column, k]
    for i in parallel(128):
        rows[i] = A_scales[k, row + i]
    for i, j in parallel(128, 128):
        total[i, j] = fma(part[i, j], rows[i] * scale_b, total[i, j])

After::

    gemm(token="wgmma", a_ring[k % 4, :, :], b_ring[k % 4, :, :], part, clear=True)
    commit("wgmma")
    scale_b: float32 = B_scales[column, k]
    for i in parallel(128):
        rows[i] = A_scales[k, row + i]
    wait("wgmma", pending=0)
    for i, j in parallel(128, 128):
        total[i, j] = fma(part[i, j], rows[i] * scale_b, total[i, j])

A wait for another role's tile moves too, if that role can fill it before the slot that the gemm reads is released.
`overlap_gemms` comes first and lets gemms run into the next iteration; this pass handles the gemms that it left.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Rewritten, find, same, touched, with_statements
from tilewright.ir import nodes as ir
from tilewright.ops import Copy, Fill, Gemm
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.gemms.gemm_candidates import may_start_alone
from tilewright.passes.tile.gemms.gemm_groups import RoleRewriter

MOVABLE = (ir.Allocate, ir.Let, ir.Parallel, ir.Store, Copy, Fill, ir.Receive, ir.Release)
"""What may run beside a gemm: statements that wait for no other thread, and channels to other roles."""


def delay_waits(function: ir.Function, context: Context) -> ir.Function:
    """Wait for the gemms of roles behind the statements that do not depend on them."""
    return map_kernels(function, lambda kernel: kernel.with_body(_Delay(kernel)(kernel.body)))


def _filled_together(kernel: ir.Kernel) -> set[tuple[str, str]]:
    """Pairs of channels that a writer fills one after the other in each iteration: it fills the second without waiting
    for readers of the first."""
    published = [one.channel for one in find(kernel.body, ir.Publish)]
    found: set[tuple[str, str]] = set()
    for body in find(kernel.body, ir.Seq):
        here = [one for one in body.statements if isinstance(one, ir.Publish) and published.count(one.channel) == 1]
        found |= {
            (first.channel, second.channel)
            for first in here
            for second in here
            if first is not second and same(first.iteration, second.iteration)
        }
    return found


class _Delay(RoleRewriter):
    def __init__(self, kernel: ir.Kernel) -> None:
        super().__init__(kernel)
        self.together = _filled_together(kernel)

    def visit_Seq(self, body: ir.Seq) -> Rewritten:
        made: ir.Seq = self.generic(body)
        if self.role is None:
            return made
        statements: list[ir.Statement] = []
        rest = list(made.statements)
        while rest:
            one = rest.pop(0)
            beside = self._beside(one, rest) if isinstance(one, Gemm) else []
            if beside:
                assert isinstance(one, Gemm)
                statements += self._delayed(one, [rest[place] for place in beside])
                rest = [other for place, other in enumerate(rest) if place not in beside]
            else:
                statements.append(one)
        return with_statements(made, statements)

    def _beside(self, gemm: Gemm, behind: list[ir.Statement]) -> list[int]:
        """Positions of the statements behind a gemm that do not depend on it; releases of its slots are not moved."""
        if not may_start_alone(gemm):
            return []
        operands = {gemm.a.buffer, gemm.b.buffer}
        found: list[int] = []
        releases: list[ir.Release] = []
        for place, one in enumerate(behind):
            effects = touched(one)
            if isinstance(one, ir.Release) and operands & {*self.channels[one.channel].buffers}:
                releases.append(one)
                continue
            waits = isinstance(one, ir.Receive) and not all(self._needs_no(release, one) for release in releases)
            if waits or not isinstance(one, MOVABLE) or gemm.c.buffer in effects.all or operands & effects.writes:
                break
            found.append(place)
        return found

    def _needs_no(self, release: ir.Release, receive: ir.Receive) -> bool:
        """Whether a tile can be received before a slot is released."""
        pair = release.channel, receive.channel
        return pair in self.together and same(release.iteration, receive.iteration)

    def _delayed(self, gemm: Gemm, beside: list[ir.Statement]) -> list[ir.Statement]:
        token = self.new_group()
        return [replace(gemm, token=token), ir.Commit(token, span=gemm.span), *beside, ir.Wait(token, span=gemm.span)]
