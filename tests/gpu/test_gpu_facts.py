"""The vocabulary's facts on the GPU of this machine."""

from __future__ import annotations

import pytest
from cuda_facts import all_facts
from cuda_runner import DeviceRunner

from tilewright.targets.cuda.arch import detect, named

pytestmark = pytest.mark.gpu

ARCH = detect()
FACTS = list(all_facts(ARCH)) if ARCH else []


@pytest.fixture(scope="module")
def runner():
    return DeviceRunner(ARCH)


@pytest.mark.skipif(ARCH is None, reason="no NVIDIA GPU here")
@pytest.mark.parametrize("check", [check for _, check in FACTS], ids=[name for name, _ in FACTS])
def test_fact(runner, check):
    check(runner)


@pytest.mark.skipif(ARCH is None, reason="no NVIDIA GPU here")
def test_fp8_through_half_as_the_oldest_architecture_has_it():
    """Without a conversion of its own: by bits."""
    oldest = named("sm_80")
    runner = DeviceRunner(oldest)
    checks = [check for name, check in all_facts(oldest) if "through_half" in name]
    assert len(checks) == 32
    for check in checks:
        check(runner)
