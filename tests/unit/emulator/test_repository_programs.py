"""The emulator agrees with the interpreter on every program of the repository, and reports nothing, under any schedule."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import random
import warnings

import pytest
from repository_programs import ALL, CPU_ONLY, LIBRARY, Program, differences, run

import tilewright.kernels
from tilewright.specialization import JITFactory, JITFunction

FORMS = [(program, architecture) for program in ALL for architecture in program.architectures]
NAMES = [f"{program.name}-{architecture}" for program, architecture in FORMS]
MULTIPLIER = 0x9E3779B97F4A7C15
"""What seeds are multiplied with to poison memory differently each time."""


def check(program: Program, architecture: str, schedules: list[tuple[str, int]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
    expected = run(kernel.interpret, arguments)
    for schedule, seed in schedules:
        found = run(kernel.emulate, arguments, schedule=schedule, seed=seed, poison=seed * MULTIPLIER % 2**64)
        assert not (problems := differences(found, expected, program.bound)), f"{schedule} {seed}: {problems}"


@pytest.mark.parametrize("number", random.Random(10).sample(range(len(FORMS)), 14), ids=lambda number: NAMES[number])
def test_a_sample_agrees_with_the_interpreter(number: int) -> None:
    check(*FORMS[number], [("late", 0), ("early", 1), ("random", 2)])


def test_all_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof and the GPU's tests, which nobody runs often, find no program that its kernel's options have left behind."""

    class Traced(Exception):
        pass

    def stop(*_: object) -> None:
        raise Traced  # what follows takes long and shows no more

    monkeypatch.setattr("tilewright.runtime.kernel.lowered", stop)
    for program in ALL:
        with contextlib.suppress(Traced):  # kernels that another test had made are not lowered again
            program.make(program.architectures[0])


@pytest.mark.proof
@pytest.mark.parametrize("program, architecture", FORMS, ids=NAMES)
def test_all_agree_under_fifty_random_schedules(program: Program, architecture: str) -> None:
    check(
        program,
        architecture,
        [("late", 0), ("late", 1), ("early", 0), ("early", 1), *(("random", seed) for seed in range(50))],
    )


def test_every_kernel_of_the_library_is_registered() -> None:
    found = {
        name
        for module in pkgutil.iter_modules(tilewright.kernels.__path__)
        for name, value in vars(importlib.import_module(f"tilewright.kernels.{module.name}")).items()
        if isinstance(value, (JITFunction, JITFactory))
    }
    registered = {program.name.split(" ")[0] for program in LIBRARY}
    assert found <= registered | CPU_ONLY, found - registered - CPU_ONLY
