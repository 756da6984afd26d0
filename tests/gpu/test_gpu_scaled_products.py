"""`T.fp8_scaled_matmul` on the GPU that is here, beside exact results."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "language"))
from scaled_programs import CASES, program  # noqa: E402

import tilewright  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no NVIDIA GPU here")]


def on_device(array):
    kind = getattr(torch, array.dtype.name)
    return (
        torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).cuda().view(kind)
        if array.dtype.itemsize == 1
        else torch.from_numpy(array).cuda()
    )


@pytest.mark.parametrize("case", CASES)
def test_products(case):
    function, arguments, expected = program(**CASES[case])
    tensors = [on_device(one) for one in arguments]
    tilewright.compile(function, target="cuda")(*tensors)
    error = np.abs(tensors[-1].double().cpu().numpy() - expected).max() / np.abs(expected).max()
    assert error < (2e-6 if CASES[case].get("exact") else 1.5e-4)
