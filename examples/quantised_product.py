"""A product with a weight of 4 bits: packed once, multiplied by any number of rows."""

import numpy as np

import tilewright
from tilewright.quant import quantize

if __name__ == "__main__":
    random = np.random.default_rng(0)
    weight = random.standard_normal((128, 256)).astype("float32")
    quantised = quantize(weight, "int4", group=64)
    packed = tilewright.PackedWeight.pack(quantised)
    for rows in (1, 5):
        x = random.standard_normal((rows, 256)).astype("float32")
        exact = x @ quantised.dequantize().T
        assert np.allclose(tilewright.quant_matmul(x, packed), exact, atol=0.05)
    print("a weight of 4 bits, for one row and for five")
