"""Formats of whole numbers, or of multiples of one, are multiplied by dot products of bytes on processors."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.formats import number_format
from tilewright.kernels.quant_matmul import quant_matmul as kernel_of
from tilewright.kernels.recipe import Request
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.tiers.panels import panel_codes, panel_floats, panel_type
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


@pytest.mark.parametrize(
    "name, carrier",
    [
        ("e4m3", "e4m3"),
        ("e5m2", "e5m2"),
        ("e3m2", "e4m3"),
        ("e4m2", "e4m3"),
        ("e4m3fnuz", "e4m3fnuz"),
        ("e8m0", "e8m0"),
    ],
)
def test_floats_are_held_as_a_type_of_eight_bits(name: str, carrier: str) -> None:
    format, held = number_format(name), number_format(carrier)
    codes = panel_floats(format)
    assert codes is not None and codes.dtype == held.dtype
    np.testing.assert_array_equal(held.table[np.frombuffer(codes.floats, np.uint8)] / codes.factor, format.table)


@pytest.mark.parametrize("name, held", [("nf4", None), ("e2m5", "float16"), ("e6m1", "bfloat16")])
def test_what_no_float_of_eight_bits_holds(name: str, held: str | None) -> None:
    """A table where there are few values, else floats of 16 bits."""
    format = number_format(name)
    codes = panel_floats(format)
    assert (codes and codes.dtype.name) == held
    if codes is not None:
        np.testing.assert_array_equal(np.frombuffer(codes.floats, codes.dtype.numpy).astype(np.float64), format.table)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m4"])
def test_infinities_and_nan_among_the_codes(name: str) -> None:
    """One code a row, times one: the format's own value, whatever it is."""
    format = number_format(name)
    codes = np.zeros((256, 32), np.uint8)
    codes[:, 0] = np.arange(256)
    weight = QuantizedWeight(codes, format, scales=np.ones((256, 1), np.float32), block=(1, 32))
    x = np.zeros((3, 32), np.float32)
    x[:, 0] = 1
    result = quant_matmul(x, PackedWeight.pack(weight))
    np.testing.assert_array_equal(result, np.broadcast_to(format.table.astype(np.float32), result.shape))


@pytest.mark.parametrize("rows", [3, 37])
@pytest.mark.parametrize("machine", ["native", "avx2", "x86_64"])
@pytest.mark.parametrize("name, group", [("nf4", 32), ("nf4", 96), ("nf4", 20), ("e4m3", 48)])
def test_floats_on_other_machines(name: str, group: int, machine: str, rows: int) -> None:
    """Tables and floats of 8 bits beside float32, groups that make tiles of whole words of codes and those that do not."""
    rng = np.random.default_rng(group + rows)
    K, N, format = 480, 45, number_format(name)
    codes, request = rng.integers(0, 16, (N, K), dtype=np.uint8), request_of("float32", None)
    held, scales = panel_codes(format, request), rng.random((K // group, N), np.float32) + 0.1
    assert held is not None
    x = rng.standard_normal((rows, K)).astype(np.float32)
    kernel = kernel_of.for_target(
        f"cpu -arch={machine}",
        N,
        K,
        weights=held.dtype.name,
        codebook=held.table,
        group=group,
        zero=0.0,
        arithmetic="float32",
    )
    weight = QuantizedWeight(codes, format, scales=scales.T.copy(), block=(1, group))
    result = np.full((rows, N), np.nan, np.float32)
    kernel(x, kernel.pack(W=held.of(weight)), scales, result)
    expected = x.astype(np.float64) @ weight.to_dense().T
    np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())


def request_of(activations: str, quantize: str | None) -> Request:
    return Request(activations, "float32", quantize=quantize)


def test_tables_of_bytes() -> None:
    """e2m1 is a table of whole numbers wherever bytes are multiplied, nf4 one of rounded ones where activations are rounded."""
    e2m1, nf4 = number_format("e2m1"), number_format("nf4")
    for request in (request_of("float32", "int8"), request_of("int8", None)):
        codes = panel_codes(e2m1, request)
        assert codes is not None and codes.table is not None and str(codes.dtype) == "uint4"
        np.testing.assert_array_equal(np.array(codes.table) / codes.factor, e2m1.table)
    for request in (request_of("int8", None), request_of("float32", None)):
        codes = panel_codes(nf4, request)
        assert codes is not None and codes.factor == 1 and codes.table == tuple(nf4.table)
    codes = panel_codes(nf4, request_of("float32", "int8"))
    assert codes is not None and codes.table is not None
    assert np.abs(np.array(codes.table) / codes.factor - nf4.table).max() < 0.003


@pytest.mark.parametrize("name, quantize", [
    ("int1", "int8"), ("int1", None), ("uint3", "int8"), ("int5", None), ("e2m1", "int8"), ("e2m1", None), ("nf4", "int8"),
    ("e4m3", "int8"), ("e4m3", None), ("e5m2", None), ("e3m2", "int8"), ("e3m2", None), ("nf4", None), ("fp4_bnb", None),
])  # fmt: skip
@pytest.mark.parametrize("rows", [3, 37])
def test_products(name: str, rows: int, quantize: str | None) -> None:
    rng = np.random.default_rng(rows)
    format = number_format(name)
    used = [code for code in range(1 << format.bits) if code not in format.unused and np.isfinite(format.table[code])]
    codes = np.array(used, np.uint8)
    weight = QuantizedWeight(
        rng.choice(codes, (45, 192)), format, scales=rng.random((45, 3), np.float32) + 0.1, block=(1, 64)
    )
    x = rng.standard_normal((rows, 192)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.to_dense().T
    result = quant_matmul(x, PackedWeight.pack(weight), quantize=quantize)
    step = np.abs(x).max() / 127 if quantize else 0.0  # activations are rounded to half of it
    bound = 1e-5 * np.abs(expected).max() + 0.5 * step * np.abs(weight.to_dense()).sum(axis=1)
    if name == "nf4" and quantize:  # its values are rounded too
        bound = bound + 0.003 * np.abs(x).sum(axis=1, keepdims=True) * weight.scales.max(axis=1)
    assert (np.abs(result - expected) <= bound).all()
