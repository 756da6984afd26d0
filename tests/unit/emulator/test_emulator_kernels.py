"""A dozen kernels, each right and without any report under every kind of schedule; speed, traces, float bounds."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from busy import least
from emulator_kernels import KERNELS, Kernel, correct, fresh, wgmma_gemm

from tilewright.emulator import EXPLORED, emulate, run

named = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])


@named
def test_right_and_quiet_under_explored_schedules(kernel: Kernel) -> None:
    problem = kernel.make(np.random.default_rng(5))
    for schedule, seed in EXPLORED[:8]:
        attempt = fresh(problem)
        found = kernel.run(attempt, schedule=schedule, seed=seed, poison=seed * 0x9E3779B97F4A7C15 % 2**64)
        assert not found.reports, f"{schedule} {seed}: " + "\n".join(map(str, found.reports))
        assert correct(attempt), (schedule, seed)


@pytest.mark.proof
@named
def test_no_false_alarm_in_fifty_random_schedules(kernel: Kernel) -> None:
    for seed in range(50):
        problem = kernel.make(np.random.default_rng(seed))
        found = kernel.run(problem, schedule="random", seed=seed, poison=seed * 0x9E3779B97F4A7C15 % 2**64)
        assert not found.reports, f"seed {seed}: " + "\n".join(map(str, found.reports))
        assert correct(problem), seed


@named
def test_without_checks_the_result_is_the_same(kernel: Kernel) -> None:
    problem = kernel.make(np.random.default_rng(6))
    checked, unchecked = fresh(problem), fresh(problem)
    kernel.run(checked)
    assert not kernel.run(unchecked, check=False).reports
    for a, b in zip(checked.outputs, unchecked.outputs):
        assert a.tobytes() == b.tobytes()


def test_a_run_is_reproduced_by_its_seed(tmp_path: Path) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "bulk_ring")
    problem = kernel.make(np.random.default_rng(0))
    traces = []
    for i, seed in enumerate((7, 7, 8)):
        kernel.run(fresh(problem), schedule="random", seed=seed, trace=tmp_path / f"{i}.json")
        traces.append((tmp_path / f"{i}.json").read_text())
    assert traces[0] == traces[1] != traces[2]


def test_persistent_blocks_and_several_tiles_a_block() -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "wgmma_gemm")
    for blocks in (2, 4):
        problem = wgmma_gemm(np.random.default_rng(blocks), blocks=blocks, n=384, k=320)
        assert not kernel.run(problem, schedule="random", seed=blocks).reports
        assert correct(problem)


def test_a_trace_shows_copies_waits_and_matrix_instructions(tmp_path: Path) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "wgmma_gemm")
    problem = kernel.make(np.random.default_rng(0))
    emulate(kernel.text, kernel.name, problem.arguments, file=kernel.file, trace=tmp_path / "t.json", **problem.launch)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {
        "tma_load",
        "tensor copy landed",
        "mbarrier_wait",
        "wgmma",
        "wgmma_wait",
        "tma_store",
        "process_name",
    } <= names
    issued = [event for event in events if event["name"] == "tma_load"]
    landed = [event for event in events if event["name"] == "tensor copy landed"]
    # Each block loads A for itself and half of B for both: 2 instructions, 3 boxes for each of 4 steps of 2 tiles.
    assert (len(issued), len(landed)) == (2 * 2 * 4 * 2, 2 * 3 * 4 * 2)
    assert issued[0]["args"]["at"].startswith(f"{kernel.file}:")


def test_speed_and_the_price_of_checks() -> None:
    """A 128 x 128 tile with K = 512: 3 s with compilation, 1 s without; checks cost at most 10 times (generous on a busy machine)."""
    kernel = next(kernel for kernel in KERNELS if kernel.name == "wgmma_gemm")
    problem = wgmma_gemm(np.random.default_rng(0), n=128, k=512)

    def run(check: bool) -> None:
        attempt = fresh(problem)
        kernel.run(attempt, check=check, workers=1)
        assert correct(attempt)

    run(True), run(False)  # which compile its text
    checked, unchecked = (least(functools.partial(run, check), tries=3) for check in (True, False))
    assert checked < 1.0 and checked < 10 * unchecked, (checked, unchecked)


PROBES = Path(__file__).parents[2] / "gpu" / "texts" / "sanitizer_probes.cu"


@pytest.mark.parametrize("name", re.findall(r"\(256, 1\) (\w+)\(", PROBES.read_text()))
def test_what_compute_sanitizer_does_not_follow_is_in_order(name: str) -> None:
    for schedule, seed in (("late", 0), ("early", 1), ("random", 2), ("random", 3)):
        out = np.zeros(256, np.int32)
        launch = {"grid": (1,), "block": (256,), "shared_bytes": 2048, "schedule": schedule, "seed": seed}
        assert not run(PROBES.read_text(), name, [out], **launch).reports
        assert out[1] == (126 if "handed" in name else 1)
