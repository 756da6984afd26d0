"""Hopper's tier for 8-bit operands with a weight scaled in 128 x 128 blocks: every scale of the activation, tails, any number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import random_weight

from tilewright.ir.dtypes import dtype
from tilewright.kernels.recipe import Request
from tilewright.matmul import PackedWeight
from tilewright.matmul.product import Product, explain
from tilewright.quant import quantize

TARGET = "cuda -arch=sm_90a"
E4M3 = dtype("float8_e4m3fn").numpy
N, K = 200, 272
RNG = np.random.default_rng(0)
WEIGHT = quantize(RNG.standard_normal((N, K)) * 0.05, "fp8_block")
PACKED = PackedWeight.pack(WEIGHT)
SCALES = {
    "group": lambda rows: RNG.uniform(0.5, 2, (rows, 3)).astype(np.float32),
    "group, column by column": lambda rows: np.asfortranarray(RNG.uniform(0.5, 2, (rows, 3)).astype(np.float32)),
    "token": lambda rows: RNG.uniform(0.5, 2, (rows, 1)).astype(np.float32),
    "tensor": lambda rows: np.array([1.5], np.float32),
    "none": lambda rows: None,
}


@pytest.mark.parametrize("kind, rows, bias", [
    ("group", 5, False), ("group", 70, True), ("group, column by column", 65, False), ("token", 9, True), ("tensor", 3, False),
    ("none", 1, False),
])  # fmt: skip
def test_products(kind: str, rows: int, bias: bool) -> None:
    x, scales = RNG.standard_normal((rows, K)).astype(E4M3), SCALES[kind](rows)
    shift = RNG.standard_normal(N).astype(np.float32) if bias else None
    out = np.full((rows, N), 77, np.float32)
    call = Product.of(x, PACKED, activation_scales=scales, bias=shift, out=out, target=TARGET)
    assert call.prepared.tier == "blocks"
    call.emulate()
    factors: Any = (
        1.0
        if scales is None
        else np.repeat(scales.astype(np.float64), 128, 1)[:, :K]
        if kind.startswith("group")
        else scales
    )
    wide, dense = x.astype(np.float64) * factors, WEIGHT.to_dense()
    exact, size = wide @ dense.T + (0.0 if shift is None else shift), np.abs(wide) @ np.abs(dense).T
    assert (np.abs(out - exact) <= 128 * 2.0**-14 * size + 2.0**-20 * np.abs(exact)).all()


def test_activations_quantised_in_the_call_meet_scaled_blocks() -> None:
    text = explain(PACKED.facts, Request("bfloat16", "bfloat16", quantize="float8_e4m3fn", rows=64), TARGET)
    assert text.startswith("blocks on cuda sm_90a")


@pytest.mark.parametrize("request_, reason", [
    (Request("float8_e5m2", "bfloat16"), "float8_e5m2 by e4m3 is decoded first"),
    (Request("float8_e4m3fn", "bfloat16", "group", activation_group=64), "activation scales of 64 columns"),
    (Request("float8_e4m3fn", "int8"), "results of int8"),
])  # fmt: skip
def test_what_it_leaves_to_others(request_: Request, reason: str) -> None:
    assert f"not blocks: {reason}" in explain(PACKED.facts, request_, TARGET)
    grouped = Request("float8_e4m3fn", "bfloat16", "group", activation_group=64)  # no tier before it serves a processor
    assert "blocks (GPUs)" in explain(PACKED.facts, grouped, "cpu")


@pytest.mark.parametrize("rows", [1, 17])
def test_integers_in_blocks_are_for_other_tiers(rows: int) -> None:
    """They were this tier's, whose product then found that its sums are whole."""
    weight = random_weight(
        RNG, "int8", (72, 288), scales=RNG.uniform(0.01, 0.1, (1, 3)).astype(np.float32), block=(128, 128)
    )
    x = RNG.standard_normal((rows, 288)).astype(np.float32)
    call = Product.of(
        x, PackedWeight.pack(weight), quantize="int8", out=np.full((rows, 72), 77, np.float32), target=TARGET
    )
    assert call.prepared.tier != "blocks"
    found = call.emulate()
    largest = np.abs(x).max(1, keepdims=True)
    codes = np.rint(x * (127 / largest.astype(np.float64)).astype(np.float32))
    exact = codes * (largest / 127.0) @ weight.to_dense().T
    assert np.abs(found - exact).max() <= 1e-4 * np.abs(exact).max()
