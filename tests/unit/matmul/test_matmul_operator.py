"""`MatmulConfig` and `Matmul`: BitBLAS's names and shapes, layouts, epilogues, output types, and one sentence for each mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import interpreted

import tilewright
from tilewright.errors import MissingOperand, NoDevice, Unsupported, WrongArgumentDType, WrongArgumentShape
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight

RNG = np.random.default_rng(0)


def make(**rest: Any) -> Matmul:
    given = {"N": 12, "K": 32, "W_dtype": "int4", "A_dtype": "float16", "out_dtype": "float32", **rest}
    return Matmul(MatmulConfig(**given), target="cpu")


def test_the_names_of_bitblas() -> None:
    operator = make(M=[1, 16], with_scaling=True, propagate_b=3, fast_decoding=True)
    assert operator.retrieve_weight_shape() == [12, 16] and operator.bit == 4 and operator.M == (1, 16)
    assert operator.input_transform is None and operator.weight_transform(np.zeros((12, 32), np.uint8)).shape == (
        12,
        16,
    )
    assert "general_matmul" in operator.get_source() and "kernel(" in operator.scheduled_ir_module
    assert "panels on cpu" in operator.explain() and hash(operator.config) == hash(
        make(M=[1, 16], with_scaling=True, propagate_b=3, fast_decoding=True).config
    )
    assert tilewright.Matmul is Matmul


@pytest.mark.parametrize("layout", ["nt", "nn", "tt", "tn"])
def test_layouts(layout: str) -> None:
    operator = make(layout=layout)
    W, A = RNG.integers(-8, 8, (12, 32)), RNG.standard_normal((5, 32)).astype(np.float16)
    packed = operator.transform_weight(W.T if layout[1] == "n" else W)
    found = interpreted(operator, A.T if layout[0] == "t" else A, packed)
    np.testing.assert_allclose(found, A.astype(np.float64) @ W.T, rtol=1e-5, atol=1e-4)


def test_sizes_and_types_of_numpy_and_torch_are_those_of_python() -> None:
    torch = pytest.importorskip("torch")
    given = MatmulConfig(
        M=np.array([1, 16]), N=np.int64(12), K=np.int32(32), A_dtype=np.float16, W_dtype=torch.int8, out_dtype=torch.float32,
        group_size=np.int16(16), with_scaling=np.True_, scale_granularity=[np.int8(1), 16],
    )  # fmt: skip
    plain = MatmulConfig(
        M=(1, 16), N=12, K=32, A_dtype="float16", W_dtype="int8", out_dtype="float32", group_size=16, with_scaling=True,
        scale_granularity=(1, 16),
    )  # fmt: skip
    assert given == plain and hash(given) == hash(plain) and repr(given) == repr(plain)


def test_a_scale_for_each_channel_whatever_the_groups() -> None:
    operator = make(with_scaling=True, group_size=16, scale_granularity="channel")
    W, scale = RNG.integers(-8, 8, (12, 32)), RNG.random((12, 1)).astype(np.float16)
    A = RNG.standard_normal((3, 32)).astype(np.float16)
    exact = A.astype(np.float64) @ (W * scale.astype(np.float64)).T
    np.testing.assert_allclose(operator(A, operator.transform_weight(W), scale), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["nt", "nn", "tt", "tn"])
@pytest.mark.parametrize("name", ["int4", "int8"])
@pytest.mark.parametrize("held", [np.int8, np.int64])
def test_stored_codes_of_any_integers(layout: str, name: str, held: Any) -> None:
    """Codes were read as bytes whatever their type, and elements of 8 bits came out in rows in every layout."""
    operator = make(layout=layout, W_dtype=name)
    W = RNG.integers(-8, 8, (12, 32)).astype(held)
    turned = W.T if layout[1] == "n" else W
    found = operator.weight_transform(turned)
    np.testing.assert_array_equal(found, operator.transform_weight(turned))
    assert list(found.shape) == operator.retrieve_weight_shape()


def test_batches_of_activations_in_columns() -> None:
    operator = make(layout="tt")
    W, A = RNG.integers(-8, 8, (12, 32)), RNG.standard_normal((2, 32, 5)).astype(np.float16)
    exact = A.swapaxes(-1, -2).astype(np.float64) @ W.T
    np.testing.assert_allclose(operator(A, operator.transform_weight(W)), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("function", ["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", None])
def test_epilogues(function: str | None) -> None:
    operator = make(function=function, with_bias=True, with_residual=True)
    W, A = RNG.integers(-8, 8, (12, 32)), (RNG.standard_normal((3, 32)) * 0.1).astype(np.float16)
    bias, residual = RNG.standard_normal(12).astype(np.float16), RNG.standard_normal((3, 12)).astype(np.float32)
    found = interpreted(operator, A, operator.transform_weight(W), None, None, bias, residual=residual)
    y = A.astype(np.float64) @ W.T + bias
    import math

    erf = np.vectorize(math.erf)
    exact = {
        None: y, "relu": np.maximum(y, 0), "gelu": y / 2 * (1 + erf(y / np.sqrt(2))), "sigmoid": 1 / (1 + np.exp(-y)),
        "gelu_tanh": y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), "silu": y / (1 + np.exp(-y)),
        "tanh": np.tanh(y),
    }[function]  # fmt: skip
    np.testing.assert_allclose(found, exact + residual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32", "float8_e4m3fn", "int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("scaled", [False, True])
def test_results_of_every_type(out: str, scaled: bool) -> None:
    operator = make(A_dtype="int8", out_dtype=out, with_scaling=scaled)
    A, W = RNG.integers(-12, 12, (4, 32)).astype(np.int8), RNG.integers(-8, 8, (12, 32))
    scale = [np.full((12, 1), 0.21, np.float16)] if scaled else []
    found = interpreted(operator, A, operator.transform_weight(W), *scale)
    exact = (A.astype(np.int64) @ W.T) * (np.float32(np.float16(0.21)) if scaled else 1)
    of = tilewright.dtype(out)
    if of.is_integer:
        expected = np.clip(np.rint(exact), int(of.minimum), int(of.maximum)).astype(of.numpy)
    else:
        expected = np.clip(exact.astype(np.float32), of.minimum, of.maximum).astype(of.numpy)
    np.testing.assert_array_equal(found, expected)


def test_activation_scales_of_tensors_and_groups() -> None:
    W, A = RNG.integers(-8, 8, (12, 32)), RNG.integers(-128, 128, (4, 32)).astype(np.int8)
    for kind, shape in (("tensor", (1, 1)), ("token", (4, 1)), (16, (4, 2)), (8, (4, 4))):
        operator = make(A_dtype="int8", a_scale=kind)
        scales = RNG.uniform(0.5, 2.0, shape).astype(np.float32)
        found = interpreted(operator, A, operator.transform_weight(W), a_scale=scales)
        wide = A * np.repeat(np.broadcast_to(scales.astype(np.float64), (4, shape[1])), 32 // shape[1], axis=1)
        np.testing.assert_allclose(found, wide @ W.T, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("held", ["float16", "bfloat16", "float64", "float8_e8m0fnu", "float8_e4m3fn"])
def test_activation_scales_of_any_type(held: str) -> None:
    operator = make(A_dtype="int8", a_scale="token")
    W, A = RNG.integers(-8, 8, (12, 32)), RNG.integers(-128, 128, (4, 32)).astype(np.int8)
    scales = (2.0 ** RNG.integers(-3, 3, (4, 1))).astype(tilewright.dtype(held).numpy)
    for weight in (operator.transform_weight(W), operator.pack(W)):
        np.testing.assert_array_equal(operator(A, weight, a_scale=scales), (A * scales.astype(np.float64)) @ W.T)


def test_a_packed_weight_brings_its_own_scales() -> None:
    operator = make(with_scaling=True, group_size=16)
    W, scale = RNG.integers(-8, 8, (12, 32)), RNG.random((12, 2)).astype(np.float16)
    packed = operator.pack(W, scale)
    assert isinstance(packed, PackedWeight)
    A = RNG.standard_normal((3, 32)).astype(np.float16)
    exact = A.astype(np.float64) @ (W * np.repeat(scale.astype(np.float64), 16, axis=1)).T
    np.testing.assert_allclose(operator(A, packed), exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(operator(A, operator.transform_weight(W), scale), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"A_dtype": "int32"}, "activations of int32 are not supported\n  help: supported: float16, bfloat16, float32, float64, int8, uint8, int4, uint4, int2, uint2, float8_e4m3fn, float8_e5m2"),
        ({"layout": "xt"}, "the layout 'xt' is not supported\n  help: supported: nt, nn, tt, tn"),
        ({"N": None}, "the size N = None is not supported\n  help: supported: positive integers"),
        ({"with_zeros": True, "zeros_mode": "quantized"}, "zeros_mode 'quantized' with W_dtype int4 are not supported\n  help: supported: unsigned integers: uint4, ..."),
        ({"function": "swish"}, "the activation function 'swish' is not supported\n  help: supported: relu, gelu, gelu_tanh, silu, sigmoid, tanh"),
        ({"out_dtype": "int4"}, "results of int4 are not supported\n  help: supported: floats and integers of 8 bits and more"),
        ({"quantize": "int4"}, "quantising activations to int4 is not supported\n  help: supported: int8, float8_e4m3fn, float8_e5m2"),
        ({"accum_dtype": "int8"}, "sums in int8 are not supported\n  help: supported: int32, float32, float64, float16 (by float32)"),
    ],
)  # fmt: skip
def test_configs_that_no_kernel_computes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        make(**options)
    assert str(caught.value) == message


def test_missing_and_wrong_operands() -> None:
    operator = make(with_scaling=True, with_bias=True)
    A, W, s, b = (
        np.zeros((2, 32), np.float16),
        np.zeros((12, 16), np.int8),
        np.ones((12, 1), np.float16),
        np.ones(12, np.float16),
    )
    for arguments, kind, message in (
        ((A, W), MissingOperand, "matmul was called without scale\n  help: its config has with_scaling"),
        ((A, W, s), MissingOperand, "matmul was called without bias\n  help: its config has with_bias"),
        ((A, W, s, s, b), MissingOperand, "matmul was given zeros, which its config does not have\n  help: set with_zeros in the MatmulConfig"),
        ((A, W, s.T, None, b), WrongArgumentShape, "scale has shape [1, 12], expected [12, 1]"),
        ((A, W[:3], s, None, b), WrongArgumentShape, "W has shape [3, 16], expected [12, 16]"),
        ((A[:, :31], W, s, None, b), WrongArgumentShape, "A has shape [2, 31], expected [..., 32]"),
        ((A.astype(np.float32), W, s, None, b), WrongArgumentDType, "A is float32, but the config's A_dtype is float16"),
        ((A, W, s.astype(np.float32), None, b), WrongArgumentDType, "scale is float32, expected float16"),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            operator(*arguments)
        assert str(caught.value) == message
    with pytest.raises(WrongArgumentShape, match=r"the weight has shape \[32, 12\], expected \[N, K\] = \[12, 32\]"):
        operator.transform_weight(np.zeros((32, 12)))


def test_a_target_that_is_not_here_cannot_be_timed() -> None:
    operator = Matmul(MatmulConfig(N=16, K=32), target="cuda -arch=sm_90a")
    with pytest.raises(NoDevice, match="there is no cuda device here to measure on"):
        operator.hardware_aware_finetune(topk=2)
