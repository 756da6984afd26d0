"""Chooses how each gemm of a kernel is executed on a machine, and says why nothing better.

With threads, the choice fixes how warps share the tile, and thereby the layouts of accumulators and operands; it is
made before layouts are inferred and is their anchor. On a processor it is made before operands are prepared for it; a
pass that gives a gemm other operands there writes the plan for these with them (`gemm_candidates.replanned`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import NotAsynchronous
from tilewright.ir import WARP, Allocate, Buffer, Function, Kernel, Region, Role, changed, const, find, kernels
from tilewright.layout import Layout, permuted
from tilewright.machine import Arch, MatrixInstruction
from tilewright.ops import Gemm, GemmPlan, Product, ProductPlan, SparseGemm
from tilewright.passes.context import Context
from tilewright.passes.tile.copies.engine_checks import has_box_layout
from tilewright.passes.tile.copies.filled_tiles import slot_buffers
from tilewright.passes.tile.gemms.gemm_candidates import Candidate, because, candidates_of, in_registers
from tilewright.passes.tile.pipelines.tile_views import tile_span


def select_instructions(function: Function, context: Context) -> Function:
    """Give every gemm that instructions can execute its plan.

    Raises
    ------
    NotAsynchronous : the author asked for an asynchronous instruction, and none fits.
    """
    plans: dict[Product, ProductPlan] = {}
    for kernel in kernels(function):
        threads = gemms_of(kernel)
        for gemm, (plan, refused) in plan_gemms(kernel, context.arch).items():
            what = "sparse gemm" if isinstance(gemm, SparseGemm) else "gemm"
            started = gemm.token is not None and context.arch.has_threads
            if started and not (isinstance(plan, GemmPlan) and plan.instruction.asynchronous):
                raise NotAsynchronous(
                    f"no asynchronous instruction of {context.arch.name} can execute this gemm{refused}",
                    span=gemm.span,
                    hint="write T.gemm, which also takes instructions that are not",
                )
            if plan is not None:
                plans[gemm] = plan
                context.chose(f"{what}: {plan}{refused}", gemm.span)
            else:
                context.chose(f"{what}: scalar products{refused}", gemm.span)
                slow = reason(gemm, refused, context.arch) if context.arch.has_threads else None
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
        demands = [[demanded(gemm, one[0]) for one in candidates[gemm]] for gemm in group]
        positions = agree(demands) if len(group) > 1 else None
        for gemm, position in zip(group, positions or ()):
            if position:
                plan, refused = candidates[gemm][position]
                chosen[gemm] = plan, refused + _not_best(candidates[gemm][0][0])
    return chosen


def _by_rows(gemms: Iterable[Product]) -> bool:
    """Whether warps share the rows of tiles, since an operand lies in registers."""
    return any(in_registers(gemm.a) for gemm in gemms)


def _not_best(best: ProductPlan | None) -> str:
    """Why the best way of a gemm alone is not taken among others."""
    assert isinstance(best, GemmPlan)
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


def demanded(gemm: Product, plan: ProductPlan | None) -> dict[Buffer, Layout]:
    """The layouts of a gemm's fragments that a plan asks for; a processor's asks for none."""
    if not isinstance(plan, GemmPlan):
        return {}
    found = {gemm.c.buffer: plan.accumulator()}
    if in_registers(gemm.a):
        found[gemm.a.buffer] = permuted(plan.left(), (1, 0)) if gemm.transpose_a else plan.left()
    if in_registers(gemm.b):
        found[gemm.b.buffer] = permuted(plan.right(), (1, 0)) if gemm.transpose_b else plan.right()
    return found


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


STEP = 16
"""Rows and columns by which tiles of advice differ."""

MOST_TILES = 400
"""Other tiles that are looked at, nearest first."""


def reason(gemm: Product, refused: str, arch: Arch) -> str | None:
    """Why a product that matrix instructions could execute, were it written otherwise, is left to threads; None where
    they could not.

    Parameters
    ----------
    refused : why each instruction for its types does not fit, as `candidates_of` says it.
    """
    if not arch.matrix_instructions:
        return None
    if gemm.a.dtype != gemm.b.dtype:
        return f"no instruction multiplies {gemm.a.dtype} by {gemm.b.dtype}; give both operands one type"
    far = [region.buffer.name for region in (gemm.a, gemm.b, gemm.c) if region.buffer.scope == "global"]
    if far:
        return (
            f"{' and '.join(far)} of this product {'lies' if len(far) == 1 else 'lie'} in global memory; copy "
            f"tiles of {'it' if len(far) == 1 else 'them'} into shared ones first"
        )
    for_types = _for_operands(gemm, arch)
    if not for_types:
        return None
    sums = dict.fromkeys(one.accumulator.name for one in for_types)
    if gemm.c.dtype.name not in sums:
        return (
            f"no instruction adds products of {gemm.a.dtype} up in {gemm.c.dtype}; add them up in {' or '.join(sums)}"
        )
    return refused.strip().removeprefix("(not ").removesuffix(")")


def advice(gemm: Product, threads: int, arch: Arch, by_rows: bool, tiles: Mapping[Buffer, int]) -> str | None:
    """The nearest numbers of threads and the nearest tile with which the matrix unit would execute a product.

    Parameters
    ----------
    threads : that execute it.
    by_rows, tiles : as for `candidates_of`.
    """
    if not _for_operands(gemm, arch) or any(one.buffer.scope == "global" for one in (gemm.a, gemm.b, gemm.c)):
        return None

    def fits(one: Product, count: int, spans: Mapping[Buffer, int]) -> bool:
        return candidates_of(one, count, arch, by_rows, spans)[0][0] is not None

    counts = [count for count in range(WARP, arch.max_threads + 1, WARP) if fits(gemm, count, tiles)]
    below, above = [c for c in counts if c < threads][-1:], [c for c in counts if c > threads][:1]
    nearest = " or ".join(str(count) for count in (*below, *above))
    found = [f"{nearest} threads"] if nearest else []
    if isinstance(gemm, Gemm):
        spans = dict(tiles)
        for m, n, k in _tiles(gemm, arch):
            if fits(_resized(gemm, m, n, k, spans), threads, spans):
                found.append(f"a tile of {m} x {n}" + (f" in steps of {k} along k" if k != gemm.k else ""))
                break
    return f"the matrix unit takes it with {', or '.join(found)}" if found else None


def _for_operands(gemm: Product, arch: Arch) -> list[MatrixInstruction]:
    instructions = arch.products(MatrixInstruction) if isinstance(gemm, Gemm) else arch.sparse_instructions
    return [one for one in instructions if (one.a, one.b) == (gemm.a.dtype, gemm.b.dtype)]


def _tiles(gemm: Gemm, arch: Arch) -> list[tuple[int, int, int]]:
    """Tiles of about a product's size that an instruction's steps along k divide, the nearest first."""
    step = min(one.k for one in _for_operands(gemm, arch))
    lower, k = gemm.k // step * step, -(-gemm.k // step) * step
    k = lower if lower and gemm.k - lower < k - gemm.k else k
    sizes = [(m, n, k) for m in _near(gemm.m) for n in _near(gemm.n)]

    def distance(size: tuple[int, int, int]) -> float:
        return abs(math.log(size[0] / gemm.m)) + abs(math.log(size[1] / gemm.n))

    return sorted(sizes, key=distance)[:MOST_TILES]


def _near(size: int) -> Iterator[int]:
    """`size` and the multiples of `STEP` between half of it and twice of it."""
    yield size
    yield from (near for near in range(STEP, 2 * size + STEP, STEP) if near != size and 2 * near >= size)


def _resized(gemm: Gemm, m: int, n: int, k: int, spans: dict[Buffer, int]) -> Gemm:
    """The same product on another tile; what descriptors may read stays so."""

    def region(of: Region, rows: int, columns: int) -> Region:
        if of.static_extents[-2:] == (rows, columns):
            return of
        buffer = replace(of.buffer, shape=(*of.buffer.shape[:-2], rows, columns))
        if of.buffer in spans:
            spans[buffer] = spans[of.buffer]
        extents = (*of.extents[:-2], rows, columns)
        return Region(buffer, (*of.starts[:-2], const(0), const(0)), extents)

    a = region(gemm.a, *((k, m) if gemm.transpose_a else (m, k)))
    b = region(gemm.b, *((n, k) if gemm.transpose_b else (k, n)))
    return replace(gemm, a=a, b=b, c=region(gemm.c, m, n))
