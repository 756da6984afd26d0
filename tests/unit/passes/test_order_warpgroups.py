"""`order_warpgroups` as a pass: two warpgroups that work long on their products start them one after the other; who does not, needs none."""

from __future__ import annotations

import pytest

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.tile.layouts.plan_synchronization import plan_synchronization
from tilewright.passes.tile.roles.order_warpgroups import order_warpgroups
from tilewright.targets.cuda.arch import arch

BEFORE = """\
@stage("traced")
def scores(K: float16[6400, 64], O: float32[128, 64], steps: int32):
    with kernel(blocks={bx: 1}, threads={tx: 384, ty: 1, tz: 1}, specialized=True):
        keys = shared(float16[2, 64, 64])
        q = shared(float16[128, 64])
        channel("keys", keys, stages=2, writers=("loader",), readers=("worker",), scope="block")
        with roles():
            with role("loader", warps=4):
                for k in range(steps):
                    acquire("keys", k)
                    copy(source=K[k * 64 : +64, :], destination=keys[k % 2, :, :], prefer="tma")
                    publish("keys", k)
            with role("worker", warps=8):
                s = fragment(float32[128, 64])
                most = fragment(float32[128])
                total = fragment(float32[128])
                for k in range(steps):
                    receive("keys", k)
                    gemm(token="wgmma", a=q, b=keys[k % 2, :, :], c=s, transpose_b=True, clear=True)
                    commit("wgmma")
                    wait("wgmma", pending=0)
                    release("keys", k)
                    reduce(source=s, destination=most, kind="max")
                    for i, j in parallel(128, 64):
                        s[i, j] = exp(s[i, j] - most[i])
                    reduce(source=s, destination=total, kind="sum")
"""

AFTER = (
    BEFORE.replace(
        "                    gemm(", "                    take_turn(k == 0)\n                    gemm("
    ).replace(
        '                    wait("wgmma"',
        '                    pass_turn(dtype=bool)\n                    wait("wgmma"',
    )
    + "                if 0 < steps:\n                    end_turns(dtype=bool)\n"
)


def made(text: str) -> str:
    program = parse(text)
    verify(program)
    assert print_program(program) == text
    result = order_warpgroups(program, Context(arch({"arch": "sm_90a"})))
    verify(result)
    return print_program(result)


def test_before_and_after() -> None:
    assert made(BEFORE) == AFTER


SUM = '                    reduce(source=s, destination=total, kind="sum")\n'
REFUSED = {
    "one warpgroup has nobody to take turns with": BEFORE.replace('"worker", warps=8', '"worker", warps=4').replace(
        "tx: 384", "tx: 256"
    ),
    "too little is done with the products": BEFORE.replace(SUM, ""),
    "the author's roles are the author's to order": BEFORE.replace(", specialized=True", ""),
    "turns are counted by one": BEFORE.replace("range(steps):\n                    receive", "range(0, steps, 2):\n                    receive"),
    "all meet before a product starts, so that products start together anyway": BEFORE.replace(
        "                    gemm(", "                    sync_threads(dtype=bool)\n                    gemm("
    ),
    "all meet within a turn: the second waits for its turn, the first for the second": BEFORE.replace(
        "                    commit(", "                    sync_threads(dtype=bool)\n                    commit("
    ),
    "nobody waits for the products in their iteration": BEFORE.replace("pending=0", "pending=1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    assert REFUSED[case] != BEFORE
    assert made(REFUSED[case]) == REFUSED[case]


def test_where_tiles_are_handed_over_between_products_there_are_no_turns() -> None:
    """The weights that all warpgroups wrote are read by the next product: the barrier between is planned before turns are."""
    handed = (
        BEFORE.replace(
            "                    wait(",
            """\
                    wait("wgmma", pending=0)
                    copy(source=s, destination=weights)
                    gemm(token="wgmma", a=weights, b=keys[k % 2, :, :], c=result)
                    commit("wgmma")
                    wait(""",
        )
        .replace("        q = shared", "        weights = shared(float16[128, 64])\n        q = shared")
        .replace(
            "                s = frag", "                result = fragment(float32[128, 64])\n                s = frag"
        )
    )
    context = Context(arch({"arch": "sm_90a"}))
    planned = plan_synchronization(parse(handed), context)
    assert "sync_threads" in print_program(planned) and "take_turn" in print_program(
        order_warpgroups(parse(handed), context)
    )
    assert order_warpgroups(planned, context) is planned
