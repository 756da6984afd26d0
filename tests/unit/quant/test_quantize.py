"""Quantising weights: codes round to nearest, stay in range, and stand for what they were made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import CannotQuantize
from tilewright.ir.dtypes import unpack
from tilewright.quant import quantize

KINDS = [("int2", "none"), ("int4", "none"), ("int8", "none"), ("uint2", "middle"), ("uint4", "middle"),
         ("uint8", "middle"), ("uint2", "group"), ("uint4", "group"), ("uint8", "group")]  # fmt: skip


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(0, 1 << 30), st.sampled_from([1e-30, 0.02, 1.0, 1e30]))
def test_every_element_is_within_half_a_step(kind: tuple[str, str], seed: int, size: float) -> None:
    name, zeros = kind
    weight = np.random.default_rng(seed).standard_normal((5, 48)) * size
    weight[1, :16] = 0.0
    made = quantize(weight, name, group=16, zeros=zeros)
    steps = np.repeat(made.scales, 16, axis=0).T.astype(np.float64)
    # A zero point rounded to a whole code moves a group's ends by at most half a step more.
    slack = 0.5 + (0.5 if zeros == "group" else 0.0) + 1e-5
    assert (np.abs(made.dequantize() - weight) <= slack * steps).all()
    assert made.codes.min() >= made.dtype.minimum and made.codes.max() <= made.dtype.maximum
    assert (made.dequantize()[1, :16] == 0.0).all()


@pytest.mark.parametrize(("name", "zeros"), KINDS)
def test_the_formula_is_the_documented_one(name: str, zeros: str) -> None:
    weight = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    made = quantize(weight, name, group=8, zeros=zeros)
    assert made.scales.shape == (4, 3) and made.shape == (3, 32)
    assert (made.zeros is None) == (made.zero is not None)
    for n in range(3):
        for k in range(32):
            zero = made.zero if made.zeros is None else made.zeros[k // 8, n]
            expected = np.float32(np.float32(made.codes[n, k]) - np.float32(zero)) * made.scales[k // 8, n]
            assert made.dequantize()[n, k] == expected


def test_codes_are_packed_low_bits_first_along_k() -> None:
    made = quantize(np.random.default_rng(2).standard_normal((4, 6)), "uint4", group=None)
    assert made.packed.shape == (4, 3)
    assert (made.packed[:, 0] == made.codes[:, 0] | made.codes[:, 1] << 4).all()
    assert (unpack(made.packed, made.dtype, 6) == made.codes).all()
    assert made.group == 6 and made.bits_per_element == pytest.approx(4 + 32 / 6)


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (np.ones(4), {}, "a weight has two dimensions, [N, K], not 1"),
        (np.ones((2, 6)), {"group": 4}, "groups of 4 do not divide K = 6\n  help: None is one group for all"),
        (np.array([[1.0, np.nan]]), {}, "the weight is nan at [0, 1]\n  help: only finite weights have codes"),
        (
            np.ones((2, 128)),
            {"to": "float16"},
            "float16 holds no codes\n  help: integer types of 2 to 8 bits do, int4 or uint4 for example",
        ),
        (
            np.ones((2, 128)),
            {"to": "int4", "zeros": "group"},
            "int4 does not go with zeros='group'\n  help: use none",
        ),
        (np.ones((2, 128)), {"zeros": "some"}, "no kind of zeros 'some'\n  help: known: none, middle, group"),
    ],
)
def test_what_cannot_be_quantised_is_refused(weight: np.ndarray, options: dict[str, object], message: str) -> None:
    with pytest.raises(CannotQuantize) as caught:
        quantize(weight, **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_scales_and_zeros_must_be_finite() -> None:
    made = quantize(np.ones((3, 32)), "uint4", group=8, zeros="group")
    scales, zeros = made.scales.copy(), made.zeros.copy()
    scales[2, 1], zeros[0, 2] = np.nan, np.inf
    with pytest.raises(CannotQuantize) as caught:
        replace(made, scales=scales)
    assert str(caught.value) == (
        "the scale of group 2 of row 1 is nan\n  help: only finite scales and zero points give a weight"
    )
    with pytest.raises(CannotQuantize, match="the zero point of group 0 of row 2 is inf"):
        replace(made, zeros=zeros)
