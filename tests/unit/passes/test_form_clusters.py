"""`form_clusters` as a pass: blocks that load the same tiles are joined; each reason why they are not."""

from __future__ import annotations

from functools import partial

import pytest
from one_pass import changed_text, machine, made
from test_specialize_warps import AFTER as DIVIDED

from tilewright.passes.context import CHOICES, Schedule
from tilewright.passes.tile.grids.form_clusters import form_clusters

AFTER = (
    DIVIDED.replace("specialized=True", "cluster=(2, 1, 1), specialized=True")
    .replace('scope="block"', 'scope="cluster"')
    .replace("destination=b_ring[i % 3, :, :])", "destination=b_ring[i % 3, :, :], multicast=True)")
)


changed = partial(changed_text, DIVIDED)


def test_before_and_after() -> None:
    context = machine(schedule=Schedule(cluster=2))
    assert made(form_clusters, DIVIDED, context) == AFTER
    assert context.facts[CHOICES] == ["cluster: 2 blocks along bx share loads of B"]


def test_the_authors_clusters_are_filled() -> None:
    asked = changed(("specialized=True", "cluster=(4, 1, 1), specialized=True"))
    assert made(form_clusters, asked) == AFTER.replace("(2, 1, 1)", "(4, 1, 1)")


def test_blocks_beyond_the_grid_store_nothing() -> None:
    """31 blocks in clusters of two: the last has a neighbour that only helps to load."""
    text = made(form_clusters, changed(("bx: 32", "bx: 31")), machine(schedule=Schedule(cluster=2)))
    assert "blocks={bx: 32}" in text
    assert "if bx < 31:\n                    copy(source=c, destination=C[bx * 128 : +128, :])" in text


ALONE = ("float16[3, 64, 128])", "float16[3, 64, 128])")
REFUSED = {
    "a schedule without clusters": (DIVIDED, Schedule(cluster=1), None),
    "roles of the author": (changed((", specialized=True", "")), Schedule(cluster=2), None),
    "every block loads tiles of its own": (
        changed(("B: float16[256, 128]", "B: float16[8192, 128]"), ("B[i * 64 : +64, :]", "B[bx * 256 + i * 64 : +64, :]")),
        Schedule(cluster=2), "cluster: none (no load is shared along an axis that divides)"),
    "most blocks would be beyond the grid": (
        changed(("bx: 32", "bx: 1")), Schedule(cluster=2), "cluster: none (no load is shared along an axis that divides)"),
    "threads read the slots": (
        changed(("                    release(", "                    copy(source=b_ring[i % 3, :, :], destination=C[0 : +64, :])\n                    release(")),
        Schedule(cluster=2), "cluster: none (its slots are read by more than asynchronous gemms)"),
    "blocks claim their tiles": (
        DIVIDED, Schedule(persistent="claim"), "cluster: none (each block claims tiles of its own)"),
    "bounds that differ": (
        changed(("range(4)", "range(bx)")), Schedule(cluster=2), "cluster: none (no load is shared along an axis that divides)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    before, schedule, said = REFUSED[case]
    context = machine(schedule=schedule)
    assert made(form_clusters, before, context) == before
    assert context.facts[CHOICES] == ([] if said is None else [said])


def test_clusters_that_the_author_asks_for_in_vain_go() -> None:
    asked = changed((", specialized=True", ""), ("tz: 1})", "tz: 1}, cluster=(2, 1, 1))"))
    context = machine()
    assert made(form_clusters, asked, context) == changed((", specialized=True", ""))
    assert context.facts[CHOICES] == ["cluster: each block loads for itself (no warps of their own make the loads)"]
