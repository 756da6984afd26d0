"""`open_branches`: which loads under conditions may be ahead of what they serve, and which may not."""

from __future__ import annotations

import pytest

from tilewright.ir import Pipelined, Statement, find, kernels, touched
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.ops import Copy
from tilewright.passes.tile.pipelines.open_branches import open_branches

HEAD = """\
@stage("traced")
def chosen(A: float16[640, 64], mask: int32[10], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        a = shared(float16[64, 64])
        kept = shared(int32[10])
        sums = fragment(float32[64])
        count = scalar(int32[1], initial=0)
        for k in pipelined(10, num_stages=2):
"""
LOAD = "copy(source=A[k * 64 : +64, :], destination=a)"


def opened(lines: str) -> list[tuple[str, int]]:
    """Names of the statements, and under how many conditions each stands by itself."""
    program = parse(HEAD + "".join(f"            {line}\n" for line in lines.splitlines()))
    verify(program)
    (kernel,) = kernels(program)
    (loop,) = find(kernel.body, Pipelined)
    written = {buffer for one in loop.body.statements for buffer in touched(one).writes}
    found = open_branches(loop, written, kernel.thread_vars, _loads)
    assert print_program(program)
    return [(type(one).__name__, len(conditions)) for one, conditions in found]


def _loads(statement: Statement) -> bool:
    return isinstance(statement, Copy) and statement.source.buffer.scope == "global"


def test_each_statement_gets_the_condition_for_itself() -> None:
    assert opened(f"if mask[k] != 0:\n    {LOAD}\n    fill(destination=sums, value=float32(0.0))") == [
        ("Copy", 1),
        ("Fill", 1),
    ]
    assert opened(f"if mask[k] != 0:\n    if k > 2:\n        {LOAD}") == [("Copy", 2)]
    assert opened(f"chosen_now: int32 = mask[k]\nif chosen_now != 0:\n    {LOAD}") == [("Let", 0), ("Copy", 1)]
    assert opened(f"if kept[k] != 0:\n    {LOAD}") == [("Copy", 1)]


REFUSED = {
    "no load is in it": "if mask[k] != 0:\n    fill(destination=sums, value=float32(0.0))",
    "the other way is not known to be empty": f"if mask[k] != 0:\n    {LOAD}\nelse:\n    fill(destination=sums, value=float32(0.0))",
    "threads answer differently": f"if tx < 64:\n    {LOAD}",
    "each thread has its own": f"if sums[0] > float32(0.0):\n    {LOAD}",
    "a tile of its own is declared": f"if mask[k] != 0:\n    own = shared(float16[64, 64])\n    {LOAD}",
}


@pytest.mark.parametrize("case", REFUSED)
def test_others_stay_whole(case: str) -> None:
    assert opened(REFUSED[case]) == [("If", 0)]


@pytest.mark.parametrize("lines", [
    f"if count[0] > 2:\n    {LOAD}\ncount[0] = count[0] + 1",
    f"now: int32 = count[0]\nif now > 2:\n    {LOAD}\ncount[0] = count[0] + 1",
    f"if mask[k] != 0:\n    now: int32 = count[0]\n    {LOAD}\ncount[0] = count[0] + 1",
])  # fmt: skip
def test_a_condition_on_what_the_loop_changes_cannot_be_asked_before(lines: str) -> None:
    assert ("If", 0) in opened(lines) and not any(conditions for _, conditions in opened(lines))
