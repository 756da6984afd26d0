"""Chooses how each gemm of a kernel is executed on a machine with threads, and why nothing better.

The choice fixes how warps share the tile, and thereby the layouts of accumulators and operands; it is made
before layouts are inferred and is their anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import NotAsynchronous
from tilewright.ir import Allocate, Buffer, Function, Kernel, Role, changed, find, kernels
from tilewright.layout import Layout, permuted
from tilewright.machine.arch import Arch
from tilewright.ops import GemmPlan, Product
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.passes.context import Context
from tilewright.passes.tile.copies.engine_checks import has_box_layout
from tilewright.passes.tile.copies.filled_tiles import slot_buffers
from tilewright.passes.tile.gemms.gemm_candidates import Candidate, because, candidates_of, in_registers
from tilewright.passes.tile.gemms.slow_products import advice, reason
from tilewright.passes.tile.pipelines.tile_views import tile_span


def select_instructions(function: Function, context: Context) -> Function:
    """Give every gemm that matrix instructions can execute its `GemmPlan`.

    Raises
    ------
    NotAsynchronous : the author asked for an asynchronous instruction, and none fits.
    """
    plans: dict[Product, GemmPlan] = {}
    for kernel in kernels(function):
        threads = gemms_of(kernel)
        for gemm, (plan, refused) in plan_gemms(kernel, context.arch).items():
            what = "sparse gemm" if isinstance(gemm, SparseGemm) else "gemm"
            if gemm.token is not None and (plan is None or not plan.instruction.asynchronous):
                raise NotAsynchronous(
                    f"no asynchronous instruction of {context.arch.name} can execute this gemm{refused}",
                    span=gemm.span,
                    hint="write T.gemm, which also takes instructions that are not",
                )
            if plan is not None:
                plans[gemm] = plan
                kind = "warpgroups" if plan.instruction.asynchronous else "warps"
                said = f"{what}: {plan.instruction.function} on {plan.warps_m} x {plan.warps_n} {kind}{refused}"
                context.chose(said, gemm.span)
            else:
                context.chose(f"{what}: scalar products{refused}", gemm.span)
                slow = reason(gemm, refused, context.arch)
                if slow is not None:
                    tiles = descriptor_tiles(kernel, context.arch.spans)
                    better = advice(gemm, threads[gemm], context.arch, _by_rows(threads), tiles)
                    context.warn(f"threads multiply element by element: {slow}", gemm.span, better)
    return function.with_body(changed(function.body, Product, by=lambda gemm: replace(gemm, plan=plans.get(gemm))))


def gemms_of(kernel: Kernel) -> dict[Product, int]:
    """The gemms of a kernel, each with the number of threads that execute it: its role's, or the block's."""
    found = dict.fromkeys(find(kernel, Product), kernel.num_threads)
    for role in find(kernel, Role):
        found.update((node, role.threads) for node in find(role, Product))
    return found


def descriptor_tiles(kernel: Kernel, spans: Sequence[int]) -> dict[Buffer, int]:
    """Shared tiles that matrix instructions may read by descriptor, and the bytes of their swizzle's span.

    What threads write there passes a fence first, which `plan_synchronization` and `lower_channels` see to.
    """
    tiles = {node.buffer for node in find(kernel.body, Allocate)} | slot_buffers(kernel)
    found = {one: _span(one, kernel, spans) for one in tiles if one.scope == "shared" and one.source is None}
    return {one: span for one, span in found.items() if span is not None}


def _span(tile: Buffer, kernel: Kernel, spans: Sequence[int]) -> int | None:
    """The span within which a tile's rows are swizzled, by inference or by the author's layout; None where they are
    not."""
    layout = dict(kernel.layouts).get(tile)
    if layout is None:
        return tile_span(tile, kernel, spans)
    if not isinstance(layout, Layout) or layout.swizzle is None or not has_box_layout(tile, kernel, spans):
        return None
    return (1 << layout.swizzle.base + layout.swizzle.bits) * tile.dtype.bits // 8


def plan_gemms(kernel: Kernel, arch: Arch) -> dict[Product, Candidate]:
    """For each gemm of a kernel the best instruction that fits, and the reasons against those before it.

    Gemms that have a fragment in common agree on where its elements are.
    """
    gemms = gemms_of(kernel)
    by_rows = _by_rows(gemms)
    tiles = descriptor_tiles(kernel, arch.spans)
    candidates = {gemm: candidates_of(gemm, threads, arch, by_rows, tiles) for gemm, threads in gemms.items()}
    chosen = {gemm: found[0] for gemm, found in candidates.items()}
    for group in _connected(gemms):
        demands = [[_demand(gemm, one) for one in candidates[gemm]] for gemm in group]
        positions = agree(demands) if len(group) > 1 else None
        for gemm, position in zip(group, positions or ()):
            if position:
                plan, refused = candidates[gemm][position]
                chosen[gemm] = plan, refused + _not_best(candidates[gemm][0][0])
    return chosen


def _by_rows(gemms: Iterable[Product]) -> bool:
    """Whether warps share the rows of tiles, since an operand lies in registers."""
    return any(in_registers(gemm.a) for gemm in gemms)


def _not_best(best: GemmPlan | None) -> str:
    """Why the best way of a gemm alone is not taken among others."""
    assert best is not None
    how = f"{best.instruction.function} on {best.warps_m} x {best.warps_n}"
    return because([f"{how}: another gemm cannot hold the fragment that both use so"])


def _connected(gemms: Iterable[Product]) -> list[list[Product]]:
    """Gemms joined where they have fragments in common, directly or by others."""
    groups: list[tuple[set[Buffer], list[Product]]] = []
    for gemm in gemms:
        buffers = {region.buffer for region in (gemm.a, gemm.b, gemm.c) if in_registers(region)}
        members = [gemm]
        for group in [group for group in groups if group[0] & buffers]:
            groups.remove(group)
            buffers |= group[0]
            members = [*group[1], *members]
        groups.append((buffers, members))
    return [members for _, members in groups]


def demanded(gemm: Product, plan: GemmPlan) -> dict[Buffer, Layout]:
    """The layouts of a gemm's fragments that a plan asks for."""
    found = {gemm.c.buffer: plan.accumulator()}
    if in_registers(gemm.a):
        found[gemm.a.buffer] = permuted(plan.left(), (1, 0)) if gemm.transpose_a else plan.left()
    if in_registers(gemm.b):
        found[gemm.b.buffer] = permuted(plan.right(), (1, 0)) if gemm.transpose_b else plan.right()
    return found


def _demand(gemm: Product, way: Candidate) -> dict[Buffer, Layout]:
    return {} if way[0] is None else demanded(gemm, way[0])


Demand = Mapping[Buffer, Layout]
"""The layouts of fragments that one way of executing a statement asks for."""


def agree(candidates: Sequence[Sequence[Demand]]) -> list[int] | None:
    """For each statement the way to take, such that no fragment is asked for twice differently.

    Two gemms that add to one accumulator need it in the same threads.  Where the best way of the one is not open to the
    other, both take the candidates that are best together::

        gemm(a, b, c)     # 1. wgmma on 1 x 2 warpgroups   2. mma on 4 x 2 warps   3. mma on 8 x 1 warps  -> 2
        gemm(d, e, c)     # 1. mma on 4 x 2 warps          2. mma on 8 x 1 warps                          -> 1

    Parameters
    ----------
    candidates : of each statement, the best first.

    Returns
    -------
    Positions in `candidates` with the least sum; None where no choice agrees.
    """
    best: list[int] | None = None
    least = sum(map(len, candidates)) + 1

    def go_on(chosen: list[int], known: dict[Buffer, Layout], cost: int) -> None:
        nonlocal best, least
        if cost >= least:
            return
        if len(chosen) == len(candidates):
            best, least = list(chosen), cost
            return
        for position, demand in enumerate(candidates[len(chosen)]):
            if all(known.get(buffer, layout) == layout for buffer, layout in demand.items()):
                go_on([*chosen, position], {**known, **demand}, cost + position)

    go_on([], {}, 0)
    return best
