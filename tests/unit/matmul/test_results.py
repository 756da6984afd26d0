"""Results that the caller has memory for: of any strides, at any address, shared with what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tilewright.errors import ReadOnlyArgument, WrongArgumentShape, WrongArgumentStrides
from tilewright.formats import number_format
from tilewright.kernels.recipe import Grouped, WeightFacts
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.matmul.results import result_type
from tilewright.nn import Linear
from tilewright.quant import quantize

N = K = 24
RNG = np.random.default_rng(0)
PACKED = PackedWeight.pack(quantize(RNG.standard_normal((N, K)), "int4", group=8))
X = RNG.standard_normal((2, 3, K)).astype(np.float32)
WEIGHT = RNG.integers(-8, 8, (N, K)).astype(np.int8)
OPERATOR = Matmul(
    MatmulConfig(N=N, K=K, A_dtype="float32", W_dtype="int4", out_dtype="float32", with_residual=True), target="cpu"
)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return quant_matmul(X, PACKED)


def misaligned(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(4 * int(np.prod(shape)) + 1, 7, np.uint8)[1:].view(np.float32).reshape(shape)


@pytest.mark.parametrize(
    "activations, form, expected",
    [
        ("int8", "int4", "int32"), ("int8", "uint4", "int32"), ("int8", "e4m3", "float32"), ("int8", "int4-g8", "float32"),
        ("float8_e4m3fn", "int4", "float32"), ("float8_e5m2", "e4m3", "float32"), ("float16", "int4", "float16"),
        ("float32", "e4m3", "float32"),
    ],
)  # fmt: skip
def test_sums_of_whole_numbers_alone_are_whole_numbers(activations: str, form: str, expected: str) -> None:
    kind, _, group = form.partition("-g")
    scale = Grouped("float32", N, K // int(group)) if group else None
    facts = WeightFacts(N, K, K, number_format(kind), group=int(group or K), scale=scale)
    assert result_type(None, None, activations, facts, "none", None) == expected


OUTS = {
    "a slice of wider rows": lambda: np.full((2, 3, 40), np.nan, np.float32)[..., 5 : 5 + N],
    "columns first": lambda: np.full((N, 2, 3), np.nan, np.float32).transpose(1, 2, 0),
    "rows swapped": lambda: np.full((3, 2, N), np.nan, np.float32).transpose(1, 0, 2),
    "one dimension for all rows": lambda: np.full((6, N), np.nan, np.float32),
    "an odd address": lambda: misaligned((2, 3, N)),
}


def raw(x: Any, residual: Any, output: Any, kind: Any) -> Any:
    return OPERATOR(x, kind(OPERATOR.transform_weight(WEIGHT)), residual=residual, output=output)


PAIRS = [(name, of) for name in OUTS for of in ("numpy", "torch") if (name, of) != ("an odd address", "torch")]
"""Torch makes no tensor of an array at an odd address."""


@pytest.mark.parametrize(("name", "of"), PAIRS)
def test_results_lie_where_the_caller_says(name: str, of: str, expected: np.ndarray) -> None:
    kind: Any = (lambda array: array) if of == "numpy" else torch.from_numpy
    out = kind(OUTS[name]())
    assert quant_matmul(kind(X), PACKED if of == "numpy" else PACKED.to("cpu"), out=out) is out
    np.testing.assert_array_equal(np.asarray(out).reshape(expected.shape), expected)
    out, residual = kind(OUTS[name]()), kind(np.ones((2, 3, N), np.float32))
    assert raw(kind(X), residual, out, kind) is out
    np.testing.assert_allclose(np.asarray(out).reshape(expected.shape), X @ WEIGHT.T.astype(float) + 1, atol=1e-4)


@pytest.mark.parametrize("of", ["numpy", "torch"])
def test_a_result_may_lie_where_operands_do(of: str, expected: np.ndarray) -> None:
    kind: Any = (lambda array: array) if of == "numpy" else torch.from_numpy
    weight = PACKED if of == "numpy" else PACKED.to("cpu")
    both = kind(X.copy())
    quant_matmul(kind(X), weight, residual=both, out=both)  # both += X @ W^T
    np.testing.assert_allclose(both, X + expected, atol=1e-5)
    both = kind(X.copy())
    quant_matmul(both, weight, residual=both, out=both)
    np.testing.assert_allclose(both, X + expected, atol=1e-5)
    shifted = kind(np.concatenate([X[0], X[1], X[0]]))
    quant_matmul(shifted[:6], weight, out=shifted[3:])
    np.testing.assert_array_equal(shifted[3:], expected.reshape(6, N))
    both = kind(X.copy())
    raw(kind(X), both, both, kind)
    np.testing.assert_allclose(both, X + X @ WEIGHT.T.astype(float), atol=1e-4)


def test_a_layer_may_write_over_its_activations() -> None:
    layer, x = Linear.from_float(torch.nn.Linear(N, N), "int4", group=8), torch.from_numpy(X.copy())
    expected = layer(x)
    assert layer(x, output=x) is x
    assert torch.equal(x, expected)


def test_activations_at_an_odd_address(expected: np.ndarray) -> None:
    x = misaligned((2, 3, K))
    x[...] = X
    np.testing.assert_array_equal(quant_matmul(x, PACKED), expected)


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(WrongArgumentStrides, match="out is expanded: several of its elements lie at one address"):
        quant_matmul(torch.from_numpy(X), PACKED.to("cpu"), out=torch.empty(N).expand(2, 3, N))
    with pytest.raises(ReadOnlyArgument, match="output is written by the call and is read-only"):
        raw(X, np.zeros((6, N), np.float32), np.broadcast_to(np.zeros(N, np.float32), (6, N)), lambda array: array)
    with pytest.raises(WrongArgumentShape, match=r"output has shape \[3, 2, 24\], expected \[2, 3, 24\]"):
        raw(X, np.zeros((6, N), np.float32), np.zeros((3, 2, N), np.float32), lambda array: array)
    with pytest.raises(WrongArgumentShape, match=r"residual has shape \[24, 6\], expected \[6, 24\]"):
        raw(X, np.zeros((N, 6), np.float32), None, lambda array: array)
