"""A packed weight's numbers as a tensor of torch: those of `QuantizedWeight.to_dense`, to the last bit of float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.matmul import PackedWeight  # noqa: E402
from tilewright.matmul import dense_tensor as module  # noqa: E402
from tilewright.matmul.dense_tensor import dense_tensor  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("int4", {"group": 32}), "uint3": ("uint3", {"group": 32, "zeros": "group"}), "nf4": ("nf4", {"group": 24}),
    "mxfp4": ("mxfp4", {}), "nvfp4": ("nvfp4", {}), "fp8_block": ("fp8_block", {}), "uint5": ("uint5", {"group": None}),
    "int8": ("int8", {"group": None}), "int1": ("int1", {"group": 16}), "bitnet": ("bitnet", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_numbers_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4096)  # several parts
    to, options = FORMS[name]
    weight = quantize(np.random.default_rng(0).standard_normal((150, 200)), to, **options)
    packed = PackedWeight.pack(weight)
    np.testing.assert_array_equal(dense_tensor(packed, torch.float64).numpy(), weight.to_dense())
    half = dense_tensor(packed.to("cpu"), torch.bfloat16)
    np.testing.assert_allclose(half.double().numpy(), weight.to_dense(), rtol=2.0**-8)


def test_act_order_rescaled_zeros_two_levels_and_divisors() -> None:
    rng = np.random.default_rng(1)
    N, K, groups = 24, 96, 3
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    weight = QuantizedWeight(
        codes, "uint4", rng.random((N, 1)), rng.random((N, groups)), "rescale", (1, 32), rng.permutation(K).astype(np.int32) % groups,
        rng.integers(1, 9, (N, groups)).astype(np.int8), 0.5, rng.random(K).astype(np.float32) + 0.5,
    )  # fmt: skip
    found = dense_tensor(PackedWeight.pack(weight), torch.float64).numpy()
    np.testing.assert_allclose(found, weight.to_dense(), rtol=1e-14)
