"""Planted faults: a seeded sample in every run of the tests, all of them under `make proof`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from emulator_kernels import KERNELS
from planted_faults import caught_share, hunt, keep, prepare


def test_a_sample_of_planted_faults_is_caught() -> None:
    verdicts = hunt(sample=40, seed=20, names={"bulk_ring", "ping_pong", "cluster_sum", "transpose_tma"})
    missed = [str(planted) for planted, verdict, _ in verdicts if verdict == "missed"]
    assert not missed
    assert sum(verdict in ("reported", "wrong") for _, verdict, _ in verdicts) > 25


SHARES = 8
"""Of a kernel's faults, so that many processes take them: a text with a thousand would keep one busy when all others are done."""


@pytest.mark.proof
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", [kernel.name for kernel in KERNELS])
def test_all_planted_faults(name: str, share: int, record_property: Callable[[str, str], None]) -> None:
    verdicts = hunt(sample=None, seed=0, names={name}, share=(share, SHARES))
    keep(record_property, ((str(planted), said) for planted, said, _ in verdicts))
    assert caught_share(verdicts) >= 0.95, [str(planted) for planted, verdict, _ in verdicts if verdict == "missed"]


@pytest.mark.proof
def test_there_are_a_thousand() -> None:
    assert sum(len(prepare(kernel).faults) for kernel in KERNELS) >= 1000
