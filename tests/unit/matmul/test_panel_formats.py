"""Formats of whole numbers, or of multiples of one, are multiplied by dot products of bytes on processors."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.formats import number_format
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.facts import Request
from tilewright.matmul.tiers.panels import panel_codes, panel_type
from tilewright.quant import QuantizedWeight

pytestmark = pytest.mark.sampled(3)

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


def request_of(activations: str, quantize: str | None) -> Request:
    return Request(activations, "float32", quantize=quantize)


def test_tables_of_bytes() -> None:
    """e2m1 is a table of whole numbers wherever bytes are multiplied, nf4 one of rounded ones where activations are rounded."""
    e2m1, nf4 = number_format("e2m1"), number_format("nf4")
    for request in (request_of("float32", "int8"), request_of("int8", None)):
        codes = panel_codes(e2m1, request)
        assert codes is not None and codes.table is not None and str(codes.dtype) == "uint4"
        np.testing.assert_array_equal(np.array(codes.table) / codes.factor, e2m1.table)
    assert panel_codes(nf4, request_of("int8", None)) is None
    assert panel_codes(nf4, request_of("float32", None)) is None
    codes = panel_codes(nf4, request_of("float32", "int8"))
    assert codes is not None and codes.table is not None
    assert np.abs(np.array(codes.table) / codes.factor - nf4.table).max() < 0.003


@pytest.mark.parametrize("name, quantize", [
    ("int1", "int8"), ("int1", None), ("uint3", "int8"), ("int5", None), ("e2m1", "int8"), ("e2m1", None), ("nf4", "int8"),
])  # fmt: skip
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
    if name == "nf4":  # its values are rounded too
        bound = bound + 0.003 * np.abs(x).sum(axis=1, keepdims=True) * weight.scales.max(axis=1)
    assert (np.abs(result - expected) <= bound).all()
