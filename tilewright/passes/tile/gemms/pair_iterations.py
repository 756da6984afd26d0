"""Two iterations of a loop at a time, for sparse gemms in flight: the metadata of one is read while that of the next is
loaded.

Before::

    for k in range(steps):
        gemm_sp(token="wgmma", a_ring[k % 4, :, :], e_ring[k % 4, :, :], b_ring[k % 4, :, :], total)
        commit("wgmma")
        wait("wgmma", pending=1)

After (the first gemm's metadata stays in ``places_0``, the second one's in ``places_1``)::

    for pair in range(steps // 2):
        gemm_sp(token="wgmma", a_ring[2 * pair % 4, :, :], ...)
        commit("wgmma")
        wait("wgmma", pending=1)
        gemm_sp(token="wgmma", a_ring[(2 * pair + 1) % 4, :, :], ...)
        commit("wgmma")
        wait("wgmma", pending=1)

The instruction reads its metadata when it runs, not when it is issued, and no compiler knows; so registers that a
product in flight may still read must have another name than those that are loaded next, and be used once more behind
the wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir import INT32, UINT32, Allocate, Buffer, Expr, For, Seq, Statement, Store, Var, const, seq, substitute
from tilewright.ops import GemmPlan, Product, SparseGemm
from tilewright.passes.scoped import fresh

FIRST_TWO = 0x44444444
"""A word of metadata that is valid, for registers that nothing was loaded into."""


def trips_of(loop: For) -> int | None:
    """How often a loop runs, where that is known."""
    numbers = loop.numbers
    return len(numbers) if numbers is not None and numbers.step == 1 else None


def pair_iterations(looped: Callable[[Product], For], gemm: SparseGemm) -> list[Statement]:
    """The statements that take the place of a loop, in two iterations at a time.

    Parameters
    ----------
    looped : the loop around a gemm; it runs a known number of times.
    gemm : one that has a plan.
    """
    plan = gemm.plan
    assert isinstance(plan, GemmPlan)
    words = [Buffer(f"places_{parity}", (plan.metadata_words,), UINT32, "local") for parity in (0, 1)]
    made: list[Statement] = []
    for buffer in words:
        index = Var(INT32, "i")
        store = Store(buffer, (index,), const(FIRST_TWO, UINT32), span=gemm.span)
        made += [
            Allocate(buffer, span=gemm.span),
            For(index, const(0), const(plan.metadata_words), const(1), seq(store), "unroll", span=gemm.span),
        ]
    loops = [looped(replace(gemm, plan=replace(plan, words=buffer))) for buffer in words]
    trips = trips_of(loops[0])
    assert trips is not None

    def iteration(parity: int, number: Expr) -> Seq:
        """One iteration of the loop, its gemm's metadata in the registers of its parity."""
        loop = loops[parity]
        return fresh(substitute(loop.body, {loop.var: loop.start + number}))

    pair = Var(INT32, "pair")
    twice = pair * 2
    both = seq(iteration(0, twice).statements, iteration(1, twice + 1).statements)
    made.append(For(pair, const(0), const(trips // 2), const(1), both, span=gemm.span))
    if trips % 2:
        made += iteration(0, const(trips - 1)).statements
    return made
