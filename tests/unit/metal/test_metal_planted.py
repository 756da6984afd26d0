"""Faults planted in programs for Apple's machines are found, as those in programs for NVIDIA's and AMD's are."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from planted_faults import in_child
from planted_programs import judge, prepare
from repository_programs import ALL

PROGRAMS = {program.name: program for program in ALL}
NAMES = ["gemm float16 nt", "gemm in one slot", "planned", "softmax_of_long_rows", "flash_attention"]


def hunted(name: str, most: int) -> Counter[str]:
    """What becomes of so many faults of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = prepare(PROGRAMS[name], "apple7", most)
        return Counter(in_child(judge, one, site, 3)[0] for site in one.sites)


def test_a_sample_of_faults_is_found() -> None:
    counts = hunted("planned", 12)
    assert counts["missed"] == counts["crashed"] == 0 and counts["reported"] + counts["wrong"] > 5, counts


@pytest.mark.proof
@pytest.mark.parametrize("name", NAMES)
def test_faults_are_found(name: str) -> None:
    counts = hunted(name, 50)
    # A wild index of a fragment ends the run: Metal's fragments are plain arrays, which the emulator does not bound.
    found = counts["reported"] + counts["wrong"] + counts["hung"] + counts["crashed"]
    assert found >= 0.97 * (found + counts["missed"]), counts
