"""Programs of many kinds as their authors write them: interpreted, on this machine, emulated under every schedule, assembled."""

import re

import pytest
from familiar_kinds import PROGRAMS

import tilewright
from tilewright.targets.cuda.compiler import compile_text

QUICK = ("rows, both ways", "rows, a list with gaps", "convolution", "expert in a scalar")
"""Programs of every run; the others are long proofs."""

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.proof) for name in PROGRAMS]
SCHEDULES = (("late", 0), ("early", 1), ("random", 2))
POISON = 0x9E3779B97F4A7C15


@pytest.mark.filterwarnings("ignore::tilewright.errors.TilewrightWarning")
@pytest.mark.parametrize("name", NAMES)
def test_on_this_machine(name):
    program = PROGRAMS[name]()
    kernel = tilewright.compile(program.function, target="cpu")
    for run in (kernel.interpret, kernel):
        arguments = program.fresh()
        run(*arguments)
        assert not program.mistakes(arguments)


@pytest.mark.filterwarnings("ignore::tilewright.errors.TilewrightWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_emulated(name, architecture):
    program = PROGRAMS[name]()
    kernel = tilewright.compile(program.function, target=f"cuda -arch={architecture}")
    for schedule, seed in SCHEDULES:
        arguments = program.fresh()
        kernel.emulate(*arguments, schedule=schedule, seed=seed, poison=POISON * (seed + 1) % 2**64)
        assert not program.mistakes(arguments), schedule
    text = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
    assert not re.search(r"\b(LDL|STL)\b", text)
    assert architecture == "sm_80" or all(name in text for name in program.instructions), kernel.explain()
