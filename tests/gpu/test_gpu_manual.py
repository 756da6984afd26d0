"""Programs whose authors order threads and copies themselves, on the GPU: exact, and the same bits every time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tilewright
from tilewright.targets.cuda.arch import detect

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda"))
from manual_programs import EVERYWHERE, HOPPER, warp_groups

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None, reason="no GPU here")]
REPEATS = 100


def check(program, repeats=REPEATS):
    function, arguments, expected = program
    kernel = tilewright.compile(function, target="cuda")
    given = [torch.from_numpy(argument).cuda() for argument in arguments]
    expected = torch.from_numpy(expected.copy()).cuda()
    for _ in range(repeats):
        given[-1].fill_(-1)
        kernel(*given)
        assert torch.equal(given[-1].double(), expected.double())


@pytest.mark.parametrize("program", HOPPER, ids=lambda one: one.__name__)
@pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")
def test_programs_of_hopper(program):
    check(program())


@pytest.mark.parametrize("program", EVERYWHERE, ids=lambda one: one.__name__)
def test_programs_of_any_gpu(program):
    check(program())


@pytest.mark.parametrize("options", [
    {"block": (128, 256, 64), "stages": 4}, {"block": (128, 128, 64), "stages": 3, "elect": False, "in_flight": 0},
    {"block": (64, 96, 64), "stages": 1, "consumers": 1, "in_flight": 0, "registers": None},
], ids=str)  # fmt: skip
@pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")
def test_products_of_other_shapes(options):
    check(warp_groups(1000, 1192, 520, **options))
