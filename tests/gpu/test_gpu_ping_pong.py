"""Consumers that work at different tiles in turn on the GPU: what NumPy says, and the same bits a hundred times."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.specialization import JITFunction
from tilewright.targets.cuda.arch import detect

sys.path.append(str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from ping_pong_programs import programs

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

REPEATS = 100
ROWS = 64 * 1001 - 6
"""Of the products: on 132 multiprocessors some blocks have eight tiles, others seven."""


@pytest.mark.parametrize("program", programs(ROWS), ids=lambda program: program.name)
def test_program(program):
    kernel = JITFunction(program.kernel, "cuda", None).compile(*program.inputs, **program.options)
    assert "ping-pong schedule of two consumers" in kernel.explain()
    inputs = [torch.from_numpy(value).cuda() for value in program.inputs]
    first = kernel(*inputs)
    assert np.array_equal(first.cpu().numpy(), program.expected(*program.inputs))
    assert all(torch.equal(kernel(*inputs), first) for _ in range(REPEATS))
