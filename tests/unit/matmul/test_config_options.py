"""What `MatmulConfig` offers, one option after another: raw tensors of torch as a user has them, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.compat import bitblas
from tilewright.formats import pack_plain
from tilewright.matmul import Matmul, MatmulConfig
from tilewright.matmul.arrays import as_torch
from tilewright.quant import QuantizedWeight

torch = pytest.importorskip("torch")

N, K, GROUP = 24, 64, 16
RNG = np.random.default_rng(0)
SCALED = {"with_scaling": True, "group_size": GROUP}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "layout nn": {"layout": "nn", **SCALED},
    "layout tt": {"layout": "tt", **SCALED},
    "layout tn": {"layout": "tn", **SCALED},
    "float32 scales": {"scale_dtype": "float32", **SCALED},
    "bfloat16 scales": {"scale_dtype": "bfloat16", **SCALED},
    "e8m0 scales": {"scale_dtype": "float8_e8m0fnu", **SCALED},
    "e4m3 scales": {"scale_dtype": "float8_e4m3fn", **SCALED},
    "a scale a channel": {"with_scaling": True},
    "one scale": {"with_scaling": True, "scale_granularity": "tensor"},
    "scales of blocks": {"with_scaling": True, "scale_granularity": (8, 32)},
    "zeros": {"with_zeros": True, **SCALED},
    "float32 zeros": {"with_zeros": True, "zeros_dtype": "float32", **SCALED},
    "rescaled zeros": {"with_zeros": True, "zeros_mode": "rescale", **SCALED},
    "packed zeros": {"with_zeros": True, "zeros_mode": "quantized", **SCALED},
    "zeros by int8": {"with_zeros": True, "A_dtype": "int8", "a_scale": "token", **SCALED},
    "rescaled zeros by int8": {"with_zeros": True, "zeros_mode": "rescale", "A_dtype": "int8", "a_scale": "token", **SCALED},
    "packed zeros by e4m3": {"with_zeros": True, "zeros_mode": "quantized", "A_dtype": "float8_e4m3fn", "a_scale": "tensor", **SCALED},
    "a_scale of groups": {"A_dtype": "int8", "a_scale": 16, **SCALED},
    "quantised in the call": {"quantize": "int8", **SCALED},
    "bias and function": {"with_bias": True, "function": "silu", **SCALED},
    "residual": {"with_residual": True, **SCALED},
    "float16 results": {"out_dtype": "float16", **SCALED},
    "M of any kind": {"M": None, **SCALED},
    "a list of M": {"M": [1, 16], **SCALED},
    "names of BitBLAS": {"storage_dtype": "int8", "fast_decoding": True, "propagate_a": 3, "propagate_b": 3, "accum_dtype": "float16", **SCALED},
}  # fmt: skip
QUICK = ("layout tn", "zeros by int8", "packed zeros", "scales of blocks")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.proof) for n in OPTIONS])
def test_an_option(name: str) -> None:
    given = {"A_dtype": "float16", "W_dtype": "uint4", "out_dtype": "float32", "N": N, "K": K, **OPTIONS[name]}
    config = MatmulConfig(**given)
    operator, facts = Matmul(config, target="cpu"), config.facts()
    codes = RNG.integers(0, 16, (N, K))
    made: dict[str, Any] = {"scale": None, "zeros": None, "bias": None, "a_scale": None, "residual": None}
    if facts.scale is not None:
        kind = ml_dtypes.float8_e8m0fnu if facts.scale.dtype == "float8_e8m0fnu" else config.scale_dtype or "float16"
        made["scale"] = np.exp2(RNG.integers(-5, 0, (facts.scale.rows, facts.scale.columns))).astype(kind)
    points = None
    if facts.zero_point is not None:
        points = RNG.integers(0, 16, (N, facts.groups))
        made["zeros"] = points.astype(config.zeros_dtype or "float16")
        if config.zeros_mode == "quantized":
            made["zeros"] = pack_plain(points.T.astype(np.uint8), 4).view(np.int8)
    weight = QuantizedWeight(
        codes.astype(np.uint8), "uint4", made["scale"], None if points is None else points.astype(np.float64),
        config.zeros_mode if config.zeros_mode != "quantized" else "original", config.block,
    )  # fmt: skip
    dense = weight.to_dense()
    A = RNG.integers(-100, 100, (5, K)).astype(np.int8) if config.A_dtype == "int8" else RNG.standard_normal((5, K)).astype(
        ml_dtypes.float8_e4m3fn if "e4m3" in config.A_dtype else np.float16
    )  # fmt: skip
    wide = A.astype(np.float64)
    if config.a_scale is not None:
        shape = {"token": (5, 1), "tensor": (1, 1)}.get(str(config.a_scale), (5, K // 16))
        made["a_scale"] = RNG.uniform(0.5, 2.0, shape).astype(np.float32)
        wide = wide * np.repeat(np.broadcast_to(made["a_scale"].astype(np.float64), (5, shape[1])), K // shape[1], 1)
    if config.quantize:
        largest = np.abs(wide).max(1, keepdims=True)
        wide = np.rint(A.astype(np.float32) * (127.0 / largest).astype(np.float32)) * (largest / 127.0).astype(
            np.float32
        )
    exact, size = wide @ dense.T, np.abs(wide) @ np.abs(dense).T
    if config.with_bias:
        made["bias"] = RNG.standard_normal(N).astype(np.float16)
        exact = exact + made["bias"]
    if config.function:
        exact = exact / (1 + np.exp(-exact))
    if config.with_residual:
        made["residual"] = RNG.standard_normal((5, N)).astype(np.float32)
        exact = exact + made["residual"]
    W = operator.transform_weight(torch.from_numpy(codes.T.copy() if config.layout[1] == "n" else codes))
    tensors = {n: None if array is None else as_torch(array, "cpu") for n, array in made.items()}
    x = as_torch(np.ascontiguousarray(A.T) if config.layout[0] == "t" else A, "cpu")
    order = [tensors.pop(n) for n in ("scale", "zeros", "bias")]
    for _ in range(2):
        found = operator(x, W, *order, **tensors)
        apart = np.abs(found.double().numpy() - exact)
        assert (
            apart <= 2.0**-17 * (size + 1) + (2.0**-11 * np.abs(exact) if config.out_dtype == "float16" else 0)
        ).all()
    assert len(operator.raw_weights._known) == 1


def test_what_a_packed_weight_has_beside() -> None:
    """Second-level scales, divisors of activations, act-order and one more factor, by `Matmul.pack`."""
    operator = Matmul(
        MatmulConfig(N=N, K=K, A_dtype="float32", W_dtype="int4", out_dtype="float32", **SCALED), target="cpu"
    )
    numbers, scale = RNG.integers(-8, 8, (N, K)), RNG.random((N, 1)).astype(np.float32)
    multipliers, divisors = (
        RNG.integers(1, 9, (N, K // GROUP)).astype(np.int8),
        RNG.uniform(0.5, 2.0, K).astype(np.float32),
    )
    packed = operator.pack(numbers, scale, multipliers=multipliers, divisors=divisors, tensor_scale=0.5)
    dense = (
        numbers * np.repeat(multipliers.astype(float), GROUP, 1) * scale.astype(float) * 0.5 / divisors.astype(float)
    )
    np.testing.assert_allclose(packed.to_dense(), dense, rtol=1e-12)
    A = RNG.standard_normal((3, K)).astype(np.float32)
    np.testing.assert_allclose(operator(A, packed), A @ dense.T, rtol=1e-4, atol=1e-4)
    order = RNG.permutation(np.arange(K) // GROUP).astype(np.int32)
    groups = RNG.random((N, K // GROUP)).astype(np.float32)
    np.testing.assert_allclose(
        operator.pack(numbers, groups, g_idx=order).to_dense(), numbers * groups.astype(float)[:, order]
    )


def test_bitblas_takes_no_zeros_of_signed_codes_silently(caplog: pytest.LogCaptureFixture) -> None:
    bitblas.Matmul(
        bitblas.MatmulConfig(M=1, N=N, K=K, W_dtype="int4", with_zeros=True, with_scaling=True, group_size=GROUP),
        target="cpu",
    )
    assert "zeros beside int4 weights" in caplog.text
