"""Whole programs of TileLang's kind (`tests/programs`), as their authors would write them, with ``import tilelang`` answered by tilewright."""

import subprocess
import sys
from pathlib import Path

import pytest
from busy import PATIENCE

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.py"))
OF_A_GPU = [path for path in PROGRAMS if "REAL_SIZES" in path.read_text()]
"""Programs that are compiled for sizes of models, too, and that a processor runs slowly or, for want of warps, not at all."""


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one not in OF_A_GPU], ids=lambda path: path.stem)
def test_a_program_runs_as_it_is(program):
    run("-m", "tilewright.compat.tilelang", str(program))


@pytest.mark.parametrize("program", OF_A_GPU, ids=lambda path: path.stem)
def test_a_program_of_a_gpu_runs_emulated(program):
    run(str(Path(__file__).parent / "emulated_program.py"), str(program))


@pytest.mark.proof
@pytest.mark.parametrize("program", OF_A_GPU, ids=lambda path: path.stem)
def test_its_kernels_compile_for_real_sizes(program):
    run(str(Path(__file__).parent / "emulated_program.py"), str(program), "--real-sizes")


def run(*arguments):
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
