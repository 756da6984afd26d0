"""BitBLAS's Linear: state dicts in its bytes, GPTQ modules repacked, results against float64."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
from checkpoint_writers import write_gptq

from tilewright.compat import bitblas
from tilewright.errors import InvalidTensor

torch = pytest.importorskip("torch")

N, K = 32, 64


def layer(**options: Any) -> Any:
    return bitblas.Linear(K, N, **{"bias": True, "W_dtype": "int4", "with_scaling": True, "group_size": 16, **options})


def filled(**options: Any) -> tuple[Any, np.ndarray]:
    """A layer with every code in its weight, and that weight."""
    made, rng = layer(**options), np.random.default_rng(0)
    of, (low, high) = made.config.format, (made.config.format.minimum, made.config.format.maximum)
    weight = (
        rng.integers(int(low), int(high) + 1, (N, K))
        if of.bits <= 8
        else rng.standard_normal((N, K)).astype(np.float16)
    )
    scales = zeros = None
    expected = weight.astype(np.float64)
    group = made.block[1]
    if made.config.zeros_mode == "quantized" and made.config.with_zeros:
        points = rng.integers(0, 1 << of.bits, (K // group, N))
        zeros = torch.from_numpy(bitblas.quantization.general_compress(points, of.bits))
        expected = expected - np.repeat(points.T, group, 1)
    if made.config.with_scaling:
        scales = torch.from_numpy(rng.uniform(0.5, 1.5, (N, K // group)).astype(np.float16))
        expected = expected * np.repeat(scales.double().numpy(), group, 1)
    bias = torch.from_numpy(rng.standard_normal(N).astype(np.float16)) if made.bias is not None else None
    made.load_and_transform_weight(torch.from_numpy(weight), scales, zeros, bias)
    return made, expected


CASES = [
    {"propagate_b": 3}, {"W_dtype": "uint4", "with_zeros": True, "zeros_mode": "quantized"}, {"W_dtype": "uint2", "bias": False},
    {"W_dtype": "float16", "with_scaling": False, "group_size": -1, "bias": False},
    {"A_dtype": "int8", "W_dtype": "int2", "with_scaling": False, "group_size": -1, "bias": False, "out_dtype": "int32"},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES)
def test_state_dicts_are_in_bitblas_s_bytes(options: dict[str, Any]) -> None:
    made, expected = filled(**options)
    state = made.state_dict()
    config = made.config
    if made.consistent:
        assert state["weight"].dtype == torch.float16 and list(state["weight"].shape) == [N, K]
    else:
        assert state["qweight"].dtype == torch.int8
        assert list(state["qweight"].shape) == made.bitblas_matmul.retrieve_weight_shape()
        assert ("scales" in state) == config.with_scaling and ("zeros" in state) == config.with_zeros
    fresh = layer(**options)
    fresh.load_state_dict(state)
    assert all((fresh.state_dict()[name] == tensor).all() for name, tensor in state.items())
    np.testing.assert_allclose(fresh.dequantize().double().numpy(), expected, rtol=1e-6)
    x = torch.from_numpy(np.random.default_rng(1).integers(-8, 8, (3, K)).astype(np.float32))
    x = x.to(torch.int8 if config.A_dtype == "int8" else torch.float16)
    result = fresh(x)
    reference = x.double().numpy() @ expected.T + (0 if made.bias is None else made.bias.double().numpy())
    assert result.dtype == getattr(torch, config.out_dtype)
    np.testing.assert_allclose(
        result.double().numpy(), reference, rtol=2e-3, atol=0.05 if config.A_dtype != "int8" else 0
    )
    # The operator on the raw tensors of the state dict says the same.
    if not made.consistent:
        raw = made.bitblas_matmul(
            x,
            state["qweight"],
            **{n: state[m] for n, m in (("scale", "scales"), ("zeros", "zeros"), ("bias", "bias")) if m in state},
        )
        np.testing.assert_allclose(raw.double().numpy(), reference, rtol=2e-3, atol=0.05)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq_modules_are_repacked(version: int, symmetric: bool) -> None:
    written = write_gptq(np.random.default_rng(0), N, K, 4, 16, version, False, symmetric)
    module = types.SimpleNamespace(**{name: torch.from_numpy(t) for name, t in written.tensors.items()}, bias=None)
    options = {"W_dtype": "int4"} if symmetric else {"W_dtype": "uint4", "with_zeros": True, "zeros_mode": "quantized"}
    made = layer(bias=False, **options)
    (made.repack_from_gptq if version == 1 else made.repack_from_gptq_v2)(module)
    np.testing.assert_allclose(made.dequantize().double().numpy(), written.weight, rtol=1e-6)
    fresh = layer(bias=False, **options)
    fresh.load_state_dict(made.state_dict())
    np.testing.assert_allclose(fresh.dequantize().double().numpy(), written.weight, rtol=1e-6)


def test_what_does_not_fit_is_told() -> None:
    made, _ = filled()
    state = made.state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*scales"):
        layer().load_state_dict({name: tensor for name, tensor in state.items() if name != "scales"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*g_idx"):
        layer().load_state_dict({**state, "g_idx": torch.zeros(3)})
    with pytest.raises(RuntimeError, match=r"qweight is int8 \[100\], where"):
        layer().load_state_dict({**state, "qweight": torch.zeros(100, dtype=torch.int8)})
    written = write_gptq(np.random.default_rng(0), 8, 64, 4, 16, 1, False)
    module = types.SimpleNamespace(**{name: torch.from_numpy(t) for name, t in written.tensors.items()})
    with pytest.raises(InvalidTensor, match=r"the GPTQ module is \[8, 64\], the layer \[32, 64\]"):
        layer().repack_from_gptq(module)


def test_layers_inside_a_model_and_warm() -> None:
    model = torch.nn.Sequential(filled()[0], torch.nn.ReLU())
    state = model.state_dict()
    assert set(state) == {"0.qweight", "0.scales", "0.bias"}
    model.load_state_dict(state)
    model[0].warmup(topk=1)
    model[0].init_params()
    out = torch.empty(2, N, dtype=torch.float16)
    assert model[0](torch.ones(2, K, dtype=torch.float16), out).data_ptr() == out.data_ptr()


@pytest.mark.parametrize("mode", [None, "original", "quantized"])
def test_programs_write_packed_bytes_to_the_buffers(mode: str | None) -> None:
    """As BitBLAS's own tests do: ``layer.qweight.data = operator.weight_transform(codes)``, also after a call."""
    K, N, group = 64, 32, 32
    layer = bitblas.Linear(
        K,
        N,
        A_dtype="float16",
        W_dtype="uint4",
        group_size=group,
        with_scaling=True,
        with_zeros=mode is not None,
        zeros_mode=mode,
    )
    x, codes = torch.rand(3, K).half() - 0.5, torch.randint(0, 16, (N, K), dtype=torch.int8)
    scales = torch.rand(N, K // group).half() + 0.5
    layer(x)
    packed = layer.bitblas_matmul.weight_transform(codes)
    layer.qweight.data = packed.clone()
    layer.scales.data = scales.clone()
    dense = codes.double()
    if mode == "original":
        layer.zeros.data = torch.full((N, K // group), 8.0).half()
        dense = dense - 8
    elif mode == "quantized":
        points = torch.randint(0, 16, (K // group, N), dtype=torch.int8)
        layer.zeros.data = torch.from_numpy(bitblas.quantization.general_compress(points.numpy(), 4))
        dense = dense - points.T.double().repeat_interleave(group, 1)
    expected = x.double() @ (dense * scales.double().repeat_interleave(group, 1)).T
    for _ in range(2):
        torch.testing.assert_close(layer(x).double(), expected, rtol=2e-3, atol=2e-2)
    assert torch.equal(layer.state_dict()["qweight"].reshape(packed.shape), packed)
