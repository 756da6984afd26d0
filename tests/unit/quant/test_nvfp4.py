"""nvfp4 of modelopt and of compressed-tensors: blocks, their scales, and the weight's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import InvalidTensor
from tilewright.quant.importers import from_nvfp4

RNG = np.random.default_rng(0)
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
N, K = 5, 48


@pytest.fixture
def parts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scales = (RNG.random((N, K // 16)) * 400 + 1).astype(ml_dtypes.float8_e4m3fn)
    return RNG.integers(0, 256, (N, K // 2), dtype=np.uint8), scales, np.array(0.0123, np.float32)


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("group", [16, 24])
def test_numbers(parts: tuple[np.ndarray, ...], divides: bool, group: int) -> None:
    packed, scales, whole = parts
    scales = scales[:, : K // group]
    exact = np.zeros((N, K))
    for n in range(N):
        for k in range(K):
            code = packed[n, k // 2] >> 4 * (k % 2) & 15
            sign = -1.0 if code & 8 else 1.0
            exact[n, k] = sign * VALUES[code & 7] * float(scales[n, k // group])
    exact = exact / float(whole) if divides else exact * float(whole)
    found = from_nvfp4(packed, scales, whole, divides=divides, group=group).to_dense()
    np.testing.assert_allclose(found, exact, rtol=4e-16)


def test_what_does_not_fit_is_named(parts: tuple[np.ndarray, ...]) -> None:
    packed, scales, whole = parts
    with pytest.raises(InvalidTensor, match=r"up.weight_scale is float8_e4m3fn \[5, 2\], where"):
        from_nvfp4(packed, scales[:, :2], whole, name="up")
    with pytest.raises(InvalidTensor, match=r"up\.weight has rows of 40 codes, which blocks of 16 do not divide"):
        from_nvfp4(packed[:, :20], scales, whole, name="up")
    with pytest.raises(InvalidTensor, match=r"up: the weight.s scale is 0\.0, where a positive number is due"):
        from_nvfp4(packed, scales, np.zeros(1, np.float32), name="up")
    for sign in (0x80, 0xB8):  # a zero with a sign, -1
        signed = scales.view(np.uint8).copy()
        signed[3, 1] = sign
        with pytest.raises(InvalidTensor, match=r"up\.weight_scale has a sign at \[3, 1\], where nvfp4 has none"):
            from_nvfp4(packed, signed.view(ml_dtypes.float8_e4m3fn), whole, name="up")
