"""Faults planted in lowered programs: a seeded sample in every run of the tests, all of them under `make proof`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted_faults import keep
from planted_kernels import kernels_to_plant_in
from planted_programs import hunt, prepare
from planted_verdicts import caught_share, reason

KERNELS = [f"{program.name}-{architecture}" for program, architecture in kernels_to_plant_in()]


def test_a_sample_is_caught() -> None:
    verdicts = hunt(most=16, names={"values carried", "specialised", "totals in shared memory"}, sample=5)
    assert [(name, site.what) for name, site, verdict, _ in verdicts if verdict == "missed"] == []
    assert sum(verdict in ("reported", "wrong") for _, _, verdict, _ in verdicts) >= 9


@pytest.mark.proof
@pytest.mark.parametrize("number", range(len(KERNELS)), ids=KERNELS)
def test_all_are_caught(number: int, record_property: Callable[[str, str], None]) -> None:
    program, _ = kernels_to_plant_in()[number]
    verdicts = hunt(names={program.name})
    keep(record_property, ((f"{site.kind}: {site.what}", said) for _, site, said, _ in verdicts))
    assert caught_share(verdicts) >= 0.95, [site.what for _, site, verdict, _ in verdicts if verdict == "missed"]
    assert all(reason(site) for _, site, verdict, _ in verdicts if verdict == "harmless")


@pytest.mark.proof
def test_there_are_a_thousand() -> None:
    assert sum(len(prepare(program, architecture, 72).sites) for program, architecture in kernels_to_plant_in()) >= 1000
