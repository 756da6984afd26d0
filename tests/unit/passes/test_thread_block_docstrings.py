"""Passes for blocks of many threads do what the fragments in their docstrings show, set into a kernel."""

import importlib
import inspect
import re
import textwrap

import pytest

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.ir.walking import kernels
from tilewright.passes.context import Context
from tilewright.passes.thread.plan_shared_memory import plan_shared_memory
from tilewright.targets.cuda.arch import arch

KERNEL = "    with kernel(blocks={m: 1}, threads={tx: THREADS, ty: 1, tz: 1}):\n"
AROUND = {
    "tile.copies.select_copies": (
        '@stage("traced")\ndef f(A: float16[M, 32], k: int32, *, M: int32):\n',
        ["tile = shared(float16[64, 32])"],
    ),
    "tile.pipelines.inject_pipeline": (
        '@stage("traced")\ndef f(A: float16[64, N], K: int32, *, N: int32):\n',
        ["a = shared(float16[64, 32])", "b = shared(float16[32, 64])", "c = fragment(float32[64, 64])"],
    ),
    "tile.gemms.promote_sums": (
        '@stage("traced")\ndef f(A_scales: float32[8, 1024], B_scales: float32[4, 8], k: int32, row: int32, column: int32):\n',
        [
            "a = shared(float8_e4m3fn[128, 128])",
            "b = shared(float8_e4m3fn[128, 128])",
            "total = fragment(float32[128, 128])",
        ],
    ),
    "tile.words.unify_locals": (
        '@stage("traced")\ndef f(A: float32[M, 128], starts: int32[8], k: int32, *, M: int32):\n',
        ["tile = shared(float32[64, 128])"],
    ),
    "tile.pipelines.join_branches": (
        '@stage("traced")\ndef f(K: float32[M, 128], first: int32, rows: int32, *, M: int32):\n',
        ["tile = shared(float32[64, 128])"],
    ),
    "thread.plan_shared_memory": ('@stage("final")\ndef f(A: float32[1024]):\n', []),
    "thread.check_registers": ('@stage("final")\ndef f(A: float32[1]):\n', []),
}
"""For each pass what stands around its example: the head of the program, and tiles declared in it."""


def example(name, word):
    module = importlib.import_module(f"tilewright.passes.{name}")
    found = re.search(
        rf"^[^\n]*{word}[^\n]*::\n\n((?:    .*\n|\n)+)", (inspect.getdoc(module) or "") + "\n", re.MULTILINE
    )
    assert found, f"{name} shows no {word}"
    return textwrap.dedent(found[1]).strip("\n").splitlines()


def program(name):
    head, tiles = AROUND[name]
    lines = [*tiles, *example(name, "Before")]
    return parse(head + KERNEL.replace("THREADS", "128") + textwrap.indent("\n".join(lines), " " * 8) + "\n")


def body(text, declared):
    """The statements of a printed kernel, without the declarations that stand around the example."""
    lines = [line for line in text.rstrip().splitlines() if line.startswith(" " * 8)]
    own = [line[8:] for line in lines if line.strip() not in declared]
    return own[
        next(position for position, line in enumerate(own) if not re.match(r"(blocks|threads|shared_\w+)=", line)) :
    ]


@pytest.mark.parametrize("name", AROUND)
def test_the_example_is_what_the_pass_does(name):
    before = program(name)
    verify(before)
    run = getattr(importlib.import_module(f"tilewright.passes.{name}"), name.rpartition(".")[2])
    after = run(before, Context(arch({"arch": "sm_80"})))
    verify(after)
    assert body(print_program(after), AROUND[name][1]) == example(name, "After")


def test_attributes_of_a_plan_are_those_of_the_example():
    planned = plan_shared_memory(program("thread.plan_shared_memory"), Context(arch({"arch": "sm_80"})))
    (kernel,) = kernels(planned)
    assert (kernel.attribute("shared_offsets"), kernel.attribute("shared_bytes")) == ((0, 4096, 0), 8192)
    text = print_program(planned)
    assert print_program(parse(text)) == text
