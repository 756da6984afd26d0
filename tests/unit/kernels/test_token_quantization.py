"""Activations quantised token by token, against the same formula in NumPy, bit for bit."""

import numpy as np
import pytest

from tilewright.kernels.token_quantization import quantize_tokens

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (2, 300), (5, 1023), (4, 4096)], ids=str)
def test_codes_and_scales(shape):
    x = (RNG.standard_normal(shape) * 3).astype(np.float32)
    x[0] = 0
    codes, scales = quantize_tokens(x)
    largest = np.abs(x).max(axis=1)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    assert np.array_equal(scales, largest / np.float32(127))
    assert np.array_equal(codes, np.rint(x * inverse[:, None]).astype(np.int8))
    assert np.abs(codes).max(initial=0) <= 127
    for ours, meant in zip((codes, scales), quantize_tokens.interpret(x), strict=True):
        assert np.array_equal(ours, meant)
