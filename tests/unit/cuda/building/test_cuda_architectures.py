"""Every program of the repository becomes machine code for every architecture."""

import random
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "emulator"))

from repository_programs import ALL

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120", "sm_120a")
FORMS = [
    (program, architecture)
    for program in ALL
    for architecture in ARCHITECTURES
    if program.architectures != ("sm_90a",) or architecture == "sm_90a"
]
NAMES = [f"{program.name}-{architecture}" for program, architecture in FORMS]


def check(program, architecture):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
        kernel = kernel.variant(*arguments)
        assert f".target {architecture}" in kernel.ptx()
    assert all(use["registers"] > 0 for use in kernel.resources().values())


@pytest.mark.parametrize("number", random.Random(1).sample(range(len(FORMS)), 8), ids=lambda number: NAMES[number])
def test_a_sample_is_compiled(number):
    check(*FORMS[number])


@pytest.mark.proof
@pytest.mark.parametrize("program, architecture", FORMS, ids=NAMES)
def test_all_are_compiled(program, architecture):
    check(program, architecture)
