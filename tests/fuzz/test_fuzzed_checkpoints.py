"""Mutated files of weights: five hundred here, twenty thousand in ``make proof``, in processes whose memory is limited."""

from __future__ import annotations

import subprocess
import sys

import checkpoint_files
import pytest

FOUND = (19, 59, 355, 569, 567, 1758, 13404, 21007, 26125)
"""Seeds that once raised what is no sentence of ours."""


def judged(first: int, last: int) -> None:
    """In another process: the damage may be such that nothing else would tell of it."""
    command = [sys.executable, checkpoint_files.__file__, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    counts = eval(done.stdout.splitlines()[-1], {})
    assert counts["read"] + counts["refused"] == last - first + 1
    assert counts["read"] > 0.1 * (last - first) and counts["refused"] > 0.4 * (
        last - first
    )  # the damages do reach the readers


def test_a_sample() -> None:
    judged(100_000, 100_499)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found(seed: int) -> None:
    assert checkpoint_files.verdict(seed) in ("read", "refused")


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, 20_000, 2_000))
def test_thousands_of_files(first: int) -> None:
    judged(first, first + 1_999)


def test_a_seed_is_the_same_case_everywhere() -> None:
    one, other = checkpoint_files.case_of(7), checkpoint_files.case_of(7)
    assert one == other


@pytest.mark.parametrize("form", sorted(checkpoint_files.seeds()))
def test_what_is_damaged_was_sound(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that is refused undamaged would prove nothing."""
    case = checkpoint_files.Case(form, "nothing", checkpoint_files.seeds()[form])
    monkeypatch.setattr(checkpoint_files, "case_of", lambda seed: case)
    assert checkpoint_files.verdict(0) == "read"
