"""Tiles of elements that share bytes on the GPU that is here, in its own code and in the oldest architecture's."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))

import narrow_programs as programs  # noqa: E402
from narrow_programs import NARROW, codes, on, unpack  # noqa: E402

from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

ARCHITECTURES = ("sm_80", detect().name if detect() else "")
SIZE = (1033, 1067)


def same(result, wanted, dtype):
    found = unpack(result.cpu().numpy(), dtype, wanted.shape[-1])
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_elements(dtype, architecture):
    a, raw = codes(SIZE, dtype)
    here = torch.from_numpy(raw).cuda()
    for program in (programs.staged_copy, programs.staged_in_shared):
        kernel = on(architecture, program).compile(raw, size=SIZE, dtype=dtype)
        same(kernel(here), a, dtype)
    row, column = np.indices(SIZE)
    wanted = np.where((row % 16 + column % 32) % 3 != 0, a, np.zeros_like(a)).T.copy()
    for _ in range(3):  # a torn byte shows now and then
        same(on(architecture, programs.scattered).compile(raw, size=SIZE, dtype=dtype)(here), wanted, dtype)
    by_copy, by_cast = on(architecture, programs.widened).compile(raw, size=SIZE, dtype=dtype)(here)
    np.testing.assert_array_equal(by_copy.cpu().numpy(), a.astype(np.float16))
    np.testing.assert_array_equal(by_cast.cpu().numpy(), 2 * a.astype(np.float32))
    x = a.astype(np.float32)
    same(on(architecture, programs.narrowed).compile(x, dtype=dtype)(torch.from_numpy(x).cuda()), a, dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products(dtype, architecture):
    m, n, k = 130, 200, 1152
    w, raw = codes((n, k), dtype, 2)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((m, k)).astype(np.float16)
    scale = rng.uniform(0.5, 1.5, (n, k // 32)).astype(np.float16)
    here, codes_here, scale_here = (torch.from_numpy(one).cuda() for one in (x, raw, scale))
    decoded = (w.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, 1)).astype(np.float16)
    kernel = on(architecture, programs.decoded_product).compile(x, raw, scale, dtype=dtype, block=(64, 64, 64))
    cases = [(kernel(here, codes_here, scale_here), x, decoded)]
    kernel = on(architecture, programs.product_from_registers).compile(x, raw, dtype=dtype)
    cases.append((kernel(here, codes_here), w, x))
    for result, left, right in cases:
        left, right = left.astype(np.float64), right.astype(np.float64)
        bound = 2.0**-18 * (np.abs(left) @ np.abs(right).T)
        assert (np.abs(result.cpu().numpy() - left @ right.T) <= bound).all()
