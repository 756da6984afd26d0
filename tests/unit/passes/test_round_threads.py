"""Blocks of fewer threads than a wave has lanes get whole waves where they multiply matrices, and nobody counts threads."""

from __future__ import annotations

import pytest
from one_pass import changed_text, made

from tilewright.passes.context import Context, Schedule
from tilewright.passes.tile.words.round_threads import round_threads
from tilewright.targets.hip.arch import named

PROGRAM = """\
@stage("traced")
def f(A: float16[32, 32], C: float32[32, 32]):
    with kernel(blocks={bx: 1}, threads={tx: 48, ty: 1, tz: 1}):
        a = shared(float16[32, 32])
        c = fragment(float32[32, 32])
        copy(source=A, destination=a)
        gemm(a=a, b=a, c=c, transpose_b=True, clear=True)
        copy(source=c, destination=C)
"""


def on(architecture: str) -> Context:
    return Context(named(architecture), Schedule())


@pytest.mark.parametrize(("architecture", "threads"), [("gfx942", 64), ("gfx1100", 64), ("gfx1201", 64)])
def test_threads_are_whole_waves(architecture: str, threads: int) -> None:
    assert f"tx: {threads}," in made(round_threads, PROGRAM, on(architecture))


@pytest.mark.parametrize(
    ("why", "old", "new"),
    [
        ("whole already", "tx: 48", "tx: 64"),
        ("the author counts threads", "        copy(source=A, destination=a)\n", "        if tx < 7:\n            copy(source=A, destination=a)\n"),
        ("two dimensions", "tx: 48, ty: 1", "tx: 16, ty: 3"),
        ("no instruction takes them", "float16", "float8_e8m0fnu"),
    ],
)  # fmt: skip
def test_what_keeps_its_threads(why: str, old: str, new: str) -> None:
    text = changed_text(PROGRAM, (old, new))
    assert made(round_threads, text, on("gfx942")) == text, why
