"""Formats of whole numbers, or of multiples of one, are multiplied by dot products of bytes on processors."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.formats import number_format
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.tiers.panels import panel_type
from tilewright.quant import QuantizedWeight

TYPES = {
    "int1": "int2", "uint3": "uint4", "int3": "int4", "int4": "int4", "int5": "int8", "uint6": "uint8",
    "int7": "int8", "uint8": "uint8", "e2m1": "int8", "e2m3": "int8",
}  # fmt: skip


@pytest.mark.parametrize("name, panels", TYPES.items())
def test_the_type_that_holds_a_format(name: str, panels: str) -> None:
    assert str(panel_type(number_format(name))) == panels


@pytest.mark.parametrize("name", ["nf4", "e4m3", "e3m2"])
def test_formats_that_are_no_multiples_of_one_number(name: str) -> None:
    assert panel_type(number_format(name)) is None


@pytest.mark.parametrize("quantize", ["int8", None])
@pytest.mark.parametrize("name", ["int1", "uint3", "int5", "e2m1"])
@pytest.mark.parametrize("rows", [3, 37])
def test_products(name: str, rows: int, quantize: str | None) -> None:
    rng = np.random.default_rng(rows)
    format = number_format(name)
    codes = np.array([code for code in range(1 << format.bits) if code not in format.unused], np.uint8)
    weight = QuantizedWeight(
        rng.choice(codes, (45, 192)), format, scales=rng.random((45, 3), np.float32) + 0.1, block=(1, 64)
    )
    x = rng.standard_normal((rows, 192)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.to_dense().T
    result = quant_matmul(x, PackedWeight.pack(weight), quantize=quantize)
    step = np.abs(x).max() / 127 if quantize else 0.0  # activations are rounded to half of it
    bound = 1e-5 * np.abs(expected).max() + 0.5 * step * np.abs(weight.to_dense()).sum(axis=1)
    assert (np.abs(result - expected) <= bound).all()
