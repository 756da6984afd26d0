"""The grid of matrix products on the GPU that is here, in its own code and in that of the architectures it runs."""

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))

from gemm_grid import cases  # noqa: E402

from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]


def on_device(array):
    """The bits of an array as a torch tensor on the GPU."""
    kinds = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
    kind = kinds.get(array.dtype.name)
    if kind is None:
        return torch.from_numpy(array).cuda()
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).cuda().view(kind)


@pytest.mark.parametrize("seed", range(8))
def test_the_grid(seed):
    own = detect().name
    for case in cases(200 + seed, 24, tuple({own, "sm_80"})):
        a, b = case.operands()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case.kernel(a, b)(on_device(a), on_device(b)).cpu().numpy()
        assert case.wrong(a, b, result) is None, str(case)
