"""The vocabulary's facts on the GPU of this machine."""

from __future__ import annotations

import pytest
from cuda_facts import all_facts
from cuda_runner import DeviceRunner

from tilewright.targets.cuda.arch import detect

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
