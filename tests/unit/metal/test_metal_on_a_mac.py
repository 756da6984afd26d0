"""The tests marked `metal` against stand-ins of a Mac's libraries: what fails on a Mac is then not the test itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEST = ROOT / "tests" / "metal" / "test_mac.py"


def outcome(*options: str, stand_in: bool) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TILEWRIGHT_METAL_STAND_IN", None)
    if stand_in:
        environment["TILEWRIGHT_METAL_STAND_IN"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "metal", str(TEST), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    return done.stdout.strip().split("\n")[-1]


@pytest.mark.proof
def test_without_a_mac_they_are_skipped() -> None:
    assert re.match(
        r"[0-9]+ skipped, [0-9]+ deselected", outcome("-k", "lanes or barriers or arrays or apples", stand_in=False)
    )


def test_they_run_against_stand_ins() -> None:
    chosen = "lanes or barriers or every_function or (arrays and 7) or (arrive and 150) or gemm_in_one_slot or planned"
    assert re.match(r"[0-9]+ passed, ([0-9]+ skipped, )?[0-9]+ deselected", outcome("-k", chosen, stand_in=True))


@pytest.mark.proof
def test_all_of_them_run_against_stand_ins() -> None:
    assert re.match(r"[0-9]+ passed, [0-9]+ skipped", outcome("-n", "2", stand_in=True))
