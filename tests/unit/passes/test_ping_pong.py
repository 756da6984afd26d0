"""What `persist_grid` makes of a consumer and a producer where two consumers shall alternate, and where `order_warpgroups` puts the turns."""

from __future__ import annotations

import pytest

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import CHOICES, Context, Schedule
from tilewright.passes.tile.grids.persist_grid import persist_grid
from tilewright.passes.tile.roles.order_warpgroups import order_warpgroups
from tilewright.targets.cuda.arch import arch

BEFORE = """\
@stage("traced")
def product(A: float16[320, 192], C: float32[320, 64]):
    with kernel(blocks={by: 5}, threads={tx: 256, ty: 1, tz: 1}, specialized=True):
        ring = shared(float16[2, 64, 64])
        results = shared(float32[64, 64])
        channel(
            "loads",
            ring,
            stages=2,
            writers=("producer",),
            readers=("consumer",),
            scope="block",
        )
        with roles():
            with role("consumer", warps=4):
                c = fragment(float32[64, 64])
                fill(destination=c, value=float32(0.0))
                for k in range(3):
                    receive("loads", k)
                    gemm(a=ring[k % 2, :, :], b=ring[k % 2, :, :], c=c, transpose_b=True)
                    release("loads", k)
                copy(source=c, destination=results)
                copy(source=results, destination=C[by * 64 : +64, :])
            with role("producer", warps=4):
                for k in range(3):
                    acquire("loads", k)
                    copy(source=A[by * 64 : +64, k * 64 : +64], destination=ring[k % 2, :, :])
                    publish("loads", k)
"""

CONSUMER = """\
            with role("consumer", warps=4, registers=232, instances=2, index=consumer):
                results = shared(float32[64, 64])
                iterations: int32 = (5 - block + 1) // 2
                for iteration in range(iterations):
                    tile: int32 = iteration * 2 + block
                    if iteration % 2 == consumer:
                        take_turn(iteration == 0)
"""

ENDING = """\
                        copy(source=c, destination=results)
                        copy(source=results, destination=C[by * 64 : +64, :])
                        pass_turn(dtype=bool)
                if iterations > 0 and iterations % 2 == consumer:
                    take_turn(False)
"""

TAKEN = """\
                        take_turn(iteration == 0)
                        for k in range(3):
"""

PASSED = """\
                            release("loads", iteration * 3 + k)
                        pass_turn(dtype=bool)
                        copy(source=c, destination=results)
"""


@pytest.mark.parametrize("ping_pong", [False, True])
def test_who_asks_is_told_whether_consumers_alternate(ping_pong: bool) -> None:
    context = Context(arch({"arch": "sm_90a", "cores": 2}), Schedule(persistent=True, ping_pong=ping_pong))
    verify(persist_grid(parse(BEFORE), context))
    (said,) = context.facts[CHOICES]
    assert ("ping-pong" in said) is ping_pong


def test_two_consumers_alternate() -> None:
    context = Context(arch({"arch": "sm_90a", "cores": 2}), Schedule(ping_pong=True))
    before = parse(BEFORE)
    verify(before)
    made = persist_grid(before, context)
    verify(made)
    text = print_program(made)
    assert "blocks={block: 2}, threads={tx: 384, ty: 1, tz: 1}" in text and "alternate=True" in text
    assert CONSUMER in text and ENDING in text
    # The producer goes through all tiles.
    producer = text[text.index('role("producer"') :]
    assert "iteration % 2" not in producer and "take_turn" not in producer and "registers=40" in producer
    assert print_program(parse(text)) == text
    narrowed = order_warpgroups(made, context)
    verify(narrowed)
    text = print_program(narrowed)
    assert TAKEN in text and PASSED in text and "pass_turn" not in text[text.index("destination=results") :]
    assert text.count("take_turn(iteration == 0)") == 1 and text.count("pass_turn") == 1


def test_a_turn_ends_before_what_each_consumer_receives_for_itself() -> None:
    """Factors of a tile's results, in a slot for each consumer: the other one's products begin before they are waited for."""
    scaled = (
        BEFORE.replace("C: float32[320, 64])", "C: float32[320, 64], factors: float32[320])")
        .replace("        channel(", "        held = shared(float32[1, 64])\n        channel(", 1)
        .replace(
            "        with roles():",
            '        channel("held", held, stages=1, writers=("producer",), readers=("consumer",), scope="block")\n'
            "        with roles():",
        )
        .replace(
            "                copy(source=c",
            '                receive("held", 0)\n'
            "                for i, j in parallel(64, 64):\n"
            "                    c[i, j] = c[i, j] * held[0, i]\n"
            '                release("held", 0)\n'
            "                copy(source=c",
        )
        + '                acquire("held", 0)\n'
        "                copy(source=factors[by * 64 : +64], destination=held[0, :])\n"
        '                publish("held", 0)\n'
    )
    context = Context(arch({"arch": "sm_90a", "cores": 2}), Schedule(ping_pong=True))
    text = print_program(order_warpgroups(persist_grid(parse(scaled), context), context))
    assert "held = shared(float32[2, 64])" in text
    assert text.index("pass_turn") < text.index('receive("held"') < text.index('release("held"')


def test_without_being_asked_there_is_one_consumer() -> None:
    made = print_program(
        persist_grid(parse(BEFORE), Context(arch({"arch": "sm_90a", "cores": 2}), Schedule(persistent=True)))
    )
    assert "instances" not in made and "take_turn" not in made and "blocks={block: 2}" in made


def test_consumers_that_alternate_have_a_loop_over_tiles_where_it_would_not_pay() -> None:
    """Two blocks on a multiprocessor need no loop for their own sake; two consumers have no work without one."""
    before = parse(BEFORE.replace("specialized=True", "specialized=True, min_blocks_per_sm=2"))
    machine = arch({"arch": "sm_90a", "cores": 1})
    assert persist_grid(before, Context(machine)) == before
    made = print_program(persist_grid(before, Context(machine, Schedule(ping_pong=True))))
    assert "instances=2" in made and "blocks={block: 2}" in made and "if iteration % 2 == consumer:" in made
