"""Products of parts that seldom meet: groups that end behind the last column, two kinds of zeros and factors, bytes that rows share."""

from __future__ import annotations

import numpy as np
import pytest
from products import close, product, random_weight

from tilewright.ir.dtypes import dtype, pack
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.quant import QuantizedWeight

N, K = 19, 86
RNG = np.random.default_rng(0)


def grouped(name: str, group: int, scale: str = "float32", **rest: object) -> QuantizedWeight:
    groups = -(-K // group)
    scales = np.exp2(RNG.integers(-3, 3, (N, groups))).astype(dtype(scale).numpy)
    return random_weight(RNG, name, (N, K), scales=scales, block=(1, group), **rest)


def zeros(group: int) -> np.ndarray:
    return RNG.standard_normal((N, -(-K // group))).astype(np.float16)


def test_divisors_of_columns_that_pad_a_group() -> None:
    """A padded column was divided by what lies behind the divisors: 0 / 0."""
    x = RNG.standard_normal((5, K)).astype(np.float32)
    weight = grouped("uint4", 20, divisors=RNG.uniform(0.5, 4.0, K).astype(np.float32))
    close(product(x, weight), x, weight.to_dense())


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
def test_a_scale_of_e8m0_behind_the_last_column_is_no_nan(target: str) -> None:
    """The type has no zero, which is what lies behind a tensor: columns behind the last one became NaN."""
    x = RNG.standard_normal((5, K)).astype(np.float32)
    weight = grouped("int8", 16, "float8_e8m0fnu", zeros=zeros(16), zeros_mode="rescale")
    size = np.abs(x).astype(np.float64) @ (np.abs(weight.format.decode(weight.codes)) * 4 + 4).T
    found = product(x, weight, target)
    assert (np.abs(found - x.astype(np.float64) @ weight.to_dense().T) <= 2.0**-18 * size).all()


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("ordered", [False, True])
def test_scales_of_activations_of_e8m0_behind_the_last_column_are_no_nan(ordered: bool, target: str) -> None:
    """Where their groups are not the weight's, each element is scaled, those behind the last column too."""
    x, order = RNG.integers(-9, 9, (5, K)).astype(np.float32), RNG.permutation(np.arange(K) // 16).astype(np.int32)
    weight = grouped("int4", 16, **({"g_idx": order} if ordered else {}))
    powers = np.exp2(RNG.integers(-3, 3, (5, -(-K // 24)))).astype("float8_e8m0fnu")
    found = product(x, weight, target, activation_scales=powers, activation_group=24)
    wide = x * np.repeat(powers.astype(np.float64), 24, 1)[:, :K]
    close(found, wide, weight.to_dense())


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
def test_columns_in_another_order_end_where_the_weight_does(target: str) -> None:
    """Behind them lay column 0, multiplied by what code 0 stands for."""
    x = RNG.integers(-9, 9, (5, K)).astype(np.float32)
    weight = random_weight(RNG, "int1", (N, K), g_idx=np.zeros(K, np.int32))
    np.testing.assert_array_equal(product(x, weight, target), x @ weight.dequantize().T)


@pytest.mark.parametrize("activations", ["float16", "int8"])
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_the_factor_of_a_weight_leaves_zeros_of_mode_rescale_alone(activations: str, target: str) -> None:
    x = (20 * RNG.standard_normal((3, K))).astype(activations)
    weight = grouped("uint4", 32, "float16", zeros=20 * zeros(32), zeros_mode="rescale", tensor_scale=3.0)
    size = np.abs(x).astype(np.float64) @ (np.abs(weight.to_dense()) + 60).T
    found = product(x, weight, target)
    assert (np.abs(found - x.astype(np.float64) @ weight.to_dense().T) <= 2.0**-10 * size).all()


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
@pytest.mark.parametrize(("name", "columns"), [("int4", 85), ("uint4", 1), ("int2", 86), ("uint2", 83)])
def test_packed_activations_of_any_width(name: str, columns: int, target: str) -> None:
    """What else is in a row's last byte is no part of it: int1 has no code that stands for zero."""
    of = dtype(name)
    weight = random_weight(RNG, "int1", (N, columns))
    values = RNG.integers(int(of.minimum), int(of.maximum) + 1, (5, columns))
    x = pack(values, of)
    x[:, -1] |= np.uint8(0xFF << columns % of.per_byte * of.bits & 0xFF)
    expected = values @ weight.dequantize().astype(np.int64).T
    np.testing.assert_array_equal(product((x, name), weight, target, out_dtype="int32"), expected)
    if target == "cpu":
        config = MatmulConfig(N=N, K=columns, A_dtype=name, W_dtype="int1", out_dtype="int32")
        operator = Matmul(config, target="cpu")
        raw = operator.transform_weight(weight.dequantize().astype(np.int8))
        np.testing.assert_array_equal(operator(x, raw), expected)
        np.testing.assert_array_equal(quant_matmul((x, name), PackedWeight.pack(weight)), expected)


ACTIVATIONS = ("float8_e4m3fn", "float8_e5m2", "int8", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_weights_that_are_no_codes_keep_their_numbers(name: str, activations: str) -> None:
    """They were rounded to the activations' type, 8 bits too, and overflowed there."""
    numbers = RNG.standard_normal((N, K)) * (1.0 if name == "float16" else 1e5)
    weight = QuantizedWeight(numbers.astype(dtype(name).numpy), name)
    x = (RNG.standard_normal((3, K)) * 9).astype(dtype(activations).numpy)
    found = product(x, weight, "cuda -arch=sm_80", out_dtype="float64")
    close(found, x, weight.dequantize(), "float32" if name != "float64" else "float64")


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
def test_codes_out_of_the_range_of_half_precision(target: str) -> None:
    weight = random_weight(RNG, "e6m1", (N, K))
    x = RNG.standard_normal((3, K)).astype(np.float16)
    close(product(x, weight, target, out_dtype="float64"), x, weight.dequantize())


def test_scales_of_groups_that_no_column_is_in() -> None:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 16, (5, 40), dtype=np.uint8), rng.uniform(0.5, 2, (5, 6)).astype(np.float32)
    zeros, order = rng.integers(0, 16, (1, 6)).astype(np.uint8), rng.integers(0, 4, 40).astype(np.int32)
    weight = QuantizedWeight(codes, "uint4", scales, zeros, "quantized", block=(1, 16), g_idx=order)
    packed, x = PackedWeight.pack(weight), rng.standard_normal((3, 40)).astype(np.float32)
    np.testing.assert_array_equal(packed.to_dense(), weight.to_dense())
    np.testing.assert_allclose(quant_matmul(x, packed), x.astype(float) @ weight.to_dense().T, rtol=1e-4, atol=1e-4)
