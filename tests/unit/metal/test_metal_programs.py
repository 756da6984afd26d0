"""The repository's programs as Metal text in the emulator, against the interpreter; what Metal has no words for is refused and listed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from repository_programs import ALL, Program, differences, run

from tilewright.errors import TilewrightError

ROUNDING = 2e-6
"""What sums in another order than the interpreter's may differ by, relative to the largest result."""

REFUSED = {
    "no asynchronous instruction": "products of warpgroups",
    "no ring buffers between warps": "warps of several tasks that hand slots to one another",
    "has no clusters": "clusters of blocks",
    "has no named barriers": "barriers of some warps",
    "shared tiles": "more than 32 KB of threadgroup memory",
}
"""Why a program may be refused: what the message holds, and what that is."""

PORTABLE = [one for one in ALL if "sm_80" in one.architectures]


@pytest.mark.parametrize("program", PORTABLE, ids=lambda program: program.name)
def test_programs_of_every_machine_run_on_metal(program: Program) -> None:
    kernel, arguments = program.make("apple7")
    expected, found = run(kernel.interpret, arguments), run(kernel.emulate, arguments)
    assert not differences(found, expected, max(program.bound, ROUNDING))


@pytest.mark.proof
@pytest.mark.parametrize("program", [one for one in ALL if one not in PORTABLE], ids=lambda program: program.name)
def test_programs_of_hopper_run_or_are_refused_with_a_sentence(program: Program) -> None:
    try:
        kernel, arguments = program.make("apple7")
    except TilewrightError as error:
        assert any(words in str(error) for words in REFUSED), error
        return
    expected, found = run(kernel.interpret, arguments), run(kernel.emulate, arguments)
    assert not differences(found, expected, max(program.bound, ROUNDING))
