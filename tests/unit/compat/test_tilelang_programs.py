"""Whole programs of TileLang's kind (`tests/programs`), as their authors would write them, with ``import tilelang`` answered by tilewright."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.py"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs_as_it_is(program):
    command = [sys.executable, "-W", "ignore", "-m", "tilewright.compat.tilelang", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
