"""Epilogues in the tier of processors: formats, activations and numbers of rows, against our product without one, finished in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.facts import Request
from tilewright.matmul.tiers.dispatch import choose
from tilewright.quant import quantize
from tilewright.targets.registry import resolve

pytestmark = pytest.mark.sampled(14)

FORMATS = ["int2", "uint4", "int4", "int8", "e2m1", "nf4", "e4m3"]
EPILOGUES = [
    {"bias": "float32"}, {"bias": "float16", "function": "gelu"}, {"residual": True}, {"function": "silu"},
    {"bias": "float32", "function": "relu", "residual": True},
]  # fmt: skip
FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) if x.size else x,
}  # fmt: skip
CASES = list(itertools.product(FORMATS, [None, "int8"], range(len(EPILOGUES))))
ROWS = [0, 1, 2, 7, 33, 130]


@pytest.mark.parametrize(("format", "quantised", "number"), CASES)
def test_epilogues_of_panels(format: str, quantised: str | None, number: int) -> None:
    draw = np.random.default_rng(CASES.index((format, quantised, number)))
    epilogue, N, K = EPILOGUES[number], 72, 256
    weight = PackedWeight.pack(quantize(draw.standard_normal((N, K)).astype(np.float32), format, group=64))
    function = epilogue.get("function")
    for rows in ROWS:
        x = draw.standard_normal((rows, K)).astype(np.float32)
        given = {}
        if "bias" in epilogue:
            given["bias"] = draw.standard_normal(N).astype(epilogue["bias"])
        if "residual" in epilogue:
            given["residual"] = draw.standard_normal((rows, N)).astype(np.float32)
        out = np.full((rows, N), np.nan, np.float32)
        quant_matmul(x, weight, quantize=quantised, function=function, out=out, **given)
        expected = quant_matmul(x, weight, quantize=quantised).astype(np.float64)
        expected = expected + given.get("bias", np.zeros(N, np.float32)).astype(np.float64)
        expected = FUNCTIONS[function](expected) if function else expected
        expected = expected + given.get("residual", np.zeros((rows, N), np.float32))
        np.testing.assert_allclose(out, expected, rtol=4e-6, atol=4e-5)


@pytest.mark.parametrize("more", [{"bias": "float32"}, {"function": "gelu"}, {"residual": True}])
def test_a_call_with_an_epilogue_takes_the_tier_that_it_takes_without(more: dict) -> None:
    weight = PackedWeight.pack(quantize(np.eye(64, 128, dtype=np.float32), "int4", group=64))
    arch = resolve("cpu")[1]
    assert choose(weight.facts, Request("float32", "float32", **more), arch)[0].name == "panels"
