"""Each defect that the best-known predecessor has, shown to be impossible here: all codes, through `Matmul` as its users call it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import interpreted

from tilewright.errors import NotRepresentable
from tilewright.formats import number_format, pack_plain
from tilewright.ir.dtypes import pack
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.matmul.random_operands import random_operands
from tilewright.quant import quantize

RNG = np.random.default_rng(0)
FORMATS = ["int1", "uint1", "int2", "uint2", "int3", "int4", "uint4", "int8", "uint8", "nf4", "fp4_e2m1", "e4m3_float8",
           "e5m2_float8"]  # fmt: skip


def matmul(name: str, N: int, K: int, A_dtype: str = "float16", out: str = "float32", **rest: Any) -> Matmul:
    return Matmul(MatmulConfig(N=N, K=K, A_dtype=A_dtype, W_dtype=name, out_dtype=out, **rest), target="cpu")


def all_codes(name: str, shape: tuple[int, int]) -> np.ndarray:
    """Codes in which each finite one of the format occurs, in the first rows, then random ones."""
    of = number_format(name)
    used = np.array([c for c in range(1 << of.bits) if np.isfinite(of.values[c])], np.uint8)
    codes = RNG.choice(used, shape)
    codes.reshape(-1)[: len(used)] = used
    return codes


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_decodes_to_its_value_under_16_bit_activations(name: str) -> None:
    """E3M0 for e2m1, 2^-7 for zero in e4m3, lost bits of uint1, {0, 2} for int1, a wrong call for 8-bit weights."""
    codes, of = all_codes(name, (20, 16)), number_format(name)
    operator = matmul(name, 20, 16)
    numbers = of.decode(codes) if of.kind in ("int", "uint") else codes
    found = interpreted(operator, np.eye(16, dtype=np.float16), operator.transform_weight(numbers))
    np.testing.assert_array_equal(found.T, of.decode(codes).astype(np.float32))


def test_e2m1_and_e4m3_are_what_their_names_say() -> None:
    assert number_format("fp4_e2m1").values[:8] == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert number_format("e4m3_float8").values[:2] == (0.0, 2.0**-9)


@pytest.mark.parametrize("name", ["uint1", "int1", "int2", "uint4", "int8"])
def test_different_weights_have_different_bytes(name: str) -> None:
    operator, of = matmul(name, 1, 32), number_format(name)
    for _ in range(20):
        one, other = (of.decode(RNG.integers(0, 1 << of.bits, (1, 32), dtype=np.uint8)) for _ in range(2))
        packed = [operator.transform_weight(w.astype(np.int16)).tobytes() for w in (one, other)]
        assert (packed[0] == packed[1]) == (one == other).all()


@pytest.mark.parametrize(("name", "value"), [("int4", 8), ("int2", 2), ("int4", -9), ("uint2", 4), ("int1", 0)])
def test_numbers_out_of_range_never_reach_their_neighbours(name: str, value: int) -> None:
    weight = np.ones((2, 16), np.int8)
    weight[1, 3] = value
    with pytest.raises(NotRepresentable, match=rf"the value {value} at index \[1, 3\] is none of {name}'s"):
        matmul(name, 2, 16).transform_weight(weight)


@pytest.mark.parametrize("activations", ["int8", "int4", "uint8"])
@pytest.mark.parametrize("name", ["int4", "int2", "uint4", "int1"])
def test_products_of_integers_are_exact_over_all_codes(name: str, activations: str) -> None:
    """int4 by int8 minus 7 instead of 8; int2 by int4 not decoded at all; wrong results at K = 16."""
    codes, of = all_codes(name, (9, 48)), number_format(name)
    kind = number_format(activations)
    A = kind.decode(RNG.integers(0, 1 << kind.bits, (5, 48), dtype=np.uint8)).astype(np.int64)
    operator = matmul(name, 9, 48, activations, "int32")
    given = pack(A, activations) if activations == "int4" else A.astype(activations)
    found = interpreted(operator, given, operator.transform_weight(of.decode(codes)))
    np.testing.assert_array_equal(found, A @ of.decode(codes).astype(np.int64).T)


def test_ones_by_ones() -> None:
    operator = matmul("int4", 16, 16, "int8", "int32")
    found = interpreted(operator, np.ones((1, 16), np.int8), operator.transform_weight(np.ones((16, 16), np.int8)))
    assert (found == 16).all()


@pytest.mark.parametrize(("M", "N", "K"), [(1, 1, 1), (3, 7, 33), (17, 65, 40), (2, 130, 9)])
def test_sizes_need_not_divide_by_anything(M: int, N: int, K: int) -> None:
    operator = matmul("int8", N, K, "int8", "int32")
    A, W = (RNG.integers(-128, 128, (rows, K)).astype(np.int8) for rows in (M, N))
    np.testing.assert_array_equal(
        interpreted(operator, A, operator.transform_weight(W)), A.astype(int) @ W.T.astype(int)
    )


def test_sums_do_not_overflow_where_half_precision_would() -> None:
    operator = matmul("int8", 4, 256, accum_dtype="float16")
    A, W = np.full((1, 256), 30.0, np.float16), np.full((4, 256), 100, np.int8)
    assert (interpreted(operator, A, operator.transform_weight(W)) == 30.0 * 100 * 256).all()


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "e4m3"])
@pytest.mark.parametrize("activations", ["int8", "float8_e4m3fn"])
def test_8_bit_activations_have_scales(name: str, activations: str) -> None:
    """Per token by group, in half precision: what was not supported at all."""
    config = {"with_scaling": True, "group_size": 16, "a_scale": "token", "out": "float32"}
    operator = matmul(name, 9, 48, activations, **config)
    args, named = random_operands(operator.config, 5, "cpu")
    if name == "e4m3":
        args[1] = operator.transform_weight(all_codes(name, (9, 48)))
    found = interpreted(operator, *args, **named)
    of = number_format(name)
    from tilewright.formats import unpack_plain

    dense = of.decode(unpack_plain(args[1].view(np.uint8), 48, of.bits)) * np.repeat(args[2].astype(np.float64), 16, 1)
    A = args[0].astype(np.float64) * named["a_scale"]
    assert (np.abs(found - A @ dense.T) <= 60 * 2.0**-24 * (np.abs(A) @ np.abs(dense).T)).all()


def test_nf4_takes_scales() -> None:
    operator = matmul("nf4", 6, 32, with_scaling=True, group_size=16)
    codes, scales = RNG.integers(0, 16, (6, 32), dtype=np.uint8), RNG.random((6, 2)).astype(np.float16)
    found = interpreted(operator, np.eye(32, dtype=np.float16), operator.transform_weight(codes), scales)
    exact = number_format("nf4").decode(codes) * np.repeat(scales.astype(np.float64), 16, axis=1)
    np.testing.assert_allclose(found.T, exact, rtol=2.0**-10)


@pytest.mark.parametrize("mode", ["original", "rescale", "quantized"])
def test_zeros_of_every_mode(mode: str) -> None:
    operator = matmul("uint4", 6, 32, with_scaling=True, with_zeros=True, zeros_mode=mode, group_size=16)
    codes, scales = RNG.integers(0, 16, (6, 32), dtype=np.uint8), RNG.random((6, 2)).astype(np.float16)
    zeros = RNG.integers(0, 16, (6, 2))
    given = pack_plain(zeros.T.astype(np.uint8), 4).view(np.int8) if mode == "quantized" else zeros.astype(np.float16)
    found = interpreted(operator, np.eye(32, dtype=np.float16), operator.transform_weight(codes), scales, given)
    wide = [np.repeat(array.astype(np.float64), 16, axis=1) for array in (scales, zeros)]
    exact = codes * wide[0] - wide[1] if mode == "rescale" else (codes - wide[1]) * wide[0]
    np.testing.assert_allclose(found.T, exact, rtol=2.0**-10, atol=2.0**-6 if mode == "rescale" else 0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_zeros_of_every_width(bits: int) -> None:
    """Those of 3, 5, 6 and 7 bits lie in two bytes: the second was not read."""
    operator = matmul(f"uint{bits}", 11, 32, with_scaling=True, with_zeros=True, zeros_mode="quantized", group_size=16)
    codes, scales = RNG.integers(0, 1 << bits, (11, 32), dtype=np.uint8), RNG.random((11, 2)).astype(np.float16)
    zeros = RNG.integers(0, 1 << bits, (11, 2), dtype=np.uint8)
    given = pack_plain(np.ascontiguousarray(zeros.T), bits).view(np.int8)
    found = interpreted(operator, np.eye(32, dtype=np.float16), operator.transform_weight(codes), scales, given)
    wide = [np.repeat(array.astype(np.float64), 16, axis=1) for array in (scales, zeros)]
    np.testing.assert_allclose(found.T, (codes - wide[1]) * wide[0], rtol=2.0**-10)


def test_transforming_keeps_scales_zeros_and_bias() -> None:
    operator = matmul("uint4", 4, 16)
    made = operator.transform_weight(np.ones((4, 16)), "scale", "zeros", "bias")
    assert made[1:] == ["scale", "zeros", "bias"] and list(made[0].shape) == operator.retrieve_weight_shape()


def test_operands_for_timing_are_no_zeros() -> None:
    (A, W, scale, _, _), named = random_operands(
        matmul("int4", 64, 64, "int8", with_scaling=True, a_scale="token").config, 8, "cpu"
    )
    assert len(np.unique(A)) > 100 and len(np.unique(W)) > 100 and (scale > 0).all() and (named["a_scale"] > 0).all()


@pytest.mark.parametrize("M", [1, 5, 16, 17])
def test_what_lies_behind_a_row_is_not_multiplied(M: int) -> None:
    """Groups that end behind the last column: on a processor a few rows were read on into the next, the last one into other memory."""
    rng = np.random.default_rng(0)
    weight = quantize(rng.standard_normal((200, 192)), "fp8_block")
    around = np.full((M + 2, 192), np.nan, np.float32)
    x = around[:M]
    x[:] = rng.standard_normal((M, 192))
    exact = x.astype(np.float64) @ weight.dequantize().T
    found = quant_matmul(x, PackedWeight.pack(weight))
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()
    x[M // 2, :64] = np.inf
    found = quant_matmul(x, PackedWeight.pack(weight))
    assert np.isfinite(np.delete(found, M // 2, 0)).all()
