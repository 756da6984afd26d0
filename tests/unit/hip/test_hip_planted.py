"""Faults planted in programs for AMD's machines are found, as those in programs for NVIDIA's are."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
from emulator_kernels import peaked, sharpened
from hip_programs import WAVES
from planted_faults import in_child
from planted_programs import judge, prepare
from repository_programs import (
    ALL,
    HEADS,
    AttentionTiles,
    Program,
    direct,
    flash_attention,
    gemm,
    softmax_of_long_rows,
    whole,
)

TURNED = Program(
    "gemm of turned operands",
    direct(gemm, whole(136, 72), whole(136, 48, seed=1), block=(64, 64, 64), transpose_A=True, transpose_B=False),
)
FAR_ROWS = Program("softmax of rows far apart", direct(softmax_of_long_rows, peaked(10, 1300, plain=4)), bound=2e-6)
FAR_SCORES = Program(
    "attention of scores far apart",
    direct(flash_attention, sharpened(HEADS[0].copy()), *HEADS[1:], dtype="float16", tiles=AttentionTiles(32, 32, 64)),
    bound=2e-3,
)
"""Where a part of a row is left out of its largest element, exponentials overflow: elsewhere no result depends on it."""

PROGRAMS = {program.name: program for program in (*ALL, TURNED, FAR_ROWS, FAR_SCORES)}
NAMES = [TURNED.name, "gemm float16 nt", "gemm in one slot", "planned", FAR_ROWS.name, FAR_SCORES.name]


def hunted(name: str, architecture: str, most: int) -> Counter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = prepare(PROGRAMS[name], architecture, most)
        return Counter(in_child(judge, one, site, 3)[0] for site in one.sites)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [*(("planned", one) for one in WAVES), ("gemm float16 nt", "gfx950"), (TURNED.name, "gfx942")],
)
def test_a_sample_of_faults_is_found(name, architecture):
    """On gfx950 tiles go to LDS directly: lanes, slots and counts of that may be wrong, too."""
    counts = hunted(name, architecture, 12)
    assert counts["missed"] == counts["crashed"] == 0 and counts["reported"] + counts["wrong"] > 5, counts


@pytest.mark.proof
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", [*WAVES, "gfx950"])
def test_faults_are_found(name, architecture):
    counts = hunted(name, architecture, 50)
    found = counts["reported"] + counts["wrong"] + counts["hung"]
    assert counts["crashed"] == 0 and found >= 0.97 * (found + counts["missed"]), counts
