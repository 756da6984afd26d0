"""`specialize_warps` as a pass: a pipelined loop becomes two roles; what cannot be divided stays, and a note says why."""

from __future__ import annotations

from functools import partial

import pytest
from one_pass import changed_text, machine, made, result_of

from tilewright.passes.context import CHOICES, Schedule
from tilewright.passes.tile.roles.specialize_warps import specialize_warps

BEFORE = """\
@stage("traced")
def product(A: float16[4096, 256], B: float16[256, 128], C: float16[4096, 128]):
    with kernel(blocks={bx: 32}, threads={tx: 256, ty: 1, tz: 1}):
        a = shared(float16[128, 64])
        b = shared(float16[64, 128])
        c = fragment(float32[128, 128])
        fill(destination=c, value=float32(0.0))
        for i in pipelined(4, num_stages=3):
            copy(source=A[bx * 128 : +128, i * 64 : +64], destination=a)
            copy(source=B[i * 64 : +64, :], destination=b)
            gemm(a=a, b=b, c=c)
        copy(source=c, destination=C[bx * 128 : +128, :])
"""

AFTER = """\
@stage("traced")
def product(A: float16[4096, 256], B: float16[256, 128], C: float16[4096, 128]):
    with kernel(blocks={bx: 32}, threads={tx: 384, ty: 1, tz: 1}, specialized=True):
        a_ring = shared(float16[3, 128, 64])
        b_ring = shared(float16[3, 64, 128])
        channel(
            "loads",
            a_ring,
            b_ring,
            stages=3,
            writers=("producer",),
            readers=("consumer",),
            scope="block",
        )
        with roles():
            with role("consumer", warps=8, registers=232):
                c = fragment(float32[128, 128])
                fill(destination=c, value=float32(0.0))
                for i in range(4):
                    receive("loads", i)
                    gemm(a=a_ring[i % 3, :, :], b=b_ring[i % 3, :, :], c=c)
                    release("loads", i)
                copy(source=c, destination=C[bx * 128 : +128, :])
            with role("producer", warps=4, registers=40):
                for i in range(4):
                    acquire("loads", i)
                    copy(source=A[bx * 128 : +128, i * 64 : +64], destination=a_ring[i % 3, :, :])
                    copy(source=B[i * 64 : +64, :], destination=b_ring[i % 3, :, :])
                    publish("loads", i)
"""


changed = partial(changed_text, BEFORE)


def test_before_and_after() -> None:
    assert made(specialize_warps, BEFORE) == AFTER


SCALED = changed(
    ("C: float16[4096, 128])", "C: float16[4096, 128], scales: float32[128])"),
    ("        c = fragment", "        factors = shared(float32[1, 128])\n        c = fragment"),
    ("        fill(", "        copy(source=scales, destination=factors)\n        fill("),
    (
        "        copy(source=c",
        "        for i, j in parallel(128, 128):\n            c[i, j] = c[i, j] * factors[0, j]\n        copy(source=c",
    ),
)
"""A tile is filled ahead of the loop and read behind it."""


def test_what_is_read_behind_a_loop_is_brought_behind_its_loads() -> None:
    """So that no warps that compute wait for it, or for one another, and that no ring waits for its slot."""
    text = made(specialize_warps, SCALED)
    consumer, producer = text.split('with role("producer"')
    assert consumer.index('receive("factors_loads", 0)') > consumer.index('release("a_loads"')
    loads, behind = producer.split('publish("a_loads", i)')
    assert "factors" not in loads and "copy(source=scales" in behind and "copy(source=scales" not in consumer


def test_what_no_copy_brings_stays_with_those_who_compute() -> None:
    """Numbers of another type are converted on their way: the loads of the loop are divided all the same."""
    text = made(specialize_warps, changed_text(SCALED, ("scales: float32[128]", "scales: float16[128]")))
    consumer, producer = text.split('with role("producer"')
    assert "copy(source=scales" in consumer and "scales" not in producer and "copy(source=A" in producer


def test_the_schedule_says_how_many_slots() -> None:
    text = made(specialize_warps, BEFORE, machine(schedule=Schedule(num_stages=4)))
    assert "a_ring = shared(float16[4, 128, 64])" in text and "stages=4" in text


def test_slots_are_counted_from_the_first_iteration_on() -> None:
    text = made(specialize_warps, changed(("pipelined(4, ", "pipelined(1, 4, ")))
    assert 'acquire("loads", i - 1)' in text and "a_ring[(i - 1) % 3, :, :]" in text and "i * 64 : +64" in text


def test_a_condition_makes_both_roles_count() -> None:
    """Iterations of which some load nothing: the loop's variable is no number of the slot any more."""
    text = made(
        specialize_warps,
        changed(
            ("C: float16[4096, 128])", "C: float16[4096, 128], kept: int32[4])"),
            (
                "            copy(source=A[bx * 128 : +128, i * 64 : +64], destination=a)\n"
                "            copy(source=B[i * 64 : +64, :], destination=b)\n"
                "            gemm(a=a, b=b, c=c)\n",
                "            if kept[i] != 0:\n"
                "                copy(source=A[bx * 128 : +128, i * 64 : +64], destination=a)\n"
                "                copy(source=B[i * 64 : +64, :], destination=b)\n"
                "                gemm(a=a, b=b, c=c)\n",
            ),
        ),
    )
    assert text.count("iterations") >= 4 and text.count("if kept[i] != 0:") == 2 and 'receive("loads", i)' not in text


COPIES = "            copy(source=A[bx * 128 : +128, i * 64 : +64], destination=a)\n            copy(source=B[i * 64 : +64, :], destination=b)\n"
REFUSED = {
    "no copy engine": (BEFORE, "sm_90", "sm_90 has no copy engine and warpgroup gemms"),
    "no room for another warpgroup": (changed(("tx: 256", "tx: 1024")), "sm_90a", "1024 threads are no warpgroups with room for one more"),
    "no whole warpgroups": (changed(("tx: 256", "tx: 192")), "sm_90a", "192 threads are no warpgroups with room for one more"),
    "waits of the author": (
        changed(("            gemm(a=a", '            wait("cp_async", pending=0)\n            gemm(a=a')), "sm_90a", "the author divides the work)"),
    "too large": (changed(("num_stages=3", "num_stages=8")), "sm_90a", "its tiles take 262272 bytes of 232448 of shared memory"),
    "no loads": (changed((COPIES, "")), "sm_90a", "it loads no tiles from global memory"),
    "no gemm on warpgroups": (
        changed(("float32[128, 128]", "float64[128, 128]"), ("float32(0.0)", "float64(0.0)")), "sm_90a", "no warpgroup instruction executes its gemm"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    before, arch, reason = REFUSED[case]
    context = machine(arch)
    assert "roles" not in made(specialize_warps, before, context)
    (said,) = context.facts[CHOICES]
    assert said.startswith(f"pipeline: one role (no producer: {reason}")
    assert not context.diagnostics


def test_an_author_who_asks_is_warned_and_one_who_forbids_is_heard() -> None:
    asking = changed(("tz: 1})", "tz: 1}, specialize=True)"))
    context = machine("sm_90")
    assert made(specialize_warps, asking, context) == BEFORE
    (warned,) = context.diagnostics
    assert warned.message.startswith("this loop has no warps of its own for its loads: sm_90 has no copy engine")
    forbidding = changed(("tz: 1})", "tz: 1}, specialize=False)"))
    assert made(specialize_warps, forbidding) == BEFORE
    assert result_of(specialize_warps, BEFORE) is not None
