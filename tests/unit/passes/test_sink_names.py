"""`sink_names` as a pass: names move behind a loop of products that does not need them, in front of the wait for the last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_pass import changed_text, machine

from tilewright.ir import Call, Function, Rewriter
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.passes.thread.sink_names import sink_names

BEFORE = """\
@stage("threaded")
def tiles(A: float32[4096], iterations: int32, rows: int32):
    with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
        full = barrier(uint64[2])
        for iteration in range(iterations):
            across: int32 = iteration // rows
            inside: int32 = iteration - across * rows
            assume(inside >= 0)
            for step in range(24):
                signal_wait(full[step % 2 : +1], uint32(step) // 2 & 1, dtype=bool)
            cluster_wait(dtype=bool)
            A[across * 64 + inside] = 1.0
"""


class _Called(Rewriter):
    """Texts of programs have no word for the machine's wait: another one stands for it."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Call(self, call: Call) -> Call:
        return replace(call, function=self.new) if call.function == self.old else call


def late(text: str) -> str:
    program = parse(text)
    assert print_program(program) == text
    waiting = program.with_body(_Called("cluster_wait", "gmma_wait")(program.body))
    made: Function = sink_names(waiting, machine())
    return print_program(made.with_body(_Called("gmma_wait", "cluster_wait")(made.body)))


NAMES = """\
            across: int32 = iteration // rows
            inside: int32 = iteration - across * rows
            assume(inside >= 0)
"""

LOOP = """\
            for step in range(24):
                signal_wait(full[step % 2 : +1], uint32(step) // 2 & 1, dtype=bool)
"""


def test_names_stand_behind_the_loop_and_before_the_wait() -> None:
    assert late(BEFORE) == changed_text(BEFORE, (NAMES + LOOP, LOOP + NAMES))


@pytest.mark.parametrize(
    "why, change",
    [
        ("the loop needs a name", ("signal_wait(full[step % 2 : +1]", "signal_wait(full[(inside + step) % 2 : +1]")),
        ("nothing runs behind the loop", ("            cluster_wait(dtype=bool)\n", "")),
        ("the wait stands in front of the loop", ("            across: int32", "            cluster_wait(dtype=bool)\n            across: int32")),
    ],
)  # fmt: skip
def test_names_stay(why: str, change: tuple[str, str]) -> None:
    text = changed_text(BEFORE, change)
    if "in front" in why:
        text = changed_text(text, (LOOP + "            cluster_wait(dtype=bool)\n", LOOP))
    assert late(text) == text, why


def test_what_is_read_from_memory_stays() -> None:
    text = changed_text(
        BEFORE, ("inside: int32 = iteration - across * rows", "inside: int32 = int32(A[iteration]) - across * rows")
    )
    fact = "            assume(inside >= 0)\n"
    assert late(text) == changed_text(text, (fact + LOOP, LOOP + fact))  # the loop might change what is read
