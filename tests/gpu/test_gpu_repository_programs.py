"""Every program of the repository, and random pipelined ones, on the GPU: what the interpreter says, the same bits in repeated runs."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("unit/emulator", "fuzz")]

from device_arrays import run_on_device  # noqa: E402
from repository_programs import ALL, Program, differences, run  # noqa: E402
from tile_fuzz import LOOPS, PIPELINES, ROWS, verdict  # noqa: E402

from tilewright.targets.cuda.arch import detect  # noqa: E402

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]
FORMS = [(program, architecture) for program in ALL for architecture in program.architectures]
REPEATS = 3


@pytest.mark.parametrize("program, architecture", FORMS, ids=[f"{program.name}-{arch}" for program, arch in FORMS])
def test_a_program(program: Program, architecture: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
        expected = run(kernel.interpret, arguments)
        found = [run_on_device(kernel, arguments) for _ in range(REPEATS)]
    for one in found:
        assert not differences(one, expected, program.bound)
        assert not differences(one, found[0], 0.0)


@pytest.mark.parametrize(
    "seed", [first + number for first in (0, PIPELINES, LOOPS, ROWS) for number in range(9000, 9020)]
)
def test_a_random_program(seed: int) -> None:
    assert verdict((seed, None, (), True)).kind in ("agrees", "refused")
