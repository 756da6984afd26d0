"""`share_elements`: elements of fragments that single threads touch go through a shared tile; what needs none, and what cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_pass import result_of

from tilewright.errors import LayoutConflict
from tilewright.ir import Function, Kernel, Rewriter
from tilewright.ir.printer import print_program
from tilewright.passes.context import Context
from tilewright.passes.tile.layouts.single_elements import share_elements, single_fragments

HEAD = """\
@stage("traced")
def sums(A: float32[64], C: float32[64]):
    with kernel(blocks={bx: 1}, threads={tx: 64, ty: 1, tz: 1}):
        f = fragment(float32[64])
        total = scalar(float32[1], initial=0.0)
        copy(source=A[:], destination=f)
"""


def shared(function: Function, context: Context) -> Function:
    """Every fragment of which single threads touch elements through a shared tile, whoever holds them."""

    class Each(Rewriter):
        def visit_Kernel(self, kernel: Kernel) -> Kernel:
            return replace(kernel, body=share_elements(kernel.body, single_fragments(kernel.body)))

    return function.with_body(Each()(function.body))


def made(lines: str) -> list[str]:
    """What becomes of statements behind the copy that fills the fragment."""
    text = print_program(result_of(shared, HEAD + "".join(f"        {line}\n" for line in lines.splitlines())))
    return [line[8:] for line in text[text.index("destination=f)") :].splitlines()[1:]]


def test_a_loop_that_reads_has_the_tile_in_front_of_it() -> None:
    assert made("for i in range(64):\n    total[0] = total[0] + f[i]") == [
        "f_shared = shared(float32[64])",
        "for i in parallel(64):",
        "    f_shared[i] = f[i]",
        "for i in range(64):",
        "    total[0] = total[0] + f_shared[i]",
    ]


def test_what_is_stored_is_copied_back_once_behind() -> None:
    lines = made("for i in range(8):\n    f[i] = float32(1.0)\ncopy(source=f, destination=C)")
    assert lines[-5:] == [
        "for i in range(8):",
        "    f_shared[i] = 1.0",
        "for i in parallel(64):",
        "    f[i] = f_shared[i]",
        "copy(source=f, destination=C)",
    ]


def test_all_have_read_when_one_stores() -> None:
    """The value has a name in front of the store: threads that come later would read what the first one stored."""
    lines = made("f[3] = f[3] + float32(1.0)")
    named = next(place for place, line in enumerate(lines) if "element" in line and "f_shared[3]" in line)
    assert any(line.endswith("f_shared[3] = element") for line in lines[named:])


def test_work_of_the_block_within_a_loop_keeps_the_tile_within_it() -> None:
    lines = made("for i in range(8):\n    total[0] = total[0] + f[i]\n    fill(destination=f, value=float32(2.0))")
    assert lines[0] == "for i in range(8):"
    assert lines[1:4] == [
        "    f_shared = shared(float32[64])",
        "    for i_1 in parallel(64):",
        "        f_shared[i_1] = f[i_1]",
    ]


def test_a_bound_has_a_name_in_front_of_a_loop_with_work_of_the_block() -> None:
    lines = made("if f[0] > float32(0.0):\n    fill(destination=f, value=float32(2.0))")
    assert lines[-2:] == ["if condition:", "    fill(destination=f, value=float32(2.0))"]
    assert any("condition: bool = f_shared[0] > " in line for line in lines)


@pytest.mark.parametrize("lines", [
    "copy(source=f, destination=C)",
    "for i in parallel(64):\n    C[i] = f[i]",
    "total[0] = A[3]",
])  # fmt: skip
def test_the_blocks_own_work_needs_none(lines: str) -> None:
    assert made(lines) == lines.splitlines()


def test_a_condition_that_its_loop_changes_is_refused() -> None:
    with pytest.raises(LayoutConflict, match="the condition of this loop reads a fragment that the loop changes"):
        made("while f[0] > float32(0.0):\n    fill(destination=f, value=float32(0.0))")
