"""Choices by the model of speed on 27 November's times of an H200: none is slower by more than 2% than what rules of their own had
chosen until then (lines that say ``old``).  Runs of experts were timed even and ragged, which no choice knows: there it is the two together."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda" / "programs"))
from sparse_matmul import sparse_parts

from tilewright.ir.dtypes import ALL
from tilewright.kernels.few_rows_matmul import FewRowsCandidates
from tilewright.kernels.fragment_matmul import FragmentCandidates
from tilewright.kernels.grouped_matmul import group_tiles
from tilewright.kernels.hopper_quant_wgmma_choice import expert_quant_choices
from tilewright.kernels.roofline import HOPPER, hopper_speed
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.matmul.tiers.scaled import as_options

LOG = Path(__file__).parents[3] / "benchmarks" / "results" / "2026-11-27-h200-choosers.jsonl"


def few_rows(problem: dict[str, Any]) -> dict[str, Any]:
    candidates = FewRowsCandidates(problem["N"], problem["K"], "float8_e4m3fn", HOPPER, problem["transpose_B"])
    return next(candidates.ranked(problem["M"]))


def grouped(problem: dict[str, Any]) -> dict[str, Any]:
    return as_options(group_tiles(*(problem[name] for name in ("experts", "rows", "N", "K", "kind")))[0])


def sparse(problem: dict[str, Any]) -> dict[str, Any]:
    parts = sparse_parts(*(problem[name] for name in ("M", "N", "K", "kind")))
    return {"parts": [{"columns": rows, **as_options(tiles)} for rows, tiles in parts]}


def fragments(problem: dict[str, Any]) -> dict[str, Any]:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    return next(FragmentCandidates(problem["N"], problem["K"], form, HOPPER, 166_912).ranked(problem["M"]))  # an A100's


CHOOSERS = {
    "fp8": (few_rows, 34, 0.998),
    "grouped": (grouped, 34, 1.03),
    "sparse": (sparse, 18, 0.998),
    "fragment": (fragments, 11, 1.01),
}
"""What chooses, problems that were timed, and the time of what was chosen before over the choice's, on average."""


def problems(family: str) -> Iterator[tuple[dict[str, Any], dict[str, float], float]]:
    """Problems, times by options, and that of what was chosen before."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in map(json.loads, LOG.read_text().replace('"turned"', '"swapped"').splitlines()):
        if line["family"] == family:
            found[json.dumps({name: line[name] for name in line if name not in ("options", "old", "us")})].append(line)
    for problem, lines in found.items():
        before = [line["us"] for line in lines if line["old"]]
        if before and len(lines) > 1:
            yield (
                json.loads(problem),
                {json.dumps(one["options"], sort_keys=True): one["us"] for one in lines},
                before[0],
            )


@pytest.mark.parametrize("family", CHOOSERS)
def test_no_choice_is_slower_than_before(family: str) -> None:
    choose, count, mean = CHOOSERS[family]
    ratios, known = [], defaultdict(list)
    for problem, times, before in problems(family):
        ratios.append(before / times[json.dumps(choose(problem), sort_keys=True)])
        known[json.dumps({name: value for name, value in problem.items() if name != "ragged"})].append(ratios[-1])
    for problem, found in known.items():
        assert np.exp(np.log(found).mean()) >= 0.98, problem
    assert len(ratios) == count and np.exp(np.log(ratios).mean()) >= mean


EXPERTS = LOG.parent / "2026-11-28-h200-experts.jsonl"


def test_experts_whose_runs_nobody_knows_lose_less_than_by_a_table_of_rows() -> None:
    """A table by the rows of a run on average chose tiles that took 2.44% longer than the best of nine."""
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    times: dict[tuple[int, int, int, int, str], dict[tuple[int, tuple[int, ...], bool], float]] = defaultdict(dict)
    for line in map(json.loads, EXPERTS.read_text().splitlines()):
        problem = line["experts"], line["rows"], line["N"], line["K"], line["runs"]
        times[problem][line["tokens"], tuple(line["lower"]), line["promoted"]] = line["us"]
    lost = []
    for problem, found in times.items():
        ranked = [(one["tokens"], one["lower"], one["promoted"]) for one in expert_quant_choices(*problem[:4], form)]
        lost.append(found[next(one for one in ranked if one in found)] / min(found.values()) - 1)
    assert len(lost) == 183 and np.mean(lost) < 0.0215


@pytest.mark.parametrize("cores", [78, 108, 114, 128, 142])
def test_long_runs_of_experts_take_high_tiles(cores: int) -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    heights = []
    for rows in (1, 8, 16, 32, 64, 128, 512, 4096):
        chosen = expert_quant_choices(64, rows, 4096, 4096, form, speed=hopper_speed(cores))[0]
        assert chosen["blocks"] == cores
        heights.append(chosen["tokens"])
    assert heights == sorted(heights) and heights[0] <= 16 and heights[-1] == 128
