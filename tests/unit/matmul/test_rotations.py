"""Weights whose codes stand for a rotated one: activations are multiplied by matrices first, in every way to call a product."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.conversion.joined import of_rows
from tilewright.errors import CannotQuantize, Unsupported, WrongArgumentShape
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.product import quant_matmul
from tilewright.quant import QuantizedWeight, quantize


def rotated_weight(
    seed: int, N: int = 24, K: int = 96, h: int = 32, each: bool = False, **rest: Any
) -> QuantizedWeight:
    rng = np.random.default_rng(seed)
    matrices = [np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(K // h if each else 1)]
    plain = quantize(rng.standard_normal((N, K)).astype(np.float32), rest.pop("format", "int4"), group=32, **rest)
    return replace(plain, rotation=np.array(matrices, np.float32))


def reference(x: Any, weight: QuantizedWeight) -> np.ndarray:
    """Row by row, block by block."""
    h, wide, codes = weight.rotation.shape[1], np.asarray(x, np.float64), weight.dequantize()
    turned = np.zeros_like(wide)
    for g in range(wide.shape[1] // h):
        matrix = weight.rotation[g % len(weight.rotation)].astype(np.float64)
        for j in range(h):
            turned[:, g * h + j] = sum(wide[:, g * h + i] * matrix[i, j] for i in range(h))
    return turned @ codes.T


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 2e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2), (np.float64, 1e-9)]
)
def test_products_of_arrays(dtype: Any, error: float, each: bool) -> None:
    """The weight that a product has in effect is the codes' times the transposes."""
    weight = rotated_weight(0, each=each)
    x = np.random.default_rng(1).standard_normal((5, 96)).astype(dtype)
    expected = reference(x, weight)
    np.testing.assert_allclose(expected, x.astype(np.float64) @ weight.to_dense().T, rtol=1e-6, atol=1e-6)
    packed = PackedWeight.pack(weight)
    assert quant_matmul(x[:0], packed).shape == (0, 24)
    for _ in range(3):  # what is learnt from a call has not to leave the matrices out
        found = quant_matmul(x, packed)
        np.testing.assert_allclose(found.astype(np.float64), expected, atol=error * abs(expected).max())


def test_an_order_of_columns_and_eight_bits_come_after_the_rotation() -> None:
    rng = np.random.default_rng(2)
    plain = rotated_weight(2)
    weight = replace(plain, g_idx=rng.permutation(np.arange(96) // 32).astype(np.int32))
    x = rng.standard_normal((4, 96)).astype(np.float32)
    expected = reference(x, weight)
    np.testing.assert_allclose(quant_matmul(x, PackedWeight.pack(weight)), expected, atol=2e-6 * abs(expected).max())
    x[:, 3] = 50.0  # an outlier, which the rotation spreads
    found, expected = quant_matmul(x, PackedWeight.pack(plain), quantize="int8"), reference(x, plain)
    assert abs(found - expected).max() < 0.02 * abs(expected).max()


def test_files_and_copies_keep_it(tmp_path: Path) -> None:
    weight = rotated_weight(3, each=True)
    packed = PackedWeight.pack(weight)
    packed.save(tmp_path / "w.safetensors")
    for again in (packed.unpack(), PackedWeight.load(tmp_path / "w.safetensors").unpack()):
        assert (again.rotation == weight.rotation).all() and (again.to_dense() == weight.to_dense()).all()


def test_what_does_not_go_with_it_is_refused() -> None:
    weight = rotated_weight(4)
    for wrong, message in (
        ({"rotation": weight.rotation[0]}, r"rotation has shape \[32, 32\], but K is 96"),
        ({"rotation": np.zeros((1, 36, 36))}, r"rotation has shape \[1, 36, 36\], but K is 96"),
        ({"rotation": np.repeat(weight.rotation, 2, 0)}, r"rotation has shape \[2, 32, 32\] for K = 96"),
        ({"rotation": weight.rotation * np.nan}, r"rotation has shape \[1, 32, 32\] for K = 96"),
        ({"divisors": np.ones(96)}, "for K = 96, beside divisors"),
    ):
        with pytest.raises(CannotQuantize, match=message):
            replace(weight, **wrong)
    packed = PackedWeight.pack(weight)
    with pytest.raises(Unsupported, match="activations of int8 beside a weight that rotates them"):
        quant_matmul(np.ones((2, 96), np.int8), packed)
    with pytest.raises(Unsupported, match="experts that rotate their activations"):
        PackedExperts([packed, packed])
    other = rotated_weight(5)
    with pytest.raises(WrongArgumentShape, match="up is made of weights of two forms"):
        of_rows([weight, other], np.arange(48), "up")
    both = of_rows([weight, replace(other, rotation=weight.rotation)], np.arange(48)[::-1], "up")
    np.testing.assert_allclose(both.to_dense()[24:], weight.to_dense()[::-1], atol=1e-13)


def test_layers() -> None:
    """Calls, gradients, state dicts, a compiled graph, other numbers in place."""
    torch = pytest.importorskip("torch")
    import tilewright

    weight = rotated_weight(6, each=True)
    layer, dense = (
        tilewright.Linear.from_quantized(weight, np.ones(24, np.float32)),
        torch.from_numpy(weight.to_dense()).float(),
    )
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.linear(x, dense, torch.ones(24))
    for _ in range(3):
        torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer(x.half()).float(), expected, atol=0.05, rtol=0.05)
    torch.testing.assert_close(layer.dequantize(), dense, atol=1e-6, rtol=1e-6)
    wanted = x.clone().requires_grad_()
    layer(wanted).square().sum().backward()
    plain = x.clone().requires_grad_()
    torch.nn.functional.linear(plain, dense, torch.ones(24)).square().sum().backward()
    torch.testing.assert_close(wanted.grad, plain.grad, atol=1e-2, rtol=1e-3)
    again = tilewright.Linear(96, 24, bias=True, W_dtype="int4", group_size=32)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x), expected, atol=1e-4, rtol=1e-4)
    assert again.state_dict().keys() == layer.state_dict().keys() and "rotation" in layer.state_dict()
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), expected, atol=1e-4, rtol=1e-4)
    layer.load_quantized(replace(weight, rotation=None))
    torch.testing.assert_close(
        layer(x),
        torch.nn.functional.linear(x, torch.from_numpy(weight.dequantize()).float(), torch.ones(24)),
        atol=1e-4,
        rtol=1e-4,
    )
