"""Products with a decoded weight: every format, zeros and sizes off the tiles, on the CPU and under the emulator."""

import numpy as np
import pytest

from tilewright.kernels.decode_matmul import decode_matmul
from tilewright.options import override
from tilewright.quant import quantize


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
@pytest.mark.parametrize(
    "weights, zeros", [("int4", "none"), ("uint4", "group"), ("int2", "none"), ("uint8", "middle")]
)
def test_products_with_decoded_weights(weights, zeros, target):
    rng = np.random.default_rng(1)
    m, n, k = 37, 70, 256
    weight, a = rng.standard_normal((n, k)).astype(np.float32), rng.standard_normal((m, k)).astype(np.float16)
    made = quantize(weight, weights, group=64, zeros=zeros)
    with override(target=target):
        kernel = decode_matmul(n, k, weights=weights, group=64, zero=made.zero, out="float32", block_N=64)
    operands = [made.packed, made.grouped_scales, *([] if made.grouped_zeros is None else [made.grouped_zeros])]
    c = np.full((m, n), np.nan, np.float32)
    (kernel if target == "cpu" else kernel.emulate)(a, *operands, c)
    # The kernel multiplies the weight rounded to float16.
    decoded = made.dequantize().astype(np.float16).astype(np.float64)
    exact, size = a.astype(np.float64) @ decoded.T, np.abs(a.astype(np.float64)) @ np.abs(decoded).T
    assert (np.abs(c - exact) <= (k + 2) * 2.0**-24 * size + 2.0**-11 * 1e-3 * size).all()
