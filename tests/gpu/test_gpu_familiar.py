"""Programs of many kinds as their authors write them, on the GPU: what NumPy says, and the same bits every time."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1] / "unit" / "kernels"))

from device_arrays import run_on_device
from familiar_kinds import PROGRAMS, UNORDERED

import tilewright
from tilewright.targets.cuda.arch import detect

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]
REPEATS = 100


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, architecture: str) -> None:
    program = PROGRAMS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = tilewright.compile(program.function, target=f"cuda -arch={architecture}")
        runs = [run_on_device(kernel, program.arguments) for _ in range(REPEATS)]
    for found in runs if name in UNORDERED else runs[:1]:
        arrays = iter(found)
        after = [next(arrays) if isinstance(one, np.ndarray) else one for one in program.arguments]
        assert not program.mistakes(after)
    if name not in UNORDERED:
        bits = [[one.tobytes() for one in found] for found in runs]
        assert all(one == bits[0] for one in bits)
