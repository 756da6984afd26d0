"""Programs on machines that differ from those that are made: the interpreter's numbers, or a sentence on what is missing.

A pass that takes a fact of some machine for one of all is found where a record says otherwise: a swizzle of 64 bytes, a
copy engine of short boxes, no instruction that stores matrices.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest
from changed_machines import MACHINES, Said, changed_machine
from repository_programs import ALL, Program, differences, run

from tilewright.errors import EmulationFailed, InternalError, TilewrightError
from tilewright.machine import Arch, MatrixInstruction
from tilewright.targets.base import TARGETS

ROUNDING = 2e-6
"""What sums in another order than the interpreter's may differ by, relative to the largest result."""

ANYWHERE = [program for program in ALL if len(program.architectures) > 1]
"""Programs that are not made for one machine."""


def judged(program: Program, arch: Arch, draw: random.Random) -> str:
    """What becomes of a program: ``"refused"`` with a sentence, or ``"right"``; everything else raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel, arguments = program.make(arch.name)
        except (InternalError, EmulationFailed):
            raise
        except TilewrightError as error:
            assert str(error)
            return "refused"
        expected = run(kernel.interpret, arguments)
        order = draw.choice(("late", "early", "random"))
        found = run(kernel.emulate, arguments, schedule=order, seed=draw.randint(0, 9))
    assert not (problems := differences(found, expected, max(program.bound, ROUNDING))), (program.name, problems)
    return "right"


def put(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker has this machine in the place of the one of its name."""

    def asked(options: Mapping[str, str]) -> Arch:
        return replace(arch, cores=int(options["cores"])) if "cores" in options else arch

    monkeypatch.setitem(TARGETS, arch.target, replace(TARGETS[arch.target], arch=asked))


@pytest.mark.parametrize("seed", range(400))
def test_programs_on_changed_machines(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    arch = changed_machine(draw)
    put(arch, monkeypatch)
    program = draw.choice(ALL if arch.name == "sm_90a" or draw.random() < 0.05 else ANYWHERE)
    assert judged(program, arch, draw) in ("refused", "right")


FOUND: dict[str, Said] = {
    "no signals": {"signals": None},
    "clusters without an engine": {"copy_engine": None},
    "swizzles of 64 bytes at the most": {"spans": (64, 32)},
    "no instruction that does not wait": {
        "matrix_instructions": tuple(
            one for one in MACHINES["sm_90a"].products(MatrixInstruction) if not one.asynchronous
        )
    },
    "no instruction that stores matrices": {
        "copy_instructions": tuple(
            one for one in MACHINES["sm_90a"].copy_instructions if "stmatrix" not in one.function
        )
    },
}
"""What of Hopper was otherwise where a pass was wrong once, or asked for an instruction by the name of a generation."""


@pytest.mark.parametrize("case", FOUND)
def test_what_passes_took_for_granted(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arch = replace(MACHINES["sm_90a"], **FOUND[case])
    put(arch, monkeypatch)
    shares = "dense_matmul turned, rows and columns of clusters share"
    name = shares if case == "clusters without an engine" else "gemm with two consumers"
    program = next(one for one in ALL if one.name == name)
    assert judged(program, arch, random.Random(0)) == "right"


def test_machines_are_changed_in_everything_that_a_record_says() -> None:
    drawn = [changed_machine(random.Random(seed)) for seed in range(400)]
    kept = {"target", "name", "warp_size", "l1_bytes", "l2_bytes", "l3_bytes", "line_bytes", "untried_instructions"}
    alike = {
        name for name in Arch.__slots__ if all(getattr(one, name) == getattr(MACHINES[one.name], name) for one in drawn)
    }
    assert alike == kept
