"""GPTQ: better than rounding to nearest on its inputs, the same where inputs are independent, exact where it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import CannotQuantize
from tilewright.quant import quantize
from tilewright.quant.gptq import Hessian, gptq_quantize


def case(seed: int, N: int = 12, K: int = 96, samples: int = 400) -> tuple[np.ndarray, np.ndarray, Hessian]:
    """A weight, correlated inputs of very different sizes, and their Hessian."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((K // 3, K)) * rng.uniform(0.2, 3.0, K)
    inputs = rng.standard_normal((samples, K // 3)) @ mix + 0.3 * rng.standard_normal((samples, K))
    hessian = Hessian(K)
    hessian.add(inputs[:150].reshape(3, 50, K))
    hessian.add(inputs[150:])
    return rng.standard_normal((N, K)), inputs, hessian


def simple_gptq(
    weight: np.ndarray, hessian: np.ndarray, scale: np.ndarray, low: int, high: int, damping: float
) -> np.ndarray:
    """Optimal brain quantisation, column by column, with the inverse Hessian downdated at every step: no Cholesky, no blocks."""
    weight, H = weight.copy(), hessian + np.eye(len(hessian)) * damping * np.diag(hessian).mean()
    inverse = np.linalg.inv(H)
    for k in range(weight.shape[1]):
        rounded = np.clip(np.rint(weight[:, k] / scale), low, high) * scale
        error = (weight[:, k] - rounded) / inverse[k, k]
        weight -= np.outer(error, inverse[k])
        weight[:, k] = rounded
        inverse -= np.outer(inverse[:, k], inverse[k]) / inverse[k, k]
        inverse[k, k] = 1.0  # never read again
        inverse[k, k + 1 :] = inverse[k + 1 :, k] = 0.0
    return weight


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["int3", "int4"]))
def test_it_is_the_column_by_column_method(seed: int, to: str) -> None:
    weight, _, hessian = case(seed, K=140, N=4, samples=300)
    made = gptq_quantize(weight, hessian, to, group=None)
    scale = quantize(weight, to, group=None).scales
    assert scale is not None
    half = 1 << (int(to[-1]) - 1)
    expected = simple_gptq(weight, hessian.value, scale[:, 0].astype(np.float64), -half, half - 1, 0.01)
    # A tie that rounding errors decide one way or the other changes what follows it in that row.
    equal = np.isclose(made.dequantize(), expected, atol=1e-6).all(axis=1)
    assert equal.mean() >= 0.9


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("to", "group", "zeros"),
    [
        ("uint4", 32, "middle"),
        ("uint4", 16, "group"),
        ("int3", None, None),
        ("nf4", 32, None),
        ("e2m1", 48, None),
        ("uint2", 32, "group"),
    ],
)
def test_results_change_less_than_by_rounding_to_nearest(
    to: str, group: int | None, zeros: str | None, act_order: bool
) -> None:
    weight, inputs, hessian = case(0)
    nearest = quantize(weight, to, group=group, zeros=zeros)
    made = gptq_quantize(weight, hessian, to, group=group, zeros=zeros, act_order=act_order)
    errors = [np.linalg.norm(inputs @ (q.dequantize() - weight).T) for q in (made, nearest)]
    assert errors[0] < 0.75 * errors[1]
    assert made.shape == weight.shape and (made.g_idx is not None) == (act_order and group is not None)


def test_independent_inputs_of_one_size_leave_nothing_to_gain() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 64))
    made = gptq_quantize(weight, np.eye(64), "int4", group=16)
    assert (made.dequantize() == quantize(weight, "int4", group=16).dequantize()).all()


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weight, inputs, _ = case(1)
    inputs[:, 10:20] = 0.0
    hessian = Hessian(96)
    hessian.add(inputs)
    made = gptq_quantize(weight, hessian, "int4", group=32)
    assert np.abs(made.dequantize() - weight)[:, 10:20].max() < 1.0
    assert np.isfinite(made.dequantize()).all()


def test_groups_that_cross_blocks_use_updated_columns() -> None:
    weight, inputs, hessian = case(2, K=300, samples=900)
    made = gptq_quantize(weight, hessian, "uint4", group=100, zeros="group")
    nearest = quantize(weight, "uint4", group=100, zeros="group")
    errors = [np.linalg.norm(inputs @ (q.dequantize() - weight).T) for q in (made, nearest)]
    assert errors[0] < 0.8 * errors[1] and made.scales is not None and made.scales.shape == (12, 3)


def test_mistakes() -> None:
    weight, _, hessian = case(0)
    with pytest.raises(CannotQuantize, match=r"the Hessian is \[5, 5\], but the weight has K = 96"):
        gptq_quantize(weight, np.eye(5))
    with pytest.raises(CannotQuantize, match="calibration inputs have 7 columns, the weight 96"):
        hessian.add(np.zeros((3, 7)))
    with pytest.raises(CannotQuantize, match="calibration inputs are not finite"):
        hessian.add(np.full((3, 96), np.nan))
    with pytest.raises(CannotQuantize, match="cannot be inverted"):
        gptq_quantize(weight, -np.eye(96))
