"""Weights as codes: act-order, second-level scales, zeros of all modes, and what is refused, named with its index."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import CannotQuantize, InvalidCode, NotRepresentable
from tilewright.quant import QuantizedWeight

RNG = np.random.default_rng(0)


def test_zeros_modes() -> None:
    codes = RNG.integers(0, 16, (3, 8), dtype=np.uint8)
    scales, zeros = RNG.uniform(0.5, 2, (3, 2)), RNG.integers(0, 16, (3, 2))
    wide = [np.repeat(a, 4, axis=1) for a in (scales, zeros)]
    for mode, expected in (
        ("original", (codes - wide[1]) * wide[0]),
        ("quantized", (codes - wide[1]) * wide[0]),
        ("rescale", codes * wide[0] - wide[1]),
    ):
        made = QuantizedWeight(codes, "uint4", scales, zeros, mode, block=(1, 4))
        np.testing.assert_array_equal(made.dequantize(), expected)


def test_act_order_takes_the_group_of_each_column() -> None:
    codes = RNG.integers(0, 16, (3, 8), dtype=np.uint8)
    scales, g_idx = RNG.uniform(0.5, 2, (3, 2)), np.array([0, 1, 1, 0, 0, 0, 1, 1], np.int32)
    made = QuantizedWeight(codes, "uint4", scales, block=(1, 4), g_idx=g_idx)
    np.testing.assert_array_equal(made.dequantize(), codes * scales[:, g_idx])


def test_second_level_scales_multiply_before_the_scale_of_a_channel() -> None:
    codes = RNG.integers(0, 16, (3, 8), dtype=np.uint8)
    multipliers, scales = RNG.integers(1, 17, (3, 2)).astype(np.int8), RNG.uniform(0.5, 2, (3, 1))
    zeros = np.full((3, 2), 7)
    made = QuantizedWeight(codes, "uint4", scales, zeros, block=(1, 4), multipliers=multipliers)
    expected = (codes - 7.0) * np.repeat(multipliers, 4, axis=1) * scales
    np.testing.assert_allclose(made.dequantize(), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("values", "format", "message"),
    [
        ([[0, 8]], "int4", "the value 8 at index [0, 1] is none of int4's\n  help: int4 has the whole numbers from -8 to 7"),
        ([[-1, 0]], "int1", "the value 0 at index [0, 1] is none of int1's\n  help: int1 has -1, 1"),
        ([[1, -2]], "ternary", "the value -2 at index [0, 1] is none of ternary's\n  help: ternary has -1, 0, 1"),
        ([[2]], "uint1", "the value 2 at index [0, 0] is none of uint1's\n  help: uint1 has 0, 1"),
        ([[np.nan]], "e2m1", "the value nan at index [0, 0] is none of e2m1's\n"
         "  help: e2m1 has -6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_named_with_their_index(values: list[list[float]], format: str, message: str) -> None:
    with pytest.raises(NotRepresentable) as caught:
        QuantizedWeight.from_values(np.array(values), format)
    assert str(caught.value) == message


def test_codes_out_of_range_are_named_with_their_index() -> None:
    with pytest.raises(InvalidCode) as caught:
        QuantizedWeight(np.array([[3, 16]], np.uint8), "uint4")
    assert str(caught.value) == "the code 16 at index [0, 1] is none of uint4's\n  help: uint4 has the codes 0 to 15"
    with pytest.raises(InvalidCode, match=r"the code 2 at index \[0, 1\] is none of ternary's"):
        QuantizedWeight(np.array([[3, 2]], np.uint8), "ternary")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scales": np.ones((2, 3))},
            "the scales have shape [2, 3], expected [4, 2]\n"
            "  help: the weight is [4, 8] in groups of 1 x 4; 1 for either extent is the same in all groups",
        ),
        ({"divisors": np.ones(3)}, "divisors has shape [3], but K is 8\n  help: one element a column: [8]"),
        ({"g_idx": np.full(8, 2, np.int32)}, "g_idx[0] is 2, but there are 2 groups"),
        ({"zeros_mode": "some"}, "no zeros_mode 'some'\n  help: known: original, rescale, quantized"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(CannotQuantize) as caught:
        QuantizedWeight(np.zeros((4, 8), np.uint8), "uint4", block=(1, 4), **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_quantized_zeros_are_codes_of_an_unsigned_format() -> None:
    codes = np.zeros((2, 8), np.uint8)
    with pytest.raises(NotRepresentable, match=r"the value 16 at index \[1, 0\] is none of uint4's"):
        QuantizedWeight(codes, "uint4", zeros=np.array([[3], [16]]), zeros_mode="quantized")
    with pytest.raises(CannotQuantize, match="zeros_mode 'quantized' does not go with int4"):
        QuantizedWeight(codes, "int4", zeros=np.array([[3], [6]]), zeros_mode="quantized")


def test_tensors_of_torch_and_numbers_of_numpy_are_taken() -> None:
    torch = pytest.importorskip("torch")
    codes = torch.arange(16, dtype=torch.uint8).reshape(2, 8)
    scales = torch.tensor([[0.5, 1.0], [2.0, 4.0]], dtype=torch.bfloat16)
    block: tuple[int, int] = (np.int64(1), np.int32(4))  # type: ignore[assignment]
    made = QuantizedWeight(codes, "uint4", scales, block=block, tensor_scale=np.array([2.0]))  # type: ignore[arg-type]
    assert made.block == (1, 4) and all(type(size) is int for size in made.block) and made.tensor_scale == 2.0
    exact = np.arange(16.0).reshape(2, 8) * np.repeat([[1.0, 2.0], [4.0, 8.0]], 4, axis=1)
    np.testing.assert_array_equal(made.dequantize(), exact)
