"""Every pass shows a small program before and after in its docstring; here those examples are run."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.pipeline import PIPELINE
from tilewright.targets.cpu.target import CPU
from tilewright.testing.kinds import find_pass, machine

PASSES = Path(__file__).resolve().parents[3] / "tilewright" / "passes"
KERNEL = "with kernel(blocks={block: 4, m: 4, n: 4}, threads={tx: 128, ty: 1, tz: 1}):"

SURROUNDINGS = {
    "forward_operands": """
        @stage("traced")
        def f(A: int8[M, 512], W: tensor(uint4[256, 512], packed=True), *, M: int32):
            KERNEL
                a = shared(int8[16, 128])
                w = shared(uint8[64, 128])
                c = fragment(int32[16, 64])
                for k in range(4):
                    BODY
    """,
    "lower_tiles": """
        @stage("traced")
        def f(A: float32[64]):
            KERNEL
                tile = shared(float32[64])
                BODY
    """,
    "lower_threads": """
        @stage("lowered")
        def f(A: float32[128], B: float32[128]):
            KERNEL
                tile = shared(float32[128])
                BODY
    """,
    "lower_parallel": """
        @stage("lowered")
        def f(A: float32[32, 64], B: float32[64], C: float32[32, 64]):
            KERNEL
                BODY
    """,
    "guard_bounds": """
        @stage("threaded")
        def f(A: float32[M], *, M: int32):
            KERNEL
                tile = shared(float32[64])
                BODY
    """,
    "flatten_buffers": """
        @stage("threaded")
        def f(A: float32[64, 100]):
            KERNEL
                tile = register(float32[8, 16])
                for i in range(8):
                    for j in range(16):
                        BODY
    """,
    "unroll_loops": """
        @stage("final")
        def f(A: float32[32]):
            KERNEL
                sums = register(float32[32])
                BODY
    """,
    "vectorize_accesses": """
        @stage("final")
        def f(A: float32[100], B: float32[1], C: float32[100]):
            KERNEL
                BODY
    """,
}
"""What stands around the example in a pass's docstring."""

MACHINE = {"target": "cpu", "arch": "avx512-vnni"}

IN_PANELS = {"plan_operand_layouts", "apply_operand_layouts", "apply_packed_layouts"}
"""Passes whose examples speak of layouts that a program's text does not show; `tests/unit/cpu` runs them."""


def example(name: str, word: str) -> str:
    """The block of code behind ``Before`` or ``After`` in a pass's module docstring."""
    (module,) = PASSES.glob(f"*/{name}.py")
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    found = re.search(rf"^{word}[^\n]*::\n\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    assert found, f"{module.name}: its docstring has no `{word}::` with a program behind it"
    return textwrap.dedent(found[1]).strip("\n")


def program(name: str, body: str) -> str:
    """The example with its surroundings."""
    text = textwrap.dedent(SURROUNDINGS[name]).strip().replace("KERNEL", KERNEL)
    margin = re.search(r"^( *)BODY", text, re.MULTILINE)
    assert margin
    return text.replace(margin[0], textwrap.indent(body, margin[1])) + "\n"


def statements(text: str, name: str) -> Iterator[str]:
    """The lines of a program that are neither its surroundings nor declarations of their tiles, without comments."""
    surroundings = program(name, "pass").splitlines()
    depth = len(re.match(" *", surroundings[-1])[0])  # type: ignore[index]
    tiles = re.findall(r"^ *(\w+) = ", SURROUNDINGS[name], re.MULTILINE)
    for line in text.splitlines():
        declared = re.match(r" *(\w+) = ", line)
        if len(line) - len(line.lstrip()) >= depth and not (declared and declared[1] in tiles):
            yield re.sub(r"  +#.*", "", line[depth:])


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_docstrings_example_is_what_the_pass_does(name: str) -> None:
    function = parse(program(name, example(name, "Before")))
    verify(function)
    made = find_pass(name)(function, Context(machine(MACHINE), overrides=CPU.overrides))
    verify(made)
    outcome = "\n".join(statements(print_program(made), name))
    assert outcome == "\n".join(statements(program(name, example(name, "After")), name))


def test_every_pass_for_processors_is_here() -> None:
    processor = Context(machine({}))
    names = {step.name for step in PIPELINE if step.when is None or step.when(processor)}
    assert names <= set(SURROUNDINGS) | IN_PANELS
