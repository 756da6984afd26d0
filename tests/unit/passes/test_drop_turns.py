"""Turns that would hold a meeting of those who take them are left out, others stay."""

from __future__ import annotations

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context, Schedule
from tilewright.passes.tile.layouts.plan_synchronization import plan_synchronization
from tilewright.passes.tile.roles.drop_turns import drop_turns
from tilewright.targets.cuda.arch import arch

PROGRAM = """\
@stage("traced")
def attention(A: float16[320, 64], steps: int32):
    with kernel(blocks={{by: 5}}, threads={{tx: 256, ty: 1, tz: 1}}, specialized=True):
        keys = shared(float16[64, 64])
        weights = shared(float16[64, 64])
        with roles():
            with role("consumer", warps=8):
                c = fragment(float32[64, 64])
                d = fragment(float32[64, 64])
                for k in range(steps):
                    take_turn(k == 0)
                    gemm(a=keys[:, :], b=keys[:, :], c=c, transpose_b=True)
{inside}                    pass_turn(dtype=bool)
                    copy(source=c, destination=weights)
                if 0 < steps:
                    end_turns(dtype=bool)
"""

MEETING = "                    gemm(a=weights, b=keys[:, :], c=d)\n"


def made(inside: str) -> str:
    context = Context(arch({"arch": "sm_90a"}), Schedule())
    program = parse(PROGRAM.format(inside=inside))
    verify(program)
    program = drop_turns(plan_synchronization(program, context), context)
    verify(program)
    return print_program(program)


def test_turns_that_hold_a_meeting_go() -> None:
    """The weights that all warpgroups wrote are read within the turn: the second would wait for it, the first for the second."""
    text = made(MEETING)
    assert "sync_threads" in text and "turn" not in text


def test_others_stay() -> None:
    text = made("")
    assert all(word in text for word in ("take_turn", "pass_turn", "end_turns"))
