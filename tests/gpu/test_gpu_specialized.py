"""Specialised programs of every shape on the GPU: what NumPy says, and the same bits every time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.specialization import JITFunction
from tilewright.targets.cuda.arch import detect

sys.path.append(str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from specialized_programs import PROGRAMS

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

REPEATS = 100


def on_device(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(value).cuda()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(program):
    function = JITFunction(program.kernel, "cuda", None)
    inputs = [on_device(value) for value in program.inputs]
    first = function(*inputs, **program.options)
    expected = program.expected(*program.inputs)
    tolerance = program.tolerance
    assert np.allclose(first.cpu().numpy(), expected, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(function(*inputs, **program.options), first) for _ in range(REPEATS))
